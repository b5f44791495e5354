"""The story of a request says what happened to it, where its time went, and why it ended as it did."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.record.recorded import document, plain, run
from tests.record.test_follow import SPECS
from tests.schedule.almost_first_come import AlmostFirstCome

from dovetail.control import (
    Action,
    BatchFailed,
    BatchFinished,
    Controller,
    DrainStarted,
    Event,
    EvictModel,
    LoadFailed,
    ModelLoaded,
    Policy,
    Reject,
    Reply,
    RequestArrived,
    RequestCancelled,
    RequestRefused,
    RunBatch,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.record.log import Step
from dovetail.record.story import Story, UnknownRequest, story
from dovetail.record.worst import worst
from dovetail.scale import LoadEverything
from dovetail.schedule import FirstCome, Hold, Offer, Refusal, Scheduler
from dovetail.state import Cluster, Queue, Request, WorkerSpec
from dovetail.units import MS
from dovetail.wiring import PolicySpec
from dovetail.workflow.graph import Graph, StageSpec, chain

READ = StageSpec("read", "model", (1, 4), model="m")
SAY = StageSpec("say", "model", (1,), model="m")
TABLE = ProfileTable([Entry(s, "gpu", points=(Point(1, 1, 10 * MS, 0.0, 1),)) for s in ("read", "say")])


class Scene:
    """A controller that is told events one by one; times are milliseconds."""

    def __init__(self, graph: Graph, planner: Scheduler | None = None) -> None:
        self.graphs = [graph]
        policy = Policy(planner or FirstCome(), LoadEverything(), Estimator(TABLE))
        self.controller = Controller(self.graphs, policy)
        self.steps: list[Step] = []

    def tell(self, event: Event, note: str = "", also: Sequence[Action] = ()) -> list[Action]:
        actions = [*self.controller.step(event), *also]
        self.steps.append(Step(event, actions, note))
        return actions

    def join(self, worker: int = 1, at_ms: int = 0, load: bool = True) -> None:
        actions = self.tell(WorkerJoined(at_ms * MS, 0, worker, WorkerSpec(f"gpu{worker}", "gpu", ("model",))))
        for action in actions if load else []:
            self.tell(ModelLoaded(at_ms * MS, 0, worker, action.stage, 0))  # type: ignore[union-attr]

    def arrive(self, at_ms: int, request: int, deadline_ms: int = 0, note: str = "") -> None:
        self.tell(RequestArrived(at_ms * MS, 0, request, 0, deadline_ns=deadline_ms * MS), note)

    def finish(self, batch: int, begin_ms: int, end_ms: int, at_ms: int = 0) -> None:
        self.tell(BatchFinished((at_ms or end_ms) * MS, 0, batch, begin_ms * MS, end_ms * MS))

    def story(self, request: int | str) -> Story:
        return story(self.steps, request, self.graphs)


def one_stage(slo_ms: int = 15) -> Graph:
    return chain("ask", slo_ms * MS, [READ])


def texts(told: Story) -> list[str]:
    return [f"{m.at_ns // MS} #{m.step} {m.text}" for m in told.moments]


def test_a_request_that_waited_for_a_busy_worker() -> None:
    scene = Scene(one_stage())
    scene.join()
    scene.arrive(0, 1)
    scene.arrive(4, 2, note="mine")
    scene.arrive(5, 3)
    scene.finish(1, 0, 10)
    scene.finish(2, 10, 22)
    told = scene.story(2)
    assert told.verdict == (
        "late by 3 ms: waited 6 ms for stage read, whose worker gpu1 was busy with batch 1 of stage read"
    )
    assert texts(told) == [
        "4 #4 arrived for ask, class 1: objective 15 ms",
        "4 #4 1 item queued for read",
        "10 #6 1 item of read sent to gpu1 in batch 2 with 1 item of 1 other request, after waiting 6 ms",
        "22 #7 batch 2 of read on gpu1 finished: ran 12 ms, expected 20 ms",
        "22 #7 answered, late",
    ]
    assert (told.client_id, told.workflow, told.priority, told.outcome) == ("mine", "ask", 1, "late")
    (leg,) = told.path
    assert (leg.waiting_ns, leg.transport_ns, leg.running_ns, leg.expected_ns) == (6 * MS, 0, 12 * MS, 20 * MS)
    assert scene.story("mine") == told


def test_a_request_that_did_not_wait() -> None:
    scene = Scene(chain("ask", 50 * MS, [READ, SAY]))
    scene.join()
    scene.arrive(0, 1)
    scene.finish(1, 0, 10)
    scene.finish(2, 10, 20)
    told = scene.story(1)
    assert told.verdict == (
        "answered in 20 ms, 30 ms before its objective: it hardly waited, and stage read ran 10 ms of it"
    )
    assert [leg.name for leg in told.path] == ["read", "say"]


def test_a_run_longer_than_the_objective_is_nobodys_fault() -> None:
    scene = Scene(one_stage(slo_ms=8))
    scene.join()
    scene.arrive(0, 1)
    scene.finish(1, 0, 10)
    assert scene.story(1).verdict == "late by 2 ms: its run time alone, 10 ms, is longer than its objective"


def test_a_slow_run_and_a_slow_way() -> None:
    scene = Scene(one_stage())
    scene.join()
    scene.arrive(0, 1)
    scene.finish(1, 0, 30)
    scene.arrive(30, 2)
    scene.finish(2, 40, 50, at_ms=55)
    assert scene.story(1).verdict == (
        "late by 15 ms: ran 20 ms longer than expected in stage read (batch 1: 30 ms, not 10 ms)"
    )
    assert scene.story(2).verdict == "late by 10 ms: 15 ms on the way to workers and back for stage read"


def test_clocks_that_differ_do_not_break_the_sum() -> None:
    scene = Scene(one_stage())
    scene.join()
    scene.arrive(5, 1)
    scene.tell(BatchFinished(20 * MS, 0, 1, 1 * MS, 90 * MS))
    (leg,) = scene.story(1).path
    assert (leg.waiting_ns, leg.transport_ns, leg.running_ns) == (0, 0, 15 * MS)


def test_a_model_that_was_not_there_yet() -> None:
    scene = Scene(one_stage())
    scene.join(load=False)
    scene.arrive(1, 1)
    scene.tell(ModelLoaded(9 * MS, 0, 1, "read", 0))
    scene.finish(1, 9, 19)
    told = scene.story(1)
    assert told.verdict == "late by 3 ms: waited 8 ms for stage read, whose model no worker held"
    assert "9 #3 gpu1 has loaded the model of read" in texts(told)


def test_a_worker_that_came_instead_of_a_lost_one() -> None:
    scene = Scene(one_stage())
    scene.join(1)
    scene.arrive(0, 1)
    scene.arrive(0, 2)
    scene.tell(WorkerLost(1 * MS, 0, 1, "gone"))
    scene.join(2, at_ms=10)
    scene.finish(2, 10, 20)
    scene.finish(3, 20, 30)
    assert scene.story(1).verdict == "late by 5 ms: waited 9 ms for stage read, whose model no worker held"
    assert scene.story(2).verdict == (
        "late by 15 ms: waited 20 ms for stage read, whose worker gpu2 was busy with batch 2 of stage read"
    )


def test_loads_and_evictions_of_its_models_are_part_of_it() -> None:
    scene = Scene(one_stage())
    scene.join(1)
    scene.arrive(1, 1)
    scene.join(2, at_ms=2, load=False)
    scene.tell(LoadFailed(3 * MS, 0, 2, "read", "no room"), also=[EvictModel(6, 1, "read", "look-ahead: 3 unused")])
    told = texts(scene.story(1))
    assert "2 #4 gpu2 joined" in told
    assert "2 #4 gpu2 was asked to load the model of read" in told
    assert "3 #5 gpu2 could not load the model of read: no room" in told
    assert "3 #5 gpu1 was asked to evict the model of read: look-ahead: 3 unused" in told


class Patient(AlmostFirstCome):
    """Holds every batch for 5 ms."""

    def offers(self, queue: Queue, now_ns: int) -> Sequence[Offer] | Hold:
        head = queue.head()
        if head is not None and now_ns < head.queued_ns + 5 * MS:
            return Hold(head.queued_ns + 5 * MS, "waiting for company")
        return self.plain.offers(queue, now_ns)


def test_a_policy_that_held_it_back() -> None:
    scene = Scene(one_stage(slo_ms=12), Patient())
    scene.join()
    scene.arrive(0, 1)
    scene.tell(TimerFired(5 * MS, 0, 1))
    scene.finish(1, 5, 15)
    assert scene.story(1).verdict == "late by 3 ms: waited 5 ms for stage read, which its policy held back"


def test_a_lost_worker_and_a_second_attempt() -> None:
    scene = Scene(one_stage(slo_ms=20))
    scene.join(1)
    scene.join(2)
    scene.arrive(0, 1)
    scene.tell(WorkerLost(13 * MS, 0, 1, "the process died"))
    scene.finish(2, 13, 23)
    told = scene.story(1)
    assert told.verdict == (
        "late by 3 ms: 13 ms lost in batches that failed in stage read (worker gpu1 was lost: the process died)"
    )
    assert texts(told)[2:6] == [
        "0 #5 1 item of read sent to gpu1 in batch 1, at once",
        "13 #6 gpu1 was lost: the process died",
        "13 #6 batch 1 of read on gpu1 failed: worker gpu1 was lost: the process died",
        "13 #6 1 item queued again for read",
    ]
    assert [(leg.batch, bool(leg.failed)) for leg in told.path] == [(1, True), (2, False)]


def test_one_that_failed_alone_after_it_failed_with_others() -> None:
    scene = Scene(one_stage())
    scene.join()
    for request in (1, 2, 3):
        scene.arrive(0, request)
    scene.finish(1, 0, 1)
    scene.tell(BatchFailed(2 * MS, 0, 2, 1 * MS, 2 * MS, "error", "odd shape"))
    scene.tell(BatchFailed(4 * MS, 0, 3, 2 * MS, 4 * MS, "error", "odd shape"))
    assert scene.story(2).verdict == "failed after 4 ms in stage read at attempt 2: error: odd shape"
    assert scene.story(3).verdict.startswith("still open when the log ends, 4 ms after its arrival: waited 3 ms")


def test_refused_at_the_door() -> None:
    scene = Scene(one_stage())
    scene.join()
    scene.tell(DrainStarted(1 * MS, 0))
    scene.arrive(2, 1)
    told = scene.story(1)
    assert told.verdict == "shed on arrival: the server is draining; worth another try after 2 s"
    assert (told.path, told.visits) == ((), ())


class GivesUp(AlmostFirstCome):
    """Gives up whoever waits after 5 ms."""

    def bind(self, cluster: Cluster) -> None:
        self.plain.bind(cluster)
        self._requests = cluster.requests

    def hopeless(self, now_ns: int) -> list[tuple[Request, Refusal]]:
        gone = [r for r in self._requests.values() if now_ns >= 5 * MS and any(r.waiting.values())]
        return [(request, Refusal("no chance", 7 * MS)) for request in gone]


def test_given_up_while_it_waited() -> None:
    scene = Scene(one_stage(), GivesUp())
    scene.join()
    for request in (1, 2):
        scene.arrive(0, request)
    scene.tell(RequestCancelled(5 * MS, 0, 99))
    told = scene.story(2)
    assert told.outcome == "shed"
    assert told.verdict.startswith("given up after 5 ms: no chance; worth another try after 7 ms: waited")
    assert scene.story(1).outcome == "open"


def test_turned_away_before_the_controller_could_refuse_it() -> None:
    scene = Scene(one_stage())
    scene.join()
    scene.arrive(0, 1)
    scene.tell(RequestRefused(2 * MS, 0, 2, 0, 3, "no memory", 1000 * MS), "mine")
    told = scene.story("mine")
    assert told == scene.story(2)
    assert texts(told) == ["2 #4 arrived for ask, class 3: objective 15 ms", "2 #4 ended, shed: no memory"]
    assert told.verdict == "shed on arrival: no memory; worth another try after 1 s"
    (ending,) = worst(scene.steps, scene.graphs, 5, "shed")
    assert (ending.request, ending.client_id, ending.priority, ending.reason) == (2, "mine", 3, "no memory")
    scene.finish(1, 0, 10)
    assert scene.story(1).outcome == "ok"


def test_expired_and_cancelled_say_what_it_was_doing() -> None:
    scene = Scene(one_stage())
    scene.join()
    scene.arrive(0, 1)
    scene.arrive(1, 2, deadline_ms=5)
    scene.arrive(1, 3)
    scene.tell(TimerFired(5 * MS, 0, 1))
    scene.tell(RequestCancelled(6 * MS, 0, 1))
    scene.tell(RequestCancelled(7 * MS, 0, 3))
    waited = "for stage read, whose workers were busy with batch 1 of stage read"
    late = "its deadline passed before it was done"
    assert scene.story(2).verdict == f"expired after 4 ms ({late}): waited 4 ms {waited}"
    assert scene.story(3).verdict == f"cancelled after 6 ms (the client gave up): waited 6 ms {waited}"
    assert scene.story(1).verdict == (
        "cancelled after 6 ms (the client gave up): it hardly waited, and stage read ran 6 ms of it"
    )


def test_an_unknown_request_is_told_which_there_are() -> None:
    scene = Scene(one_stage())
    with pytest.raises(UnknownRequest, match="the log has no request 7; it has none at all"):
        scene.story(7)
    for request in (4, 5, 6):
        scene.arrive(request, request, note=f"id-{request}" if request < 6 else "")
    with pytest.raises(
        UnknownRequest, match="no request 7; it has 3, numbers 4 to 6; clients called them 'id-4' to 'id-5'"
    ):
        scene.story(7)
    with pytest.raises(UnknownRequest, match="no request with the client's id ''"):
        scene.story("")


@given(seed=st.integers(0, 10**6), spec=SPECS)
@settings(deadline=None, max_examples=20)
def test_every_story_of_a_random_run_adds_up(
    tmp_path_factory: pytest.TempPathFactory, seed: int, spec: PolicySpec
) -> None:
    graphs = [plain(), document()]
    steps = run(tmp_path_factory.getbasetemp() / "story.log", seed=seed, spec=spec)
    endings = {a.request: (s.event.at_ns, a) for s in steps for a in s.actions if isinstance(a, Reply | Reject)}
    batches = {a.batch: a for s in steps for a in s.actions if isinstance(a, RunBatch)}
    for request, (ended_ns, ending) in endings.items():
        told = story(steps, request, graphs)
        assert (told.outcome, told.ended_ns, told.cost_usd) == (ending.outcome, ended_ns, ending.cost_usd)
        assert sum(leg.waiting_ns + leg.transport_ns + leg.running_ns for leg in told.path) == (
            told.ended_ns - told.arrived_ns
        )
        assert all(min(leg.waiting_ns, leg.transport_ns, leg.running_ns) >= 0 for leg in told.path)
        assert sorted(told.moments, key=lambda m: (m.at_ns, m.step)) == list(told.moments)
        for visit in told.visits:
            mine = (
                [node for r, node, _ in batches[visit.batch].items if r == request] if visit.batch else [visit.node]
            )
            assert visit.items == mine.count(visit.node) or not visit.batch
        words = request * 7 % 13 % 6  # as `recorded.Words` has it
        if told.workflow == "document" and told.outcome in ("ok", "late") and words:
            assert any(f"{words} item{'s'[: words - 1]} queued for crop" in m.text for m in told.moments)
        assert told.verdict and "\n" not in told.verdict
        if told.client_id:
            assert story(steps, told.client_id, graphs) == told


def test_the_worst_come_first() -> None:
    scene = Scene(one_stage(slo_ms=10))
    scene.join()
    for request in (1, 2, 3):
        scene.arrive(0, request, note=f"id-{request}")
    scene.arrive(1, 4, deadline_ms=2)
    scene.tell(TimerFired(2 * MS, 0, 1))
    scene.finish(1, 0, 10)
    scene.finish(2, 10, 20)
    found = worst(scene.steps, scene.graphs, 10)
    assert [(e.request, e.client_id, e.outcome, e.over_ns // MS) for e in found] == [
        (2, "id-2", "late", 10),
        (3, "id-3", "late", 10),
        (4, "", "expired", -9),
    ]
    assert [e.request for e in worst(scene.steps, scene.graphs, 1, "late")] == [2]
    assert [e.request for e in worst(scene.steps, scene.graphs, 5, "ok")] == [1]
    assert worst(scene.steps, scene.graphs, 5, "shed") == []


def test_what_others_took_in_between_is_waiting_and_not_running() -> None:
    scene = Scene(one_stage())
    spec = WorkerSpec("cpu1", "gpu", ("model",), preempts=True)
    scene.tell(WorkerJoined(0, 0, 1, spec))
    scene.tell(ModelLoaded(0, 0, 1, "read", 0))
    scene.tell(RequestArrived(0, 0, 1, 0, 3))
    scene.tell(RequestArrived(4 * MS, 0, 2, 0, 1))
    scene.finish(2, 5, 15)
    scene.tell(BatchFinished(21 * MS, 0, 1, 0, 20 * MS, (), 10 * MS))
    low, high = scene.story(1), scene.story(2)
    assert low.verdict == (
        "late by 6 ms: waited 10 ms for stage read, whose worker cpu1 was busy with batch 2 of stage read"
    )
    assert texts(low)[-2] == (
        "21 #6 batch 1 of read on cpu1 finished: ran 10 ms within 20 ms, others in between, expected 10 ms"
    )
    assert "4 #4 1 item of read sent to cpu1 in batch 2 (over a lower class), at once" in texts(high)
    (leg,) = high.path
    assert (leg.waiting_ns, leg.transport_ns, leg.running_ns) == (1 * MS, 0, 10 * MS)
