"""Items that are sent ahead to workers that keep queues: the exact actions, with a router that does as it is told."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.control import (
    NEVER_NS,
    BatchFailed,
    BatchFinished,
    Controller,
    LoadModel,
    ModelEvicted,
    ModelLoaded,
    PeerStateReceived,
    Policy,
    Reject,
    Reply,
    RequestArrived,
    RunBatch,
    WorkerJoined,
    WorkerLost,
)
from dovetail.control.controller import MAX_REFUSALS
from dovetail.control.validate import validate
from dovetail.lab.rivals.routed import RoutedScheduler
from dovetail.place import Hint, Route
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.scale import FetchOnDemand
from dovetail.state import Batch, Item, Request, Worker, WorkerRow, WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import Graph, StageSpec, chain

KEEPS = WorkerSpec("gpu", "gpu", ("model",), usd_per_hour=3600.0)
HOST = WorkerSpec("host", "host", ("python",))


class Told:
    """Sends every item to the first of the workers that are there, and notes what it hears."""

    def __init__(self, latest_ns: int = 0, hints: Sequence[Hint] = ()) -> None:
        self.latest_ns = latest_ns
        self.hinted = hints
        self.here: list[int] = []
        self.heard_of: list[object] = []

    def joined(self, worker: Worker) -> None:
        self.here.append(worker.id)

    def lost(self, worker: Worker) -> None:
        self.here.remove(worker.id)

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        self.heard_of.extend(rows)

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:
        self.heard_of.append((worker.id, weights, here))

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        return self.hinted

    def route(self, item: Item, now_ns: int) -> Route | None:
        return Route(self.here[0], self.latest_ns, order=7, reason="told so") if self.here else None

    def started(self, batch: Batch, now_ns: int) -> None:
        self.heard_of.append(("sent", batch.id))

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        self.heard_of.append(("ended", batch.id, done))

    def closed(self, request: Request) -> None:
        self.heard_of.append(("closed", request.id))


def controller(router: Told, *stages: StageSpec) -> Controller:
    graph: Graph = chain("flow", 100 * MS, stages or (StageSpec("a", "model"), StageSpec("b", "model")))
    entries = [
        Entry(s.name, "host" if s.on_host else "gpu", points=(Point(1, 1, 10 * MS, 0.0, 1),)) for s in graph.stages
    ]
    policy = Policy(RoutedScheduler(router), FetchOnDemand(), Estimator(ProfileTable(entries)))
    return Controller([graph], policy)


def run(
    cause: int,
    batch: int,
    stage: str,
    node: int,
    now_ms: int,
    *,
    due_ms: int = 100,
    follows: bool = False,
    worker: int = 1,
    accept_ns: int = 0,
) -> RunBatch:
    """A batch of the one item of request 1, which should be answered at `due_ms`."""
    return RunBatch(
        cause,
        batch,
        worker,
        stage,
        ((1, node, 0),),
        1,
        100,
        now_ms * MS,
        NEVER_NS,
        10 * MS,
        order=7,
        reason="told so",
        accept_ns=accept_ns,
        objective_ns=due_ms * MS,
        follows=follows,
    )


def test_an_item_goes_to_its_worker_at_once_and_waits_there() -> None:
    router = Told(hints=[Hint(2, "b")])
    c = controller(router)
    c.step(WorkerJoined(0, 0, 1, KEEPS))
    c.step(WorkerJoined(0, 0, 2, KEEPS))
    assert c.step(RequestArrived(5 * MS, 0, 1, 0)) == [
        LoadModel(3, 2, "b", keep=False),
        run(3, 1, "a", 0, 5, due_ms=105, follows=True),
    ]
    validate(c)
    assert c.step(BatchFinished(20 * MS, 3, 1, 9 * MS, 19 * MS)) == [run(4, 2, "b", 1, 20, due_ms=105)]
    (reply,) = c.step(BatchFinished(30 * MS, 4, 2, 20 * MS, 30 * MS))
    assert isinstance(reply, Reply) and reply.outcome == "ok" and reply.arrived_ns == 5 * MS
    assert reply.cost_usd == 0.02
    assert router.heard_of == [("sent", 1), ("ended", 1, True), ("sent", 2), ("ended", 2, True), ("closed", 1)]
    validate(c)


def test_two_batches_may_wait_at_one_worker_whose_shares_are_its_own_business() -> None:
    c = controller(Told(), StageSpec("a", "model"))
    c.step(WorkerJoined(0, 0, 1, KEEPS))
    c.step(RequestArrived(0, 0, 1, 0))
    c.step(RequestArrived(0, 0, 2, 0))
    assert len(c.workers[1].running) == 2
    validate(c)


def test_a_worker_that_is_too_busy_refuses_and_the_item_is_routed_again_until_one_must_take_it() -> None:
    router = Told(latest_ns=30 * MS)
    c = controller(router, StageSpec("a", "model"))
    c.step(WorkerJoined(0, 0, 1, KEEPS))
    assert c.step(RequestArrived(0, 0, 1, 0)) == [run(2, 1, "a", 0, 0, accept_ns=30 * MS)]
    for refusal in range(1, MAX_REFUSALS + 1):
        window = 30 * MS if refusal < MAX_REFUSALS else 0
        actions = c.step(BatchFailed(MS, refusal + 1, refusal, MS, MS, "too_late", "busy"))
        assert actions == [run(refusal + 2, refusal + 1, "a", 0, 1, accept_ns=window)]
        validate(c)
    assert c.requests[1].outcome == ""


def test_a_request_that_no_worker_can_start_before_its_deadline_ends_there_and_then() -> None:
    c = controller(Told(), StageSpec("a", "model"))
    c.step(WorkerJoined(0, 0, 1, KEEPS))
    c.step(RequestArrived(0, 0, 1, 0, deadline_ns=50 * MS))
    for refusal in range(1, MAX_REFUSALS + 1):
        c.step(BatchFailed(MS, refusal + 1, refusal, MS, MS, "too_late", "busy"))
    (reject,) = c.step(BatchFailed(MS, 0, MAX_REFUSALS + 1, MS, MS, "too_late", "busy"))
    assert isinstance(reject, Reject)
    assert (reject.outcome, reject.reason) == ("expired", "no worker could start it before its deadline")


def test_what_a_lost_worker_had_goes_to_another_and_waits_here_while_there_is_none() -> None:
    router = Told()
    c = controller(router, StageSpec("a", "model"))
    c.step(WorkerJoined(0, 0, 1, KEEPS))
    c.step(RequestArrived(0, 0, 1, 0))
    assert c.step(WorkerLost(MS, 0, 1, "switched off")) == []
    assert c.queues["a"].size == 1
    validate(c)
    assert c.step(WorkerJoined(2 * MS, 0, 2, KEEPS)) == [run(4, 2, "a", 0, 2, worker=2)]
    validate(c)


def test_python_stages_wait_here_for_host_workers() -> None:
    c = controller(Told(), StageSpec("crop", "python"), StageSpec("a", "model"))
    c.step(WorkerJoined(0, 0, 1, KEEPS))
    assert c.step(RequestArrived(0, 0, 1, 0)) == []
    assert c.step(WorkerJoined(0, 0, 2, HOST)) == [LoadModel(3, 2, "crop", keep=True)]
    (batch,) = c.step(ModelLoaded(0, 3, 2, "crop", 0))
    assert isinstance(batch, RunBatch) and (batch.worker, batch.stage, batch.order) == (2, "crop", 0)
    assert c.step(BatchFinished(MS, 4, 1, 0, MS)) == [run(5, 2, "a", 1, 1)]


def test_what_workers_and_the_table_say_reaches_the_router_by_the_name_of_the_weights() -> None:
    router = Told()
    c = controller(router, StageSpec("a", "model", model="m"), StageSpec("b", "model", model="m"))
    c.step(WorkerJoined(0, 0, 1, KEEPS))
    c.step(ModelLoaded(1, 0, 1, "b", 100))
    assert c.workers[1].resident == {"m": 100}
    row = WorkerRow(1, 1, 0, 1, ("m",), 0)
    c.step(PeerStateReceived(2, 0, (row,)))
    c.step(ModelEvicted(3, 0, 1, "m", 100, "room for another"))
    assert c.workers[1].resident == {}
    assert router.heard_of == [(1, "m", True), row, (1, "m", False)]
