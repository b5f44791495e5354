"""The controller's rules one by one: each test fails if the rule it is named after is changed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests.schedule.almost_first_come import AlmostFirstCome

from dovetail.control import (
    NEVER_NS,
    Action,
    BatchFailed,
    BatchFinished,
    Controller,
    EvictModel,
    LoadFailed,
    LoadModel,
    ModelLoaded,
    Policy,
    Reject,
    Reply,
    RequestArrived,
    RequestCancelled,
    RunBatch,
    SetTimer,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)
from dovetail.control.controller import MAX_ATTEMPTS
from dovetail.control.validate import validate
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.scale import Adjustment, LoadEverything
from dovetail.schedule import FirstCome, Hold, Offer, Scheduler
from dovetail.state import Cluster, Queue, Request, Worker, WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec, chain

SPEC = WorkerSpec("gpu", "gpu", ("model",), usd_per_hour=3600.0)


class Wishes:
    """A scaler that is told by the test what to say."""

    adjusts = True
    dry = False

    def manages(self, stage: StageSpec) -> bool:
        """Stages have no slices."""
        return False

    def __init__(self, residents: Sequence[str] = ()) -> None:
        self.residents_wanted = residents
        self.wish = Adjustment()
        self.asked: list[tuple[int, list[str]]] = []

    def residents(self, worker: Worker, stages: Sequence[StageSpec]) -> Sequence[StageSpec]:
        return [s for s in stages if s.name in self.residents_wanted]

    def adjust(self, cluster: Cluster, starved: Sequence[Queue], now_ns: int) -> Adjustment:
        self.asked.append((now_ns, [q.key for q in starved]))
        wish, self.wish = self.wish, Adjustment()
        return wish


def stage(name: str, batch: tuple[int, ...] = (1,), weights_bytes: int = 0, kind: str = "model") -> StageSpec:
    return StageSpec(name, kind, batch, model=name, weights_bytes=weights_bytes)


def controller(
    stages: Sequence[StageSpec],
    scaler: object = None,
    *,
    slo_ms: int = 100,
    planner: Scheduler | None = None,
) -> Controller:
    """One workflow for each stage; a batch of any size takes 10 ms."""
    points = (Point(1, 1, 10 * MS, 0.0, 1), Point(4, 1, 10 * MS, 0.0, 1))
    table = ProfileTable([Entry(s.name, "gpu", points=points) for s in stages])
    policy = Policy(
        planner or FirstCome(),
        scaler or LoadEverything(),  # type: ignore[arg-type]
        Estimator(table),
    )
    return Controller([chain(s.name, slo_ms * MS, [s]) for s in stages], policy)


def of(kind: type, actions: Sequence[Action]) -> list:  # type: ignore[type-arg]
    return [a for a in actions if isinstance(a, kind)]


def joined(c: Controller, *names: str, spec: WorkerSpec = SPEC, worker: int = 1) -> Controller:
    c.step(WorkerJoined(0, 0, worker, spec))
    for name in names:
        c.step(ModelLoaded(0, 0, worker, name, c.stages[name].weights_bytes))
    return c


def test_a_load_that_took_no_time_here_teaches_nothing_and_another_does() -> None:
    c = controller([stage("read", weights_bytes=1000)])
    c.step(WorkerJoined(0, 0, 1, SPEC))
    c.step(ModelLoaded(1, 0, 1, "read", 1000))
    assert c.policy.predictor.state().loads == ()
    c.step(ModelLoaded(2, 0, 1, "read", 1000, 7 * MS))
    assert [(row.weights, row.mean_ns) for row in c.policy.predictor.state().loads] == [("read", 7 * MS)]


def test_the_planner_is_told_of_every_request_that_is_over() -> None:
    class Told(AlmostFirstCome):
        def __init__(self) -> None:
            super().__init__()
            self.over: list[int] = []

        def closed(self, request: Request) -> None:
            self.over.append(request.id)

    planner = Told()
    c = joined(controller([stage("read")], planner=planner), "read")  # type: ignore[arg-type]
    (run,) = of(RunBatch, c.step(RequestArrived(1, 0, 5, 0)))
    c.step(RequestArrived(2, 0, 6, 0))
    c.step(BatchFinished(3, 0, run.batch, 1, 3))
    c.step(RequestCancelled(4, 0, 6))
    assert planner.over == [5, 6]


# -- windows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadlines_ms", "latest_ns"),
    [((50, 70), 70 * MS), ((70, 50), 70 * MS), ((50, 0), NEVER_NS), ((50, 50), 50 * MS)],
)
def test_a_batchs_window_ends_with_its_last_deadline(deadlines_ms: tuple[int, int], latest_ns: int) -> None:
    c = joined(controller([stage("read", (1, 4))]), "read")
    c.step(RequestArrived(0, 0, 1, 0))
    for request, ms in enumerate(deadlines_ms, start=2):
        c.step(RequestArrived(1, 0, request, 0, 0, 0, ms * MS))
    (run,) = of(RunBatch, c.step(BatchFinished(10 * MS, 1, 1, 0, 10 * MS)))
    assert [request for request, _, _ in run.items] == [2, 3]
    assert (run.earliest_ns, run.latest_ns) == (10 * MS, latest_ns)


# -- attempts -------------------------------------------------------------------------------------------------------


def test_a_request_fails_with_the_third_worker_that_it_takes_down_and_not_before() -> None:
    assert MAX_ATTEMPTS == 3
    c = controller([stage("read")])
    for worker in (1, 2, 3, 4):
        joined(c, "read", worker=worker)
    c.step(RequestArrived(0, 0, 1, 0))
    for lost in (1, 2):
        (run,) = of(RunBatch, c.step(WorkerLost(lost * MS, 0, lost, "killed")))
        assert run.worker == lost + 1, "it is tried again elsewhere"
        validate(c)
    (end,) = c.step(WorkerLost(3 * MS, 0, 3, "killed"))
    assert isinstance(end, Reject)
    assert (end.request, end.outcome) == (1, "failed")
    assert end.reason == "worker gpu was lost: killed"
    assert not c.requests


def test_whoever_was_in_a_batch_that_failed_runs_alone_from_then_on() -> None:
    c = joined(controller([stage("read", (1, 4))]), "read")
    c.step(RequestArrived(0, 0, 1, 0))
    for request in (2, 3):
        c.step(RequestArrived(1, 0, request, 0))
    (both,) = of(RunBatch, c.step(BatchFinished(10 * MS, 1, 1, 0, 10 * MS)))
    assert len(both.items) == 2
    (first,) = of(RunBatch, c.step(BatchFailed(20 * MS, 1, 2, 10 * MS, 20 * MS, "error", "raised")))
    assert first.items == ((2, 0, 0),)
    actions = c.step(BatchFailed(30 * MS, 1, 3, 20 * MS, 30 * MS, "error", "raised"))
    assert [a.outcome for a in of(Reject, actions)] == ["failed"], "alone, it is the culprit"
    assert [a.items for a in of(RunBatch, actions)] == [((3, 0, 0),)]


def test_a_refusal_costs_no_attempt_and_ends_only_what_is_past_its_deadline() -> None:
    c = joined(controller([stage("read", (1, 4))]), "read")
    c.step(RequestArrived(0, 0, 1, 0))
    c.step(RequestArrived(1, 0, 2, 0, 0, 0, 12 * MS))
    c.step(RequestArrived(1, 0, 3, 0))
    c.step(BatchFinished(10 * MS, 1, 1, 0, 10 * MS))
    batch = 2
    for _ in range(5):
        (run,) = of(RunBatch, c.step(BatchFailed(11 * MS, 1, batch, 11 * MS, 11 * MS, "too_late")))
        assert len(run.items) == 2, "they may still share a batch"
        batch = run.batch
    actions = c.step(BatchFailed(12 * MS, 1, batch, 12 * MS, 12 * MS, "too_late"))
    assert [(a.request, a.outcome) for a in of(Reject, actions)] == [(2, "expired")]
    assert [a.items for a in of(RunBatch, actions)] == [((3, 0, 0),)]


# -- models that come and go ----------------------------------------------------------------------------------------


def test_a_model_in_use_stays_whatever_the_scaler_says() -> None:
    scaler = Wishes(["read", "sort"])
    c = joined(controller([stage("read"), stage("sort")], scaler), "read", "sort")
    c.step(RequestArrived(0, 0, 1, 0))
    scaler.wish = Adjustment(evictions=((1, "read", "not needed"), (1, "sort", "not needed")))
    actions = c.step(RequestArrived(0, 0, 2, 0))
    assert of(EvictModel, actions) == [EvictModel(c.step_number, 1, "sort", "not needed")]
    assert set(c.workers[1].resident) == {"read"}
    validate(c)
    c.step(BatchFinished(10 * MS, 1, 1, 0, 10 * MS))
    c.step(BatchFinished(20 * MS, 1, 2, 10 * MS, 20 * MS))
    scaler.wish = Adjustment(evictions=((1, "read", "not needed"), (1, "sort", "is gone already")))
    actions = c.step(RequestCancelled(20 * MS, 0, 99))
    assert [(a.worker, a.stage) for a in of(EvictModel, actions)] == [(1, "read")], "now nobody uses it"
    assert c.workers[1].resident_bytes == 0
    validate(c)


def test_nothing_is_loaded_beyond_the_memory_and_what_fits_exactly_is() -> None:
    stages = [stage("a", weights_bytes=60), stage("b", weights_bytes=40), stage("c", weights_bytes=41)]
    scaler = Wishes(["a"])
    spec = WorkerSpec("gpu", "gpu", ("model",), memory_bytes=100)
    c = joined(controller(stages, scaler), spec=spec)
    scaler.wish = Adjustment(loads=((1, "c"), (1, "b")))
    actions = c.step(ModelLoaded(0, 0, 1, "a", 60))
    assert [a.stage for a in of(LoadModel, actions)] == ["b"], "60 and 41 are too much, 60 and 40 are not"
    validate(c)
    scaler.wish = Adjustment(loads=((1, "b"), (1, "a")))
    assert of(LoadModel, c.step(RequestCancelled(0, 0, 99))) == [], "one is there and one is on its way"
    c.step(LoadFailed(0, 0, 1, "b", "no such file"))
    assert c.workers[1].resident_bytes == 60
    validate(c)


def test_memory_that_an_eviction_gives_back_can_be_used_in_the_same_step() -> None:
    stages = [stage("a", weights_bytes=60), stage("c", weights_bytes=41)]
    scaler = Wishes(["a"])
    c = joined(controller(stages, scaler), "a", spec=WorkerSpec("gpu", "gpu", ("model",), memory_bytes=100))
    scaler.wish = Adjustment(loads=((1, "c"),), evictions=((1, "a", "make room"),))
    actions = c.step(RequestCancelled(0, 0, 99))
    assert [type(a) for a in actions] == [EvictModel, LoadModel]
    validate(c)


def test_a_worker_loads_only_what_it_can_run() -> None:
    scaler = Wishes()
    c = joined(controller([stage("read"), stage("crop", kind="python")], scaler))
    scaler.wish = Adjustment(loads=((1, "crop"), (1, "read")))
    assert [a.stage for a in of(LoadModel, c.step(RequestCancelled(0, 0, 99)))] == ["read"]


def test_a_worker_that_is_for_some_stages_is_given_no_others() -> None:
    scaler = Wishes(["read", "crop"])
    c = controller([stage("read"), stage("crop")], scaler)
    own, rest = (msgspec.structs.replace(SPEC, stages=(name,)) for name in ("read", "crop"))
    assert [a.stage for a in of(LoadModel, c.step(WorkerJoined(0, 0, 1, own)))] == ["read"]
    assert [a.stage for a in of(LoadModel, c.step(WorkerJoined(0, 0, 2, rest)))] == ["crop"]
    assert [a.stage for a in of(LoadModel, c.step(WorkerJoined(0, 0, 3, SPEC)))] == ["read", "crop"]
    c.step(ModelLoaded(0, 0, 1, "read", 0))
    scaler.wish = Adjustment(loads=((1, "crop"), (2, "crop")))
    assert of(LoadModel, c.step(RequestCancelled(0, 0, 99))) == [], "one may not, the other has it coming"
    c.step(RequestArrived(0, 0, 1, 0))
    c.step(RequestArrived(0, 0, 2, 1))
    assert [(b.queue.key, b.worker.id) for b in c.batches.values()] == [("read", 1)]
    validate(c)


def test_what_comes_and_ends_in_one_step_is_kept_until_the_next_ends() -> None:
    c = joined(controller([stage("read")]), "read")
    assert c.closed is None
    c.step(RequestArrived(0, 0, 1, 0))
    assert c.closed is None, "it is open"
    c.step(BatchFinished(10 * MS, 1, 1, 0, 10 * MS))
    assert c.closed is not None and (c.closed.id, c.closed.outcome) == (1, "ok")


def test_the_scaler_is_asked_when_work_waits_and_when_its_time_has_come() -> None:
    scaler = Wishes()
    c = joined(controller([stage("read")], scaler))
    scaler.wish = Adjustment(next_ns=50 * MS)
    (timer,) = of(SetTimer, c.step(RequestCancelled(1 * MS, 0, 99)))
    assert timer.at_ns == 50 * MS
    scaler.asked.clear()
    c.step(RequestCancelled(2 * MS, 0, 99))
    assert scaler.asked == [], "nothing waits, and its time has not come"
    c.step(RequestArrived(3 * MS, 0, 1, 0))
    assert scaler.asked == [(3 * MS, ["read"])], "work waits that nobody can run"
    scaler.wish = Adjustment(next_ns=60 * MS)
    assert of(SetTimer, c.step(TimerFired(50 * MS, 0, timer.timer)))[0].at_ns == 60 * MS
    validate(c)


# -- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end_ms", "outcome"), [(100, "ok"), (101, "late")])
def test_an_answer_is_late_only_after_its_objective(end_ms: int, outcome: str) -> None:
    c = joined(controller([stage("read")]), "read")
    c.step(RequestArrived(0, 0, 1, 0))
    (reply,) = of(Reply, c.step(BatchFinished(end_ms * MS, 1, 1, 0, end_ms * MS)))
    assert reply.outcome == outcome


def test_a_request_pays_its_part_of_the_time_that_its_batches_ran() -> None:
    c = joined(controller([stage("read", (1, 4))]), "read")
    c.step(RequestArrived(0, 0, 1, 0))
    for request in (2, 3):
        c.step(RequestArrived(1, 0, request, 0))
    (alone,) = of(Reply, c.step(BatchFinished(10 * MS, 1, 1, 0, 10 * MS)))
    together = of(Reply, c.step(BatchFinished(40 * MS, 1, 2, 10 * MS, 40 * MS, (), 20 * MS)))
    # A dollar a second: 10 ms of the device for the first; 20 ms at work for the two, whatever else passed.
    assert alone.cost_usd == pytest.approx(0.010)
    assert [reply.cost_usd for reply in together] == [pytest.approx(0.010)] * 2


@pytest.mark.parametrize(("deadline_ms", "outcomes"), [(5, ["expired"]), (6, [])])
def test_what_arrives_after_its_deadline_has_expired(deadline_ms: int, outcomes: list[str]) -> None:
    c = joined(controller([stage("read")]), "read")
    actions = c.step(RequestArrived(5 * MS, 0, 1, 0, 0, 0, deadline_ms * MS))
    assert [a.outcome for a in of(Reject, actions)] == outcomes
    assert len(of(RunBatch, actions)) == 1 - len(outcomes)


def test_what_expires_in_a_queue_leaves_it_and_the_next_has_its_turn() -> None:
    c = joined(controller([stage("read")]), "read")
    c.step(RequestArrived(0, 0, 1, 0))
    (timer,) = of(SetTimer, c.step(RequestArrived(0, 0, 2, 0, 0, 0, 5 * MS)))
    c.step(RequestArrived(0, 0, 3, 0))
    assert c.queues["read"].size == 2
    assert [(a.request, a.outcome) for a in of(Reject, c.step(TimerFired(5 * MS, 0, timer.timer)))] == [
        (2, "expired")
    ]
    assert c.queues["read"].size == 1
    validate(c)
    assert [a.items for a in of(RunBatch, c.step(BatchFinished(10 * MS, 1, 1, 0, 10 * MS)))] == [((3, 0, 0),)]


def test_shares_are_taken_when_a_batch_starts_and_given_back_once_when_it_ends() -> None:
    c = joined(controller([stage("read")], planner=FirstCome(share_pct=40)), "read")
    starts = [len(of(RunBatch, c.step(RequestArrived(0, 0, n, 0)))) for n in (1, 2, 3)]
    assert starts == [1, 1, 0]
    assert c.workers[1].free_pct == 20
    validate(c)
    assert len(of(RunBatch, c.step(BatchFinished(10 * MS, 1, 1, 0, 10 * MS)))) == 1
    c.step(BatchFinished(10 * MS, 1, 1, 0, 10 * MS))
    assert c.workers[1].free_pct == 20, "an answer that comes twice gives nothing back"
    validate(c)


def test_a_model_takes_the_bytes_that_its_worker_says_once_it_is_there() -> None:
    c = controller([stage("a", weights_bytes=60), stage("b", weights_bytes=30)], Wishes(["a", "b"]))
    c.step(WorkerJoined(0, 0, 1, WorkerSpec("gpu", "gpu", ("model",), memory_bytes=100)))
    assert c.workers[1].resident_bytes == 90, "as declared, from the moment that they are asked for"
    c.step(ModelLoaded(0, 0, 1, "a", 65))
    assert c.workers[1].resident_bytes == 95
    c.step(ModelLoaded(0, 0, 1, "b", 20))
    assert c.workers[1].resident_bytes == 85
    validate(c)


class Holding(AlmostFirstCome):
    """Holds everything until a given time."""

    def __init__(self, until_ns: int) -> None:
        super().__init__()
        self.until_ns = until_ns

    def offers(self, queue: Queue, now_ns: int) -> Sequence[Offer] | Hold:
        return Hold(self.until_ns, "a test says so") if now_ns < 5 * MS else self.plain.offers(queue, now_ns)


@pytest.mark.parametrize(("until_ns", "fails"), [(1 * MS, True), (1 * MS + 1, False)])
def test_a_hold_that_has_no_future_is_an_error(until_ns: int, fails: bool) -> None:
    c = joined(controller([stage("read")], planner=Holding(until_ns)), "read")
    if fails:
        with pytest.raises(ValueError, match="holds queue 'read' until the past"):
            c.step(RequestArrived(1 * MS, 0, 1, 0))
        return
    (timer,) = of(SetTimer, c.step(RequestArrived(1 * MS, 0, 1, 0)))
    assert (timer.at_ns, timer.reason) == (until_ns, "a test says so")


def test_a_hold_ends_with_its_time_whoever_says_so() -> None:
    c = joined(controller([stage("read")], planner=Holding(5 * MS)), "read")
    c.step(RequestArrived(1 * MS, 0, 1, 0))
    assert of(RunBatch, c.step(RequestCancelled(5 * MS - 1, 0, 99))) == []
    assert len(of(RunBatch, c.step(RequestCancelled(5 * MS, 0, 99)))) == 1
    validate(c)


def test_a_model_that_is_as_large_as_the_memory_is_loaded_when_its_worker_joins() -> None:
    stages = [stage("exact", weights_bytes=100), stage("larger", weights_bytes=101)]
    c = controller(stages, Wishes(["exact", "larger"]))
    actions = c.step(WorkerJoined(0, 0, 1, WorkerSpec("gpu", "gpu", ("model",), memory_bytes=100)))
    assert [a.stage for a in of(LoadModel, actions)] == ["exact"]
    validate(c)
