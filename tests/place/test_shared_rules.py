"""The router's rules one by one: what was sent counts, an eviction has its toll, and copies keep their distance."""

from __future__ import annotations

import msgspec
import pytest
from tests.rivals.routing import MEMORY_BYTES, item, join, predictor, request, stage, weights_for, workflow

from dovetail.place.belief import Belief
from dovetail.place.route import Hint, Route
from dovetail.place.settings import RouterSettings
from dovetail.place.shared import SharedWorkers
from dovetail.place.transfer import SIMULATOR, Delays
from dovetail.state import Batch, CompiledGraph, Config, Item, Queue, WorkerRow
from dovetail.units import MS

#: No windows, no copies, and of those that are free the first: what is left is the estimate.
PLAIN = RouterSettings(bounces=0, spares=0, spread=False)
#: When an entry's input is at a worker.
ARRIVE_NS = Delays(SIMULATOR).message_ns(0)


def router_for(chosen: RouterSettings, workers: int, **times_ms: float) -> SharedWorkers:
    router = SharedWorkers(predictor(times_ms), chosen, delays=Delays(SIMULATOR))
    join(router, *range(1, workers + 1))  # type: ignore[arg-type]
    return router


def row(worker: int, *models: str, wait_ms: int = 0, at_ms: int = 0, free_bytes: int = MEMORY_BYTES) -> WorkerRow:
    at_ns = at_ms * MS
    return WorkerRow(worker, at_ns, wait_ms * MS, at_ns + wait_ms * MS, models, free_bytes)


def single(fetch_ms: float = 100) -> CompiledGraph:
    return workflow([stage("a", fetch_ms)])


def send(router: SharedWorkers, what: Item, number: int, now_ns: int) -> Route:
    """Route an item and say that it was sent, as the controller does."""
    route = router.route(what, now_ns)
    assert route is not None
    of = what.request.graph.nodes[what.node].stage
    worker = router.fleet.workers[route.worker]
    router.started(Batch(number, Queue(of.name, of), worker, Config(1, 1, 100), [what], now_ns, 100 * MS), now_ns)
    return route


# -- what was sent --------------------------------------------------------------------------------------------------


def test_what_was_sent_takes_its_worker_until_it_has_run() -> None:
    router = router_for(PLAIN, 3, a=100)
    router.heard([row(w, "a") for w in (1, 2, 3)], 0)
    sent = [send(router, item(request(single(), n), "a"), n, 0).worker for n in range(1, 7)]
    assert sorted(sent[:3]) == sorted(sent[3:]) == [1, 2, 3], "one each, and then one more each"
    free = [router.fleet.known(w).free_ns for w in (1, 2, 3)]
    assert free == [ARRIVE_NS + 200 * MS] * 3, "two runs of 100 ms, one behind the other"


def test_a_row_from_after_it_was_there_knows_it_and_one_from_before_does_not() -> None:
    belief = Belief(0)
    belief.send(1, 10, 20, 100, "a")
    belief.send(2, 30, 40, 7, "b")
    assert belief.free_ns(0) == 20 + 100 + 7
    belief.hear(WorkerRow(1, 9, 0, 0, (), 50))
    assert belief.free_ns(0) == 127
    belief.hear(WorkerRow(1, 10, 0, 300, ("a",), 50))
    assert belief.free_ns(0) == 300 + 7, "the first is in the row, the second is not"
    assert belief.memory({"a": 4, "b": 5}) == (frozenset({"a", "b"}), 45)
    assert belief.end(2, done=True)
    assert not belief.end(2, done=True)
    assert belief.free_ns(0) == 300
    assert belief.free_ns(300) == 0, "it is free by then"


def test_a_refusal_counts_until_a_row_is_newer() -> None:
    belief = Belief(0)
    belief.hear(WorkerRow(1, 10, 0, 0, (), 50))
    belief.refuse(80, 20)
    belief.refuse(60, 21)
    assert belief.free_ns(0) == 80
    belief.hear(WorkerRow(1, 21, 0, 0, (), 50))
    assert belief.free_ns(0) == 80
    belief.hear(WorkerRow(1, 22, 0, 0, (), 50))
    assert belief.free_ns(0) == 0


def test_a_worker_of_which_nothing_was_heard_has_all_its_memory() -> None:
    assert Belief(50).memory({}) == (frozenset(), 50)
    assert Belief(0).memory({})[1] > 1 << 50, "no limit is told"


def test_a_worker_that_refused_is_taken_to_be_busy_for_a_quarter_of_a_run_beyond_the_window() -> None:
    router = router_for(msgspec.structs.replace(PLAIN, bounces=2), 1, a=100)
    router.heard([row(1, "a")], 0)
    what = item(request(single()), "a")
    route = router.route(what, 0)
    assert route is not None and route.latest_ns > 0
    worker = router.fleet.workers[1]
    of = what.request.graph.nodes[0].stage
    batch = Batch(1, Queue(of.name, of), worker, Config(1, 1, 100), [what], 0, 100 * MS)
    router.started(batch, 0)
    router.ended(batch, MS, False)
    assert router.fleet.beliefs[1].free_ns(MS) == route.latest_ns + 25 * MS


# -- the toll -------------------------------------------------------------------------------------------------------


def chosen_worker(toll_pct: int, wait_ms: int) -> int:
    """Worker 1 holds the model and is free after a wait; worker 2 would have to evict another for it: 200 ms."""
    router = router_for(msgspec.structs.replace(PLAIN, toll_pct=toll_pct), 2, a=10)
    router.heard([row(1, "a", wait_ms=wait_ms), row(2, "b", free_bytes=0)], 0)
    route = router.route(item(request(single()), "a"), 0)
    assert route is not None
    return route.worker


@pytest.mark.parametrize(
    ("toll_pct", "wait_ms", "worker"),
    [(0, 199, 1), (0, 201, 2), (100, 299, 1), (100, 301, 2), (50, 249, 1), (50, 251, 2)],
)
def test_an_eviction_is_charged_its_toll_beside_its_time(toll_pct: int, wait_ms: int, worker: int) -> None:
    assert chosen_worker(toll_pct, wait_ms) == worker


def test_the_toll_is_no_time_and_a_model_that_fits_has_none() -> None:
    router = router_for(PLAIN, 2, a=10)
    router.heard([row(1, "b", free_bytes=0), row(2, wait_ms=500)], 0)
    of = request(single())
    task = router._outline(of.graph).tasks[0]
    evicts, fits = (router.fleet.at(w, task, 0, ARRIVE_NS) for w in (1, 2))
    assert task.fetch_ns == pytest.approx(100 * MS, rel=1e-3)
    assert (evicts.start_ns, evicts.fetch_ns) == (2 * task.fetch_ns, 2 * task.fetch_ns)
    assert evicts.score_ns == evicts.end_ns + task.fetch_ns
    assert (fits.start_ns, fits.fetch_ns, fits.score_ns) == (500 * MS, task.fetch_ns, 510 * MS)


# -- copies ---------------------------------------------------------------------------------------------------------


def hinted(router: SharedWorkers, number: int, now_ms: int) -> list[Hint]:
    of = request(single(), number)
    hints = list(router.hints(of, now_ms * MS))
    router.closed(of)
    return hints


def test_copies_of_one_model_follow_each_other_at_a_distance() -> None:
    chosen = msgspec.structs.replace(PLAIN, spares=4)
    router = router_for(chosen, 6, a=10)
    router.heard([row(1, "a")], 0)
    every_ms = chosen.copy_every_ns // MS
    assert [len(hinted(router, n, ms)) for n, ms in enumerate((0, 1, every_ms - 1, every_ms), start=1)] == [
        1,
        0,
        0,
        1,
    ]


def test_copies_of_two_models_do_not_wait_for_each_other() -> None:
    router = router_for(msgspec.structs.replace(PLAIN, spares=4), 6, a=10, b=10)
    router.heard([row(1, "a", "b")], 0)
    graph = workflow([stage("a", 100), stage("b", 100)])
    hints = router.hints(request(graph), 0)
    assert sorted(h.stage for h in hints) == ["a", "b"]


def test_a_model_that_was_copied_lately_keeps_no_other_waiting() -> None:
    chosen = msgspec.structs.replace(PLAIN, spares=4)
    router = router_for(chosen, 6, a=10, b=10)
    graph = workflow([stage("a", 100), stage("b", 100)])
    router.heard([row(1, "a", "b"), *(row(w, "b") for w in range(2, 7))], 0)
    assert [h.stage for h in router.hints(request(graph, 1), 0)] == ["a"], "of b there are enough"
    router.heard([row(1, "a", "b", at_ms=2), *(row(w, at_ms=2) for w in range(2, 7))], 2 * MS)
    assert [h.stage for h in router.hints(request(graph, 2), 2 * MS)] == ["b"]


def test_a_holder_that_has_become_free_is_spare() -> None:
    router = router_for(msgspec.structs.replace(PLAIN, spares=1), 3, a=10)
    router.heard([row(1, "a", wait_ms=20), row(2, "a", wait_ms=20)], 0)
    task = router._outline(single()).tasks[0]
    assert router.fleet.room_for_copy(task, 0, 1, 10 * MS, 0) == 3
    assert router.fleet.room_for_copy(task, 0, 1, 30 * MS, 0) is None


def test_a_copy_is_asked_for_only_while_too_few_holders_stay_free() -> None:
    chosen = msgspec.structs.replace(PLAIN, spares=1)
    for holders, copies in ((1, 1), (2, 0)):
        router = router_for(chosen, 4, a=10)
        router.heard([row(w, "a") for w in range(1, holders + 1)], 0)
        hints = hinted(router, 1, 0)
        assert len(hints) == copies, "one holder is about to be used"
        assert all(h.worker > holders for h in hints)


def test_no_copy_is_asked_of_a_worker_that_is_busy_or_has_no_room() -> None:
    router = router_for(msgspec.structs.replace(PLAIN, spares=2), 3, a=10)
    router.heard([row(1, "a"), row(2, wait_ms=50), row(3, free_bytes=weights_for(100) - 1)], 0)
    assert hinted(router, 1, 0) == []
    router.heard([row(3, at_ms=150, free_bytes=weights_for(100))], 150 * MS)
    router.heard([row(2, wait_ms=500, at_ms=150)], 150 * MS)
    assert [h.worker for h in hinted(router, 2, 150)] == [3], "just enough room"
