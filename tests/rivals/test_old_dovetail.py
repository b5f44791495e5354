"""The old planner: it is kept for what it did, its faults included."""

from __future__ import annotations

from tests.rivals.support import arrival, curve, market, workflow

from dovetail.control import (
    Action,
    BatchFinished,
    Controller,
    ModelLoaded,
    Policy,
    Reject,
    RequestArrived,
    RunBatch,
    WorkerJoined,
)
from dovetail.lab.rivals.old_demand import STEP_NS, Demand
from dovetail.lab.rivals.old_dovetail import OldDovetailPlanner
from dovetail.scale import LoadEverything
from dovetail.state import Config, Queue, Worker, WorkerSpec
from dovetail.wiring import PolicySpec, make_policy
from dovetail.workflow.graph import StageSpec


def controller(slo_ms: float, batches: tuple[int, ...] = (1, 2), spread: float = 0.0) -> Controller:
    graph = workflow("w", slo_ms, {"read": batches})
    m = market({"read": curve({b: 10 + 2 * b for b in batches})}, spread=spread, cpus=(1,))
    policy = Policy(OldDovetailPlanner(m.predictor, m.space), LoadEverything(), m.predictor)
    made = Controller([graph], policy)
    made.step(WorkerJoined(0, 0, 1, m.worker(graph.stages[0])))
    made.step(ModelLoaded(0, 0, 1, "read", 0))
    return made


def runs(actions: list[Action]) -> list[RunBatch]:
    return [action for action in actions if isinstance(action, RunBatch)]


def test_a_larger_batch_is_waited_for_when_arrivals_are_known_and_it_is_cheaper() -> None:
    made = controller(1000)
    sizes: list[int] = []
    for i in range(1, 9):
        for event in (BatchFinished(round((300 * i - 1) * 1e6), 0, len(sizes), 0, 1), arrival(300 * i, i)):
            if isinstance(event, BatchFinished) and not event.batch:
                continue
            sizes += [len(run.items) for run in runs(made.step(event))]
    assert sizes[:4] == [1, 1, 1, 1], "nothing is known of arrivals yet"
    assert 2 in sizes


def test_a_percentile_longer_than_the_objective_is_refused_although_the_mean_is_not() -> None:
    assert not _rejected(controller(14).step(arrival(0, 1)))
    assert _rejected(controller(14, spread=0.2).step(arrival(0, 1)))


def test_more_work_than_can_be_done_by_an_objective_is_refused() -> None:
    made = controller(60)
    refused = [i for i in range(1, 9) if _rejected(made.step(arrival(0, i)))]
    assert refused, "each takes 7 ms at least, and nine tenths of 60 ms are 54"
    assert refused[0] > 4
    high = [_rejected(made.step(RequestArrived(0, 0, 99, 0, 1)))]
    assert high == [True], "of one class all count"


def test_it_does_not_ask_what_a_worker_holds() -> None:
    m = market({"read": curve({1: 10})})
    scheduler = make_policy(PolicySpec("old-dovetail"), m.predictor, 1).scheduler
    assert isinstance(scheduler, OldDovetailPlanner)
    tight, roomy = (Worker(n, WorkerSpec(f"w{n}", "gpu", ("model",))) for n in (1, 2))
    tight.free_pct, tight.swaps, roomy.swaps = 60, True, True
    roomy.resident["read"] = 1
    queue = Queue("read", StageSpec("read", "model", (1,), model="read", weights_bytes=1))
    assert scheduler.place(queue, Config(1, 1, 50), {1: tight, 2: roomy}) is tight
    assert scheduler.hopeless(10**12) == (), "nobody is given up"


def test_demand_by_class_and_deadline() -> None:
    demand = Demand()
    demand.add(1, 1, 10 * STEP_NS, 100)
    demand.add(2, 2, 5 * STEP_NS, 30)
    demand.add(3, 2, 20 * STEP_NS, 7)
    assert demand.due_by(10 * STEP_NS, 1) == 100, "a lower class does not count"
    assert demand.due_by(10 * STEP_NS, 2) == 130, "nor does what is due later"
    assert demand.due_by(9 * STEP_NS, 2) == 30
    demand.done(1, 40)
    assert demand.due_by(10 * STEP_NS, 1) == 60
    demand.done(1, 400)
    assert demand.due_by(10 * STEP_NS, 1) == 0, "no more than there is"
    demand.remove(2)
    assert 2 not in demand
    assert demand.due_by(99 * STEP_NS, 2) == 7


def _rejected(actions: list[Action]) -> bool:
    return any(isinstance(action, Reject) for action in actions)
