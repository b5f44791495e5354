"""What the controller makes of a scaler's wishes: a scripted scaler says them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dovetail.control import (
    Action,
    BatchFinished,
    Controller,
    Event,
    ModelLoaded,
    RequestArrived,
    RunBatch,
    SetSlice,
    SliceChanged,
    StartWorker,
    StopWorker,
    WorkerJoined,
    WorkerLost,
)
from dovetail.control.validate import validate
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.scale import Adjustment, SliceWish
from dovetail.schedule import PlannerSettings
from dovetail.state import Cluster, Queue, Worker, WorkerSpec
from dovetail.units import MS, SECOND
from dovetail.wiring import PolicySpec, ScaleSpec, make_controller, own_policy
from dovetail.workflow.graph import StageSpec, chain

STAGE = StageSpec("look", "model", (1,))
#: It declares its own slice.
HELD = StageSpec("held", "model", (1,), quota_pct=50)
SPEC = WorkerSpec("gpu", "gpu", ("model",))


class Scripted:
    """Wishes what it is told to, once."""

    adjusts = True
    dry = False

    def __init__(self) -> None:
        self.wish = Adjustment()

    def manages(self, stage: StageSpec) -> bool:
        return stage.name == "look"

    def residents(self, worker: Worker, stages: Sequence[StageSpec]) -> Sequence[StageSpec] | None:
        return stages

    def adjust(self, cluster: Cluster, starved: Sequence[Queue], now_ns: int) -> Adjustment:
        wish, self.wish = self.wish, Adjustment()
        return wish


class World:
    """A controller with two workers that have the model."""

    def __init__(self, max_open: int = 100) -> None:
        self.scaler = Scripted()
        table = ProfileTable([Entry("look", "gpu", points=(Point(1, 1, 10 * MS, 0.0, 1),))])
        policy = own_policy(Estimator(table), PlannerSettings(goal="time", max_open=max_open), scaler=self.scaler)
        self.controller = Controller([chain("flow", SECOND, [STAGE]), chain("own", SECOND, [HELD])], policy)
        for worker in (1, 2):
            self.step(WorkerJoined(0, 0, worker, SPEC))
            self.step(ModelLoaded(0, 0, worker, "look", 0))
            self.step(ModelLoaded(0, 0, worker, "held", 0))

    def step(self, event: Event, wish: Adjustment | None = None) -> list[Action]:
        self.scaler.wish = wish or Adjustment()
        actions = self.controller.step(event)
        validate(self.controller)
        return actions


def open_on(worker: int, piece: int = 0, quota_pct: int = 100) -> Adjustment:
    return Adjustment(slices=(SliceWish("look", worker, 50 if quota_pct else 0, quota_pct, 1, "test", piece),))


def runs(actions: list[Action]) -> list[RunBatch]:
    return [a for a in actions if isinstance(a, RunBatch)]


def test_work_waits_for_a_slice_and_starts_in_the_step_that_opens_one() -> None:
    w = World()
    assert runs(w.step(RequestArrived(MS, 0, 1, 0))) == []
    (run,) = runs(w.step(RequestArrived(2 * MS, 0, 2, 0), open_on(1)))
    assert (run.worker, run.share_pct, run.quota_pct, run.client) == (1, 50, 100, "look#1")


def test_a_device_that_is_to_go_runs_its_batch_to_the_end_and_gets_no_other() -> None:
    w = World()
    (run,) = runs(w.step(RequestArrived(MS, 0, 1, 0), open_on(1)))
    actions = w.step(RequestArrived(2 * MS, 0, 2, 0), Adjustment(drains=((1, "not needed"),)))
    assert [type(a) for a in actions] == [SetSlice], "its slice closes, and the device does not stop"
    assert runs(w.step(RequestArrived(3 * MS, 0, 3, 0))) == []
    actions = w.step(BatchFinished(12 * MS, 0, run.batch, MS, 11 * MS))
    assert any(a == StopWorker(a.cause, 1, "not needed") for a in actions if isinstance(a, StopWorker))
    assert list(w.controller.workers) == [2] and not w.controller.cluster.slices["look"]
    (moved,) = runs(w.step(RequestArrived(13 * MS, 0, 4, 0), open_on(2)))
    assert moved.worker == 2 and moved.items[0][0] == 2, "who waited goes on elsewhere"


def test_a_slice_that_is_closed_is_gone_when_its_batch_has_ended() -> None:
    w = World()
    (run,) = runs(w.step(RequestArrived(MS, 0, 1, 0), open_on(1)))
    w.step(RequestArrived(2 * MS, 0, 2, 0), open_on(1, piece=1, quota_pct=0))
    assert list(w.controller.cluster.slices["look"]) == [1]
    w.step(BatchFinished(12 * MS, 0, run.batch, MS, 11 * MS))
    assert not w.controller.cluster.slices["look"] and len(w.controller.requests) == 1


def test_requests_that_are_refused_count_as_asked_for() -> None:
    w = World(max_open=1)
    for number in (1, 2, 3):
        w.step(RequestArrived(number * MS, 0, number, 0))
    (queue,) = [q for q in w.controller.queues.values() if q.stage is STAGE]
    assert (queue.arrived, queue.size) == (3, 1)


def started(actions: list[Action]) -> int:
    return sum(isinstance(a, StartWorker) for a in actions)


def test_a_lost_worker_that_is_started_again_anyway_is_not_asked_for() -> None:
    both = Adjustment(devices=2, reason="test")
    w = World()
    assert started(w.step(WorkerLost(MS, 0, 1, "killed"), both)) == 1, "nobody else would start it"
    w = World()
    assert started(w.step(WorkerLost(MS, 0, 1, "killed", replaced=True), both)) == 0
    assert started(w.step(WorkerJoined(2 * MS, 0, 3, SPEC), both)) == 0
    assert started(w.step(WorkerLost(3 * MS, 0, 2, "taken away"), both)) == 1, "and it is counted once"


def test_a_stage_whose_worker_is_to_go_may_run_elsewhere() -> None:
    w = World()
    w.step(SliceChanged(MS, 0, "held", 100, 50, 1))
    (run,) = runs(w.step(RequestArrived(2 * MS, 0, 1, 1), Adjustment(drains=((1, "not needed"),))))
    assert run.worker == 1
    (run,) = runs(w.step(RequestArrived(3 * MS, 0, 2, 1)))
    assert run.worker == 2, "its home is to go"


def test_workers_of_a_server_that_starts_are_not_asked_for() -> None:
    scale = ScaleSpec(least=2, most=3, slices=False, started=2)
    graphs = [chain("flow", SECOND, [STAGE])]
    entries = [Entry("look", "gpu", points=(Point(1, 1, 10 * MS, 0.0, 1),))]
    controller = make_controller(graphs, PolicySpec(scale=scale), entries, 1)
    assert [started(controller.step(WorkerJoined(i * MS, 0, i, SPEC))) for i in (1, 2)] == [0, 0]
    alone = PolicySpec(scale=msgspec.structs.replace(scale, started=0))
    assert started(make_controller(graphs, alone, entries, 1).step(WorkerJoined(MS, 0, 1, SPEC))) == 1
