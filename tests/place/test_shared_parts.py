"""Shares of workers that several ingresses send to: what is believed free, who is found by it, what it is worth."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rivals.routing import MEMORY_BYTES, item, join, predictor, request, stage, workflow

from dovetail.place import fleet
from dovetail.place.belief import Belief
from dovetail.place.settings import RouterSettings
from dovetail.place.shared import SharedWorkers
from dovetail.place.transfer import SIMULATOR, Delays
from dovetail.state import Batch, CompiledGraph, Config, Queue, WorkerRow
from dovetail.tools.simulate import ScenarioRun
from dovetail.units import MS

PLAIN = RouterSettings(bounces=0, spares=0, spread=False, hints=False)
SMALL, HALF = Config(1, 1, 20), Config(1, 1, 50)


def router_for(workers: int) -> SharedWorkers:
    router = SharedWorkers(predictor({"a": 100}), PLAIN, delays=Delays(SIMULATOR))
    join(router, *range(1, workers + 1))  # type: ignore[arg-type]
    return router


def row(worker: int, free_pct: int, next_ms: int, done_ms: int) -> WorkerRow:
    return WorkerRow(worker, 0, done_ms * MS, done_ms * MS, ("a",), MEMORY_BYTES, free_pct, next_ms * MS)


def single() -> CompiledGraph:
    return workflow([stage("a", 100)])


# -- beliefs --------------------------------------------------------------------------------------------------------


def test_a_share_that_the_row_says_is_free_is_free_though_the_whole_is_not() -> None:
    belief = Belief(0)
    belief.hear(row(1, 40, 30, 90))
    assert belief.free_ns(0) == 90 * MS
    assert [belief.room_ns(pct, 0) for pct in (20, 40, 41)] == [0, 0, 30 * MS], "and more when the next has ended"
    assert belief.room_ns(41, 30 * MS) == 90 * MS, "who should have ended and has not may take longer"
    assert belief.room_ns(100, 90 * MS) == 0


def test_what_was_sent_takes_its_share_until_it_should_have_ended() -> None:
    belief = Belief(0)
    belief.send(1, 1, 2 * MS, 10 * MS, "a", 50)
    assert belief.free_ns(0) == 12 * MS
    assert belief.room_ns(50, 0) == 0 and belief.room_ns(60, 0) == 12 * MS
    belief.send(2, 1, 2 * MS, 30 * MS, "a", 50)
    assert belief.free_ns(0) == 32 * MS, "side by side, not one behind the other"
    assert belief.room_ns(20, 0) == 32 * MS, "nothing is left, and others may wait for what comes free"
    assert belief.room_ns(20, 13 * MS) == 0
    belief.end(1, done=True)
    assert belief.room_ns(50, 0) == 0


def test_more_of_it_is_free_when_the_next_of_what_was_sent_should_have_ended() -> None:
    belief = Belief(0)
    belief.send(1, 1, 2 * MS, 10 * MS, "a", 40)
    belief.send(2, 1, 2 * MS, 90 * MS, "a", 40)
    assert [belief.room_ns(pct, 0) for pct in (20, 21, 60)] == [0, 12 * MS, 12 * MS]


def test_where_others_wait_no_share_is_free() -> None:
    belief = Belief(0)
    belief.hear(row(1, 0, 30, 90))
    assert belief.room_ns(20, 0) == 90 * MS


def test_who_has_refused_has_no_room_until_then() -> None:
    belief = Belief(0)
    belief.hear(row(1, 60, 30, 90))
    belief.refuse(95 * MS, 1)
    assert belief.room_ns(20, 2) == 95 * MS


# -- who is found ---------------------------------------------------------------------------------------------------


def test_an_item_goes_to_who_has_its_share_free_and_otherwise_to_who_is_free_first() -> None:
    router = router_for(2)
    router.heard([row(1, 30, 40, 500), row(2, 0, 40, 200)], 0)
    for config, worker in ((SMALL, 1), (HALF, 1), (None, 2)):
        route = router.route(item(request(single()), "a"), 0, config)
        assert route is not None and route.worker == worker


def test_the_index_of_a_share_finds_what_a_look_at_all_would_find() -> None:
    router = router_for(6)
    router.route(item(request(single()), "a"), 0, SMALL)  # from now on they are found by that share, too
    for number, (free_pct, next_ms, done_ms) in enumerate([(10, 9, 50), (0, 5, 40), (19, 20, 30), (60, 70, 80)], 1):
        router.heard([row(number, free_pct, next_ms, done_ms)], 0)
    beliefs, (kind,) = router.fleet.beliefs, router.fleet._kinds.values()
    assert set(kind.parts) == {20}
    for worker, known in kind.parts[20].workers.items():
        assert known.free_ns == beliefs[worker].room_ns(20, 0)
    router.fleet.lose(4)
    assert 4 not in kind.parts[20].workers


def test_small_batches_of_one_ingress_share_a_worker_before_they_queue() -> None:
    router = router_for(1)
    router.heard([row(1, 100, 0, 0)], 0)
    starts = []
    for number in range(1, 7):
        what = item(request(single(), number), "a")
        route = router.route(what, 0, SMALL)
        assert route is not None
        starts.append(route.start_ns)
        of = what.request.graph.nodes[what.node].stage
        worker = router.fleet.workers[1]
        router.started(Batch(number, Queue(of.name, of), worker, SMALL, [what], 0, 100 * MS), 0)
    assert len(set(starts[:5])) == 1 and starts[5] > starts[0] + 50 * MS, "five fifths, and the sixth waits"
    assert not router._routed, "nothing is left of routes that were taken"


def test_shares_above_the_largest_part_ask_for_a_whole_worker() -> None:
    router = router_for(1)
    router.heard([row(1, 90, 40, 200)], 0)
    route = router.route(item(request(single()), "a"), 0, Config(1, 1, fleet.PARTS_PCT[-1] + 10))
    assert route is not None and route.start_ns >= 200 * MS


# -- what it is worth -----------------------------------------------------------------------------------------------

CROWDED = """
seed = 3
duration = "16s"
warmup = "4s"
[[workflows]]
catalogue = "esg/image-classification"
slo = "1500ms"
[[arrivals]]
workflow = "esg/image-classification"
kind = "poisson"
rate = {rate}
[cluster]
ingresses = 3
push = "10ms"
pull = "10ms"
"""
DEVICES = '[[devices]]\nkind = "{}"\ncount = {}\nhost = {}\n'


@pytest.mark.parametrize(
    "devices",
    [DEVICES.format("a100", 3, 1), DEVICES.format("a100", 2, 1) + DEVICES.format("t4", 4, 0)],
    ids=["one-kind", "two-kinds"],
)
def test_several_ingresses_share_devices_that_whole_batches_would_overload(tmp_path: Path, devices: str) -> None:
    """A device that ran one batch after the other would have a quarter of them in time."""
    path = tmp_path / "scenario.toml"
    path.write_text(CROWDED.format(rate=20) + devices)
    (ours,) = ScenarioRun(path).go().summaries
    path.write_text(CROWDED.format(rate=20) + devices + '[policy]\nname = "place"\n')
    (whole,) = ScenarioRun(path).go().summaries
    assert ours.hit_rate >= 0.98 > whole.hit_rate + 0.2


def test_several_ingresses_that_share_devices_decide_the_same_each_time(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(CROWDED.format(rate=30) + DEVICES.format("a100", 2, 1))
    first, second = (ScenarioRun(path).go() for _ in range(2))
    assert repr(first.summaries) == repr(second.summaries)


def test_goodput_of_several_ingresses_does_not_collapse_when_more_is_asked(tmp_path: Path) -> None:
    """What waits at workers is one stage of each request; admission counts the stages that are still to come."""
    path = tmp_path / "scenario.toml"
    in_time = []
    for rate in (25, 40, 60):
        path.write_text(CROWDED.format(rate=rate) + DEVICES.format("a100", 2, 1))
        (row,) = ScenarioRun(path).go().summaries
        in_time.append(row.outcomes["ok"])
    assert min(in_time) >= 0.75 * max(in_time)
