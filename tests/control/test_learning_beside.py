"""What batches beside others teach is learned beside decisions, and none of it is lost."""

from __future__ import annotations

from typing import Any

from tests.schedule.test_in_slices import World

from dovetail.control import BatchFinished, Controller, ModelLoaded, Policy, RequestArrived, RunBatch, WorkerJoined
from dovetail.control.controller import LEARN, UNLEARNED
from dovetail.predict import Estimator
from dovetail.predict.interference import Beside, Interference, fetch
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.scale import LoadEverything
from dovetail.schedule import FirstCome
from dovetail.state import WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec, chain


class Told:
    """An estimator that notes of how many neighbours it is told."""

    def __init__(self) -> None:
        table = ProfileTable([Entry("m", "gpu", points=(Point(1, 1, 10 * MS, 0.0, 1),))])
        self._own = Estimator(table, interference=Interference())
        self.told: list[int] = []
        self.beside: list[list[Beside]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def observe_run(
        self, stage: Any, kind: str, items: int, config: Any, ns: int, beside: Any = (), *more: Any
    ) -> None:
        self.told.append(len(beside))
        self.beside.append(list(beside))


def served(requests: int) -> tuple[Controller, Told, list[int]]:
    """One device that runs two batches at a time, and so many requests at once; the batches that have begun."""
    told = Told()
    controller = Controller(
        [chain("w", 1000 * MS, [StageSpec("m", "model", (1,), model="m")])],
        Policy(FirstCome(share_pct=50), LoadEverything(), told),  # type: ignore[arg-type]
    )
    controller.step(WorkerJoined(0, 0, 1, WorkerSpec("gpu", "gpu", ("model",))))
    controller.step(ModelLoaded(0, 0, 1, "m", 0))
    begun: list[int] = []
    for number in range(1, requests + 1):
        begun += [a.batch for a in controller.step(RequestArrived(0, 0, number, 0)) if isinstance(a, RunBatch)]
    return controller, told, begun


def run(controller: Controller, begun: list[int]) -> list[tuple[bool, int]]:
    """End all batches in turn: of each step whether it started another, and how many wait to be learned of."""
    seen = []
    at_ns = 0
    while begun:
        at_ns += 5 * MS
        end = BatchFinished(at_ns, 0, begun.pop(0), max(0, at_ns - 10 * MS), at_ns)
        started = [a.batch for a in controller.step(end) if isinstance(a, RunBatch)]
        begun += started
        seen.append((bool(started), len(controller._unlearned)))
    return seen


def test_a_step_that_starts_a_batch_learns_nothing_of_neighbours_and_one_that_starts_none_does() -> None:
    controller, told, begun = served(6)
    steps = run(controller, begun)
    assert [started for started, _ in steps] == [True] * 4 + [False] * 2
    assert max(waiting for started, waiting in steps if started) > 0, "somebody ran beside somebody"
    assert steps[-1][1] == 0
    assert sum(beside > 0 for beside in told.told) == 6


def test_what_waits_to_be_learned_is_bounded_where_every_step_starts_something() -> None:
    controller, told, begun = served(3 * UNLEARNED)
    steps = run(controller, begun)
    waiting = max(count for _, count in steps)
    assert UNLEARNED <= waiting <= UNLEARNED + LEARN
    assert len(told.told) + steps[-1][1] == 3 * UNLEARNED


def test_a_model_that_came_while_a_batch_ran_is_told_of_as_its_neighbour() -> None:
    controller, told, begun = served(1)
    controller.step(ModelLoaded(7 * MS, 0, 1, "m", 0, 5 * MS))
    assert told.told == []
    controller.step(BatchFinished(10 * MS, 0, begun[0], 0, 10 * MS))
    assert told.beside == [[Beside(fetch("m", 5 * MS), 2 * MS, 7 * MS)]]


def test_a_batch_that_ended_while_a_model_was_on_its_way_is_told_of_when_it_has_come() -> None:
    controller, told, begun = served(1)
    controller.workers[1].loading["n"] = 0
    controller.step(BatchFinished(10 * MS, 0, begun[0], 0, 10 * MS))
    assert told.told == [], "when the load began is not known yet"
    del controller.workers[1].loading["n"]
    controller.step(ModelLoaded(12 * MS, 0, 1, "m", 0, 5 * MS))
    assert told.beside == [[Beside(fetch("m", 5 * MS), 7 * MS, 12 * MS)]]


def test_batches_in_slices_are_told_of_with_their_neighbours() -> None:
    """Two stages with slices of half of the device each; both batches were at work all the time."""
    world = World(("look", 50, 100, 1), ("read", 50, 100, 1), limits=True, interference=Interference())
    first = {run.stage: run.batch for run in world.started}
    first |= {run.stage: run.batch for run in world.ask("read")}
    assert first.keys() == {"look", "read"}
    told: list[list[Beside]] = []

    def observe(stage: Any, kind: str, items: int, config: Any, ns: int, beside: Any = (), *more: Any) -> None:
        told.append(list(beside))

    world.controller._observe_run = observe  # type: ignore[method-assign]
    world.step(BatchFinished(20 * MS, 0, first["look"], 0, 20 * MS))
    world.step(BatchFinished(21 * MS, 0, first["read"], 1 * MS, 21 * MS))
    assert [[(b.load.model, b.begin_ns, b.end_ns) for b in beside] for beside in told] == [
        [("read", 1 * MS, 21 * MS)],
        [("look", -1 * MS, 19 * MS)],
    ]
