"""The simulation loop: what happens at the same time, workers that come and go, runs in pieces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dovetail.control import Action, Event, RequestArrived, WorkerLost
from dovetail.control.validate import validate
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.record.ledger import Ledger
from dovetail.sim import SimDevice, Simulation
from dovetail.state import WorkerSpec
from dovetail.units import MS
from dovetail.wiring import PolicySpec, make_controller
from dovetail.workflow.graph import StageSpec, chain

GRAPH = chain("one", 50 * MS, [StageSpec("a", "model", (1,))])
ENTRIES = [Entry("a", "gpu", points=(Point(1, 1, 10 * MS, 0.0, 1),))]


def simulation(
    arrivals: Iterator[RequestArrived], devices: int = 1, seen: list[tuple[Event, list[Action]]] | None = None
) -> Simulation:
    controller = make_controller([GRAPH], PolicySpec(), ENTRIES, 1)
    log = [] if seen is None else seen
    observers = [lambda e, a: validate(controller), lambda e, a: log.append((e, a))]
    made = Simulation(controller, Ledger([(GRAPH.name, GRAPH.slo_ns)]), arrivals, observers)
    for ident in range(1, devices + 1):
        spec = WorkerSpec(f"gpu-{ident}", "gpu", ("model",))
        made.join(SimDevice(ident, spec, controller.stages, ProfileTable(ENTRIES), made.schedule))
    return made


def every(gap_ms: int, count: int, timeout_ms: int = 0) -> Iterator[RequestArrived]:
    for n in range(1, count + 1):
        deadline = (n * gap_ms + timeout_ms) * MS if timeout_ms else 0
        yield RequestArrived(n * gap_ms * MS, 0, n, 0, deadline_ns=deadline)


def kinds(seen: list[tuple[Event, list[Action]]]) -> list[str]:
    return [type(event).__name__ for event, _ in seen]


def test_at_the_same_time_workers_come_before_arrivals_and_those_before_timers() -> None:
    """A request that comes just as the device is free is served; one that is done at its deadline has met it."""
    seen: list[tuple[Event, list[Action]]] = []
    run = simulation(every(10, 2, timeout_ms=10), seen=seen)
    run.run()
    assert kinds(seen) == [
        "WorkerJoined", "ModelLoaded", "RequestArrived", "BatchFinished", "RequestArrived", "TimerFired",
        "BatchFinished", "TimerFired",
    ]  # fmt: skip
    (line,) = run.ledger.summary()
    assert line.outcomes["ok"] == 2


def test_a_run_in_pieces_is_the_same_run() -> None:
    whole: list[tuple[Event, list[Action]]] = []
    simulation(every(7, 50), seen=whole).run()
    pieces: list[tuple[Event, list[Action]]] = []
    run = simulation(every(7, 50), seen=pieces)
    for until_ms in range(0, 400, 13):
        run.run(until_ns=until_ms * MS)
        assert run.now_ns <= until_ms * MS
    run.run()
    assert pieces == whole
    assert run.steps == len(whole)
    assert run.arrived == 50


def test_nothing_is_heard_of_a_lost_device_and_its_work_is_done_elsewhere() -> None:
    seen: list[tuple[Event, list[Action]]] = []
    run = simulation(every(10, 4), devices=2, seen=seen)
    run.lose(1, 15 * MS)
    run.run()
    (line,) = run.ledger.summary()
    assert line.outcomes["ok"] == 4
    lost = next(i for i, (event, _) in enumerate(seen) if isinstance(event, WorkerLost))
    assert "RunBatch" in [type(a).__name__ for a in seen[lost][1]], "started again on the other at once"
    finished = [e for e, _ in seen if type(e).__name__ == "BatchFinished"]
    assert len(finished) == 4, "the lost device did not answer"


def test_time_only_goes_forward() -> None:
    seen: list[tuple[Event, list[Action]]] = []
    simulation(every(3, 200), devices=2, seen=seen).run()
    times = [event.at_ns for event, _ in seen]
    assert times == sorted(times)


def test_arrivals_that_go_back_are_refused() -> None:
    run = simulation(iter([RequestArrived(10 * MS, 0, 1, 0), RequestArrived(5 * MS, 0, 2, 0)]))
    with pytest.raises(ValueError, match="time went back"):
        run.run()
