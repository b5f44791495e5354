from __future__ import annotations

import pytest
from tests.rivals.support import arrival, controller_of, curve, market, workflow

from dovetail.control import RunBatch, SetTimer, TimerFired
from dovetail.lab.rivals.infless import IDLE_TICKS, INFlessPlanner, Sizing, cre, sizings
from dovetail.state import Config, Queue
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

#: Batch of one: 100 ms at 10 % of a device, 20 ms at 50 %. Batch of two: 160 and 32 ms.
READ = curve({1: 10, 2: 16})
GRAPH = workflow("w", 100, {"read": (1, 2)})


def by_batch(slo_ms: float) -> dict[int, list[Sizing]]:
    return sizings(GRAPH.stages[0], round(slo_ms * MS), market({"read": READ}))


def test_a_batch_of_one_has_the_whole_objective_and_a_larger_one_half_of_it() -> None:
    found = by_batch(100)
    assert [o.config.share_pct for o in found[1]] == [10, 20, 30, 40, 50]
    assert [o.config.share_pct for o in found[2]] == [40, 50]  # 40 and 32 ms; 30 % would take 53
    assert list(found) == [2, 1], "the largest batch comes first"


def test_rates_and_timeout_of_an_offer() -> None:
    half = by_batch(100)[2][-1]
    assert half.time_ns == 32 * MS
    assert half.max_rps == pytest.approx(2 / 0.032)
    assert half.min_rps == pytest.approx(2 / 0.068)
    assert half.timeout_ns == 68 * MS
    alone = by_batch(100)[1][-1]
    assert alone.max_rps == pytest.approx(50)
    assert (alone.min_rps, alone.timeout_ns) == (0, 0)


def test_shares_end_at_half_a_device_and_cores_go_down_in_twos() -> None:
    m = market({"read": curve({1: 1, 4: 2})}, cpus=(1, 2, 3, 4, 5, 6))
    found = sizings(workflow("w", 1000, {"read": (1, 4)}).stages[0], 1000 * MS, m)
    assert {o.config.cpus for o in found[1]} == {2}
    assert {o.config.cpus for o in found[4]} == {4, 2}
    assert max(o.config.share_pct for row in found.values() for o in row) == 50


def test_an_objective_out_of_reach_gets_the_fastest_configuration_of_batch_one() -> None:
    assert [o.config for row in by_batch(10).values() for o in row] == [Config(1, 2, 50)]


def test_cre_is_the_rate_over_what_is_left_of_the_worker() -> None:
    worker = market({"read": READ}).worker(StageSpec("read", "model", (1,)))
    half = by_batch(100)[1][-1]
    # Left of 16 cores and 100 %: 14.016 cores and 50.1 %, each with the code's thousandth.
    left = (64 * 14.016 + 142 * 50.1) / (64 * 16 + 142 * 100)
    assert cre(half, 0.5, worker, 100, 16) == pytest.approx((50 / 0.5) / left)


def test_cre_prefers_the_fuller_worker_and_the_larger_share() -> None:
    worker = market({"read": READ}).worker(StageSpec("read", "model", (1,)))
    small, half = by_batch(100)[1][0], by_batch(100)[1][-1]
    assert cre(half, 0.5, worker, 60, 10) > cre(half, 0.5, worker, 100, 16)
    assert cre(half, 0.5, worker, 100, 16) > cre(small, 0.5, worker, 100, 16)


def planner_and_queue(workers: int = 2) -> tuple[INFlessPlanner, Queue]:
    planner = INFlessPlanner(market({"read": READ}))
    controller = controller_of(planner, [GRAPH], workers)
    return planner, controller.queues["w/read"]


def test_a_batch_is_used_only_where_the_rate_fills_it() -> None:
    planner, queue = planner_and_queue()
    planner.rescale(queue, 29.0)  # less than r_min = 29.4
    assert [i.config.batch for i in planner.fleet.of("w/read")] == [1]
    planner, queue = planner_and_queue()
    planner.rescale(queue, 30.0)
    assert [i.config for i in planner.fleet.of("w/read")] == [Config(2, 2, 50)]


def test_instances_cover_the_rate_with_batches_of_unequal_size() -> None:
    planner, queue = planner_and_queue()
    planner.rescale(queue, 80.0)
    # 62.5 of batch two on one worker; 17.5 are too few for another: batch one, tightly on the same worker.
    assert [(i.worker, i.config) for i in planner.fleet.of("w/read")] == [
        (1, Config(2, 2, 50)),
        (1, Config(1, 2, 50)),
    ]


def test_a_rate_uncovered_by_less_than_three_per_cent_changes_nothing() -> None:
    planner, queue = planner_and_queue()
    planner.rescale(queue, 50.0)
    before = planner.fleet.of("w/read")
    covered = sum(i.max_rps for i in before)
    planner.rescale(queue, covered * 1.02)
    assert planner.fleet.of("w/read") == before
    planner.rescale(queue, covered * 1.05)
    assert len(planner.fleet.of("w/read")) > len(before)


def test_a_full_cluster_is_no_error_and_ends_the_search() -> None:
    planner, queue = planner_and_queue(workers=1)
    planner.rescale(queue, 10_000.0)
    assert sum(i.config.share_pct for i in planner.fleet.of("w/read")) == 100


def test_spare_instances_go_after_a_while_and_the_last_one_stays() -> None:
    planner, queue = planner_and_queue()
    planner.rescale(queue, 180.0)
    many = len(planner.fleet.of("w/read"))
    for _ in range(IDLE_TICKS - 1):
        planner.rescale(queue, 40.0)
    assert len(planner.fleet.of("w/read")) == many
    planner.rescale(queue, 40.0)
    assert sum(i.max_rps for i in planner.fleet.of("w/read")) >= 40.0
    for _ in range(IDLE_TICKS):
        planner.rescale(queue, 0.0)
    assert len(planner.fleet.of("w/read")) == 1


def test_a_batch_waits_to_fill_until_its_timeout() -> None:
    planner = INFlessPlanner(market({"read": READ}))
    controller = controller_of(planner, [GRAPH], 1)
    planner.rescale(controller.queues["w/read"], 60.0)
    assert [i.config for i in planner.fleet.of("w/read")] == [Config(2, 2, 50)]
    held = controller.step(arrival(10, 1))
    assert [(type(a), a.at_ns) for a in held if isinstance(a, SetTimer)] == [(SetTimer, 78 * MS)]
    assert not any(isinstance(a, RunBatch) for a in held)
    timer = next(a for a in held if isinstance(a, SetTimer))
    assert timer.reason == "waits for a batch to fill"
    (run,) = controller.step(TimerFired(78 * MS, 0, timer.timer))
    assert isinstance(run, RunBatch)
    assert run.items == ((1, 0, 0),)


def test_a_full_batch_does_not_wait() -> None:
    planner = INFlessPlanner(market({"read": READ}))
    controller = controller_of(planner, [GRAPH], 1)
    planner.rescale(controller.queues["w/read"], 60.0)
    controller.step(arrival(10, 1))
    (run,) = controller.step(arrival(11, 2))
    assert isinstance(run, RunBatch)
    assert (run.items, run.share_pct) == (((1, 0, 0), (2, 0, 0)), 50)


def test_a_function_without_an_instance_is_served_all_the_same() -> None:
    planner = INFlessPlanner(market({"read": READ}))
    controller = controller_of(planner, [GRAPH], 1)
    (run,) = controller.step(arrival(10, 1))
    assert isinstance(run, RunBatch)
    assert run.share_pct == 50, "as the fastest of batch one"
