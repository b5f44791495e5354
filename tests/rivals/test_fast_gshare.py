from __future__ import annotations

import pytest
from tests.rivals.support import arrival, controller_of, curve, market, workflow

from dovetail.control import BatchFinished, RunBatch
from dovetail.lab.rivals.fast_gshare import HEADROOM_RPS, FastGSharePlanner, height_pct, points
from dovetail.lab.rivals.instances import Instance
from dovetail.state import Config, Queue
from dovetail.units import MS

#: 100 ms at 10 % of a device, 50 at 20 %, and never less than 40: from 25 % on, more share buys nothing.
READ = curve({1: 10}, floor_ms=40)
GRAPH = workflow("w", 1000, {"read": (1,)})


def test_efficiency_is_what_a_point_yields_for_its_area() -> None:
    found = points(GRAPH.stages[0], 1000 * MS, market({"read": READ}))
    by_point = {(p.config.share_pct, p.quota): p for p in found}
    assert by_point[10, 1.0].rps == pytest.approx(10)
    assert by_point[10, 1.0].rpr == pytest.approx(1.0)
    assert by_point[20, 0.4].rps == pytest.approx(8)
    assert by_point[20, 0.4].area_pct == pytest.approx(8)
    assert by_point[50, 0.2].rpr == pytest.approx(25 * 0.2 / (50 * 0.2))


def test_points_come_in_descending_order_of_efficiency_then_of_yield() -> None:
    found = points(GRAPH.stages[0], 1000 * MS, market({"read": READ}))
    assert [(p.config.share_pct, p.quota) for p in found[:3]] == [(20, 1.0), (20, 0.8), (20, 0.6)]
    assert found[-1].config.share_pct == 100
    efficiencies = [round(p.rpr, 9) for p in found]
    assert efficiencies == sorted(efficiencies, reverse=True)


def test_a_quota_stretches_the_latency_that_the_objective_allows() -> None:
    found = points(GRAPH.stages[0], 60 * MS, market({"read": READ}))
    # 20 %: 50 ms, so the whole quota; from 30 %: 40 ms, so four fifths (50 ms) will do but three (67 ms) will not.
    assert {(p.config.share_pct, p.quota) for p in found} == {(20, 1.0)} | {
        (share, quota) for share in range(30, 101, 10) for quota in (0.8, 1.0)
    }


def test_the_profile_holds_the_95th_percentile() -> None:
    tight = points(GRAPH.stages[0], 105 * MS, market({"read": READ}, spread=0.05))
    assert 10 not in {p.config.share_pct for p in tight}, "100 ms in the mean, 108 at the 95th percentile"


def test_an_objective_out_of_reach_gets_the_fastest_point() -> None:
    (only,) = points(GRAPH.stages[0], 5 * MS, market({"read": READ}))
    assert (only.config.share_pct, only.quota) == (30, 1.0)


def planner_and_queue(slo_ms: float = 1000, workers: int = 1, **bands: float) -> tuple[FastGSharePlanner, Queue]:
    planner = FastGSharePlanner(market({"read": READ}), **bands)
    controller = controller_of(planner, [workflow("w", slo_ms, {"read": (1,)})], workers)
    return planner, controller.queues["w/read"]


def shapes(planner: FastGSharePlanner) -> list[tuple[int, float]]:
    return [(i.config.share_pct, i.quota) for i in planner.fleet.of("w/read")]


def test_scale_up_takes_the_most_efficient_point_and_then_the_smallest_that_is_enough() -> None:
    planner, queue = planner_and_queue()
    planner.rescale(queue, 46 - HEADROOM_RPS)
    # Two of 20 per second; for the last 6 what yields least above it: 8, of (20 %, 0.4) or of (10 %, 0.8).
    assert shapes(planner)[:2] == [(20, 1.0), (20, 1.0)]
    assert sum(i.max_rps for i in planner.fleet.of("w/read")) == pytest.approx(48)


def test_the_shipped_stub_takes_the_most_efficient_point_for_the_rest_as_well() -> None:
    planner = FastGSharePlanner(market({"read": READ}), ideal_residual=False)
    controller = controller_of(planner, [GRAPH], 1)
    planner.rescale(controller.queues["w/read"], 46 - HEADROOM_RPS)
    assert shapes(planner) == [(20, 1.0)] * 3


def test_inside_the_dead_band_nothing_happens() -> None:
    planner, queue = planner_and_queue(dead_band_up=0.2)
    planner.rescale(queue, 20 - HEADROOM_RPS - 0.01)
    capacity = sum(i.max_rps for i in planner.fleet.of("w/read"))
    assert capacity == pytest.approx(20)
    for rps in (capacity * 1.19, capacity * 0.81):
        planner.rescale(queue, rps - HEADROOM_RPS)
        assert shapes(planner) == [(20, 1.0)]
    planner.rescale(queue, capacity * 1.21 - HEADROOM_RPS)
    assert len(shapes(planner)) == 2


def test_by_default_there_is_no_band_above() -> None:
    planner, queue = planner_and_queue()
    planner.rescale(queue, 20 - HEADROOM_RPS - 0.01)
    planner.rescale(queue, 20 - HEADROOM_RPS + 0.5)
    assert len(shapes(planner)) == 2


def test_the_least_efficient_instances_go_first() -> None:
    planner, queue = planner_and_queue()
    for share, rps in ((20, 20.0), (40, 25.0), (10, 10.0)):
        planner.fleet.add("w/read", Instance(1, Config(1, 1, share), rps))
    planner.rescale(queue, 30 - HEADROOM_RPS)
    assert shapes(planner) == [(20, 1.0), (10, 1.0)], "25 per second at 40 % is the worst of 1, 0.625 and 1"


def test_the_last_instance_stays() -> None:
    planner, queue = planner_and_queue()
    planner.rescale(queue, 50.0)
    planner.rescale(queue, 0.0)
    assert len(shapes(planner)) == 1


def test_rectangles_share_rows_of_their_height() -> None:
    def row(share: int, quota: float) -> Instance:
        return Instance(1, Config(1, 1, share), 1.0, quota=quota)

    assert height_pct([row(40, 0.4), row(40, 0.6), row(20, 0.2)]) == 60
    assert height_pct([row(40, 0.6), row(40, 0.6)]) == 80
    assert height_pct([]) == 0


def test_the_fullest_device_with_room_is_taken_and_a_full_cluster_is_no_error() -> None:
    planner, queue = planner_and_queue(workers=2)
    planner.rescale(queue, 80 - HEADROOM_RPS)
    assert {i.worker for i in planner.fleet.of("w/read")} == {1}, "four instances of 20 % on one device"
    planner.rescale(queue, 10_000.0)
    assert all(height_pct(held) == 100 for held in planner.fleet.by_worker().values())


def test_requests_wait_for_an_instance_of_their_function() -> None:
    planner = FastGSharePlanner(market({"read": READ}))
    controller = controller_of(planner, [GRAPH], 1)
    planner.rescale(controller.queues["w/read"], 20 - HEADROOM_RPS - 0.01)
    (run,) = controller.step(arrival(10, 1))
    assert isinstance(run, RunBatch)
    assert run.share_pct == 20
    assert controller.step(arrival(11, 2)) == [], "four fifths of the device are free, but no instance"
    after = controller.step(BatchFinished(60 * MS, 0, run.batch, 10 * MS, 60 * MS))
    assert [a.items for a in after if isinstance(a, RunBatch)] == [((2, 0, 0),)]
