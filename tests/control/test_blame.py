"""Who is to blame for the end of a worker, and who may be served late: rules of the controller."""

from __future__ import annotations

from tests.control.test_rules import SPEC, controller, joined, of, stage
from tests.schedule.almost_first_come import AlmostFirstCome

from dovetail.control import Reject, Reply, RequestArrived, RunBatch, WorkerJoined, WorkerLost
from dovetail.control.events import BatchFinished, ModelLoaded
from dovetail.schedule import FirstCome
from dovetail.schedule.protocol import Refusal
from dovetail.units import MS


def test_what_ended_its_worker_alone_does_not_get_to_end_another() -> None:
    c = joined(controller([stage("read")]), "read")
    c.step(RequestArrived(1, 0, 7, 0))
    (rejected,) = of(Reject, c.step(WorkerLost(2, 0, 1, "killed by signal 11", at_fault=True)))
    assert (rejected.request, rejected.outcome) == (7, "failed")
    assert "signal 11" in rejected.reason


def test_a_worker_that_was_taken_away_blames_nobody() -> None:
    c = joined(controller([stage("read")]), "read")
    c.step(RequestArrived(1, 0, 7, 0))
    assert not of(Reject, c.step(WorkerLost(2, 0, 1, "killed by signal 9")))
    c.step(WorkerJoined(3, 0, 2, SPEC))
    (run,) = of(RunBatch, c.step(ModelLoaded(4, 0, 2, "read", 0)))
    assert of(Reply, c.step(BatchFinished(5, 0, run.batch, 4, 5)))


def test_of_several_in_a_batch_each_runs_alone_before_it_is_blamed() -> None:
    c = joined(controller([stage("read", (1, 2))]), "read")
    c.step(RequestArrived(1, 0, 6, 0))
    c.step(RequestArrived(1, 0, 7, 0))
    c.step(RequestArrived(1, 0, 8, 0))
    (run,) = of(RunBatch, c.step(BatchFinished(2, 0, 1, 1, 2))) if c.batches else ([],)
    assert len(run.items) == 2
    assert not of(Reject, c.step(WorkerLost(3, 0, 1, "exited with status 3", at_fault=True)))
    c.step(WorkerJoined(4, 0, 2, SPEC))
    (alone,) = of(RunBatch, c.step(ModelLoaded(5, 0, 2, "read", 0)))
    assert len(alone.items) == 1
    (rejected,) = of(Reject, c.step(WorkerLost(6, 0, 2, "exited with status 3", at_fault=True)))
    assert rejected.request == alone.items[0][0]
    c.step(WorkerJoined(7, 0, 3, SPEC))
    assert of(RunBatch, c.step(ModelLoaded(8, 0, 3, "read", 0))), "the other one is innocent until it is tried"


class Refusing(AlmostFirstCome):
    """Finds everybody late."""

    firm = False

    def admit(self, graph, priority, objective_ns, now_ns):  # type: ignore[no-untyped-def]
        return Refusal("it would be late", MS, firm=self.firm)


def test_who_may_not_be_shed_is_served_late() -> None:
    planner = Refusing()
    c = joined(controller([stage("read")], planner=planner), "read")
    (shed,) = of(Reject, c.step(RequestArrived(1, 0, 1, 0)))
    assert (shed.outcome, shed.reason) == ("shed", "it would be late")
    assert of(RunBatch, c.step(RequestArrived(2, 0, 2, 0, sheddable=False)))
    planner.firm = True
    assert of(Reject, c.step(RequestArrived(3, 0, 3, 0, sheddable=False))), "there is no room at all"


class GivingUp(AlmostFirstCome):
    """Gives up whoever is open."""

    def hopeless(self, now_ns):  # type: ignore[no-untyped-def]
        return [(r, Refusal("hopeless")) for r in self._cluster.requests.values()] if now_ns > 10 else ()

    def bind(self, cluster):  # type: ignore[no-untyped-def]
        self.plain.bind(cluster)
        self._cluster = cluster


def test_who_may_not_be_shed_is_not_given_up() -> None:
    c = joined(controller([stage("read")], planner=GivingUp()), "read")
    c.step(RequestArrived(1, 0, 1, 0))
    c.step(RequestArrived(2, 0, 2, 0, sheddable=False))
    rejected = of(Reject, c.step(RequestArrived(20, 0, 3, 0, sheddable=False)))
    assert [r.request for r in rejected] == [1]


def test_of_two_batches_on_a_device_that_ended_nobody_knows_whose_fault_it_was() -> None:
    halves = FirstCome(share_pct=50)
    c = joined(controller([stage("read")], planner=halves), "read")
    c.step(RequestArrived(1, 0, 7, 0))
    c.step(RequestArrived(1, 0, 8, 0))
    assert len(c.workers[1].running) == 2
    assert not of(Reject, c.step(WorkerLost(2, 0, 1, "killed by signal 11", at_fault=True)))
    assert {c.requests[ident].outcome for ident in (7, 8)} == {""}
