"""The admission rule that rivals are lent: who would be late is refused, who is hopeless is given up, nobody else."""

from __future__ import annotations

from tests.rivals.support import arrival, curve, market, workflow

from dovetail.control import Action, BatchFinished, Controller, ModelLoaded, Reject, RunBatch, WorkerJoined
from dovetail.lab.rivals.common import rival_policy
from dovetail.lab.rivals.esg import EsgPlanner
from dovetail.lab.rivals.refusing import refusing
from dovetail.units import MS

#: A request takes 10 ms of a whole device, in two stages of 5 ms.
STAGES = {"read": curve({1: 5}), "tell": curve({1: 5})}


def controller(slo_ms: float) -> Controller:
    graph = workflow("w", slo_ms, {"read": (1,), "tell": (1,)})
    m = market(STAGES, shares_pct=(100,))
    made = Controller([graph], refusing(rival_policy(EsgPlanner(m))))
    made.step(WorkerJoined(0, 0, 1, m.worker(graph.stages[0])))
    for stage in STAGES:
        made.step(ModelLoaded(0, 0, 1, stage, 0))
    return made


def rejected(actions: list[Action]) -> list[int]:
    return [action.request for action in actions if isinstance(action, Reject)]


def test_who_has_time_behind_the_queue_is_let_in_and_who_has_not_is_refused() -> None:
    # One runs; each that waits brings 5 ms of its first stage; the way itself takes 10 ms: 22 ms have room for two.
    made = controller(22)
    assert [rejected(made.step(arrival(0, i))) for i in range(1, 6)] == [[], [], [], [], [5]]


def test_an_objective_shorter_than_the_fastest_way_is_refused() -> None:
    assert rejected(controller(9.9).step(arrival(0, 1))) == [1]
    assert not rejected(controller(10.1).step(arrival(0, 1)))


def test_who_waits_with_too_little_time_left_is_given_up() -> None:
    made = controller(22)
    runs = [a for i in (1, 2) for a in made.step(arrival(0, i)) if isinstance(a, RunBatch)]
    assert not rejected(made.step(BatchFinished(11 * MS, 0, runs[0].batch, 0, 11 * MS)))
    # 9 ms are left for the second stage of the first and both stages of the second.
    made = controller(22)
    runs = [a for i in (1, 2) for a in made.step(arrival(0, i)) if isinstance(a, RunBatch)]
    assert rejected(made.step(BatchFinished(13 * MS, 0, runs[0].batch, 0, 13 * MS))) == [2]
