"""Frontiers are made beside decisions: a decision reads what is there, and time without work brings it up to date."""

from __future__ import annotations

from dovetail.control import Controller, ModelLoaded, Policy, RequestCancelled, WorkerJoined, WorkerLost
from dovetail.place import OwnWorkers
from dovetail.plan import Space
from dovetail.predict import Estimator
from dovetail.profile.curve import Curve
from dovetail.profile.table import Entry, ProfileTable
from dovetail.scale import LoadEverything
from dovetail.schedule import Dovetail, PlannerSettings
from dovetail.schedule.plans import _BUILD_EVERY_NS, _FIRST_BUILDS, _LOOK_EVERY, _MOST_STEPS, _PATIENCE
from dovetail.state import WorkerSpec
from dovetail.units import MS, US
from dovetail.workflow.graph import StageSpec, chain

CURVE = Curve((1, 4), (10 * MS, 20 * MS), (6 * MS, 12 * MS))
GPU = WorkerSpec("gpu", "v100", ("model",), usd_per_hour=3.6)
LONG_NS = 2 * _BUILD_EVERY_NS


def make(profiled: bool = True) -> tuple[Controller, Dovetail]:
    predictor = Estimator(ProfileTable([Entry("read", "v100", curve=CURVE)] if profiled else []))
    settings = PlannerSettings(space=Space(shares_pct=tuple(range(5, 101, 5))))
    scheduler = Dovetail(predictor, OwnWorkers(predictor), settings)
    graph = chain("flow", 200 * MS, [StageSpec("read", "model", (1, 2, 3, 4), model="read")])
    built = Controller([graph], Policy(scheduler, LoadEverything(), predictor))
    built.step(WorkerJoined(0, 0, 1, GPU))
    built.step(ModelLoaded(0, 0, 1, "read", 0))
    return built, scheduler


def out_of_date(scheduler: Dovetail) -> None:
    plan = scheduler._plans.made.get("flow")
    assert plan is not None
    plan.saw_intervals({"read": 1 * MS})
    scheduler._plans._note("flow", plan)
    scheduler._plans.stepped(LONG_NS - 1)  # no quiet time has passed when the next step comes


def idle(built: Controller, at_ns: int) -> None:
    """A step that starts nothing."""
    built.step(RequestCancelled(at_ns, 0, 99))


def test_they_are_there_before_the_first_request_comes() -> None:
    _, scheduler = make()
    plan = scheduler._plans.made.get("flow")
    assert plan is not None and plan._chances, "made when the model had come"


def test_a_decision_makes_none_and_idle_steps_do_bit_by_bit() -> None:
    built, scheduler = make()
    old = scheduler.plan_of("flow")
    out_of_date(scheduler)
    assert old is not None and old.stale and scheduler.plan_of("flow") is old, "a decision reads what is there"
    at_ns, steps = LONG_NS, 0
    while scheduler.plan_of("flow") is old:
        idle(built, at_ns)
        at_ns += 1 * US
        steps += 1
    fresh = scheduler.plan_of("flow")
    assert steps > 20, "each idle step makes a bit of them"
    assert fresh is not None and not fresh.stale and fresh._chances and not scheduler._plans._stale


def test_after_a_quiet_time_more_is_made_at_once() -> None:
    built, scheduler = make()
    old = scheduler.plan_of("flow")
    out_of_date(scheduler)
    at_ns, steps = LONG_NS, 0
    while scheduler.plan_of("flow") is old:
        idle(built, at_ns)
        at_ns += 100 * MS
        steps += 1
    assert 1 < steps < 2 * _MOST_STEPS


def test_they_are_not_begun_too_often() -> None:
    built, scheduler = make()
    old = scheduler.plan_of("flow")
    out_of_date(scheduler)
    scheduler._plans._now_ns = 0
    for number in range(200):
        idle(built, (number + 1) * MS)
    assert scheduler.plan_of("flow") is old and scheduler._plans._making is None
    idle(built, _BUILD_EVERY_NS)
    assert scheduler._plans._making is not None or scheduler.plan_of("flow") is not old


def test_they_are_made_even_if_every_step_starts_something() -> None:
    _, scheduler = make()
    out_of_date(scheduler)
    scheduler._plans._busy = 0
    for number in range(_PATIENCE):
        scheduler._plans.stepped(LONG_NS + number)
    assert scheduler._plans._making is None
    scheduler._plans.stepped(LONG_NS + _PATIENCE)
    assert scheduler._plans._making is not None


def test_what_is_learned_first_counts_at_once() -> None:
    built, scheduler = make(profiled=False)
    plan = scheduler.plan_of("flow")
    assert plan is not None and not plan.profiled
    out_of_date(scheduler)
    assert plan.stale and scheduler.plan_of("flow") is plan and not plan.stale, "made again for this very decision"
    idle(built, LONG_NS)
    assert scheduler._plans._making is None


def test_what_is_learned_first_counts_at_once_so_many_times_and_then_beside_decisions() -> None:
    _, scheduler = make(profiled=False)
    at_once = 0
    for _ in range(2 * _FIRST_BUILDS):
        plan = scheduler.plan_of("flow")
        assert plan is not None
        plan.stale = True
        scheduler._plans._note("flow", plan)
        scheduler.plan_of("flow")
        at_once += not plan.stale
    assert at_once == _FIRST_BUILDS - 1, "the first were made before anything was learned"


def test_a_step_that_starts_nothing_ends_the_patience() -> None:
    built, scheduler = make()
    idle(built, 1 * MS)
    scheduler._plans._busy = 0
    for number in range(_PATIENCE - 1):
        scheduler._plans.stepped(2 * MS + number)
    scheduler.idle(3 * MS)
    out_of_date(scheduler)
    for number in range(_PATIENCE - 2):
        scheduler._plans.stepped(LONG_NS + number)
    assert scheduler._plans._making is None, "so many in turn have started something since, and not more"


def test_none_are_begun_while_some_stage_has_no_worker() -> None:
    predictor = Estimator(ProfileTable([Entry(name, "v100", curve=CURVE) for name in ("read", "sort")]))
    scheduler = Dovetail(predictor, OwnWorkers(predictor), PlannerSettings(space=Space(shares_pct=(50, 100))))
    stages = [StageSpec(name, "model", (1, 2), model=name) for name in ("read", "sort")]
    built = Controller([chain("flow", 200 * MS, stages)], Policy(scheduler, LoadEverything(), predictor))
    for worker in (1, 2):
        built.step(WorkerJoined(0, 0, worker, GPU))
        built.step(ModelLoaded(0, 0, worker, ("read", "sort")[worker - 1], 0))
    old = scheduler.plan_of("flow")
    assert old is not None
    built.step(WorkerLost(1 * MS, 0, 2, "it went"))
    out_of_date(scheduler)
    for number in range(200):
        idle(built, LONG_NS + number * 10 * MS)
    assert scheduler._plans.made["flow"] is old and scheduler._plans._stale, "the old ones stand until another comes"
    built.step(WorkerJoined(2 * LONG_NS, 0, 3, GPU))
    built.step(ModelLoaded(2 * LONG_NS, 0, 3, "sort", 0))
    for number in range(200):
        idle(built, 3 * LONG_NS + number * 10 * MS)
    assert not scheduler._plans._stale


def test_all_plans_are_looked_at_in_turn() -> None:
    predictor = Estimator(ProfileTable([Entry(name, "v100", curve=CURVE) for name in ("read", "sort")]))
    scheduler = Dovetail(predictor, OwnWorkers(predictor), PlannerSettings(space=Space(shares_pct=(50, 100))))
    flows = [chain(name, 200 * MS, [StageSpec(name, "model", (1,), model=name)]) for name in ("read", "sort")]
    built = Controller(flows, Policy(scheduler, LoadEverything(), predictor))
    built.step(WorkerJoined(0, 0, 1, GPU))
    for name in ("read", "sort"):
        built.step(ModelLoaded(0, 0, 1, name, 0))
    assert len(scheduler._plans.made) == 2
    looked: list[str] = []
    for name, plan in scheduler._plans.made.items():
        plan.saw_times = lambda most=None, name=name: looked.append(name)  # type: ignore[method-assign, misc]
    for _ in range(6 * _LOOK_EVERY):
        scheduler._plans.finished({})
    assert looked == ["sort", "read"] * 3
