"""Dovetail's planner in the loop: decisions by hand-checked cases, promises by short runs with every check on."""

import itertools
import random

import msgspec
import pytest

from dovetail.control import (
    BatchFinished,
    Controller,
    ModelLoaded,
    Policy,
    Reject,
    RequestArrived,
    RequestCancelled,
    RunBatch,
    SetTimer,
    WorkerJoined,
    WorkerLost,
)
from dovetail.control.validate import validate
from dovetail.place import OwnWorkers
from dovetail.plan import Space
from dovetail.predict import Estimator
from dovetail.profile.curve import Curve
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.record.ledger import Ledger
from dovetail.scale import LoadEverything
from dovetail.schedule import Dovetail, PlannerSettings
from dovetail.sim import SimDevice, Simulation
from dovetail.state import WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec, chain

SPACE = Space(shares_pct=(25, 50, 100))
#: At a quarter of the device 24 ms, at half of it 12 ms, never below 10 ms; a batch of 4 takes half as long again.
CURVE = Curve((1, 4), (10 * MS, 15 * MS), (6 * MS, 9 * MS))
GPU = WorkerSpec("gpu", "v100", ("model",), usd_per_hour=3.6)


def controller(slo_ms, *, names=("read",), settings=None, spread=0.0, loaded=None):
    stages = [StageSpec(n, "model", (1, 4), model=n) for n in names]
    graph = chain("flow", slo_ms * MS, stages)
    table = ProfileTable([Entry(n, "v100", curve=CURVE, spread=spread) for n in names])
    predictor = Estimator(table)
    planner = Dovetail(predictor, OwnWorkers(predictor), settings or PlannerSettings(space=SPACE))
    built = Controller([graph], Policy(planner, LoadEverything(), predictor))
    built.step(WorkerJoined(0, 0, 1, GPU))
    for name in names if loaded is None else loaded:
        built.step(ModelLoaded(0, 0, 1, name, 0))
    return built


def runs(actions):
    return [(a.stage, len(a.items), a.share_pct) for a in actions if isinstance(a, RunBatch)]


def test_a_loose_objective_takes_no_more_than_is_cheap_and_a_tight_one_pays_for_speed():
    # A quarter and half of the device cost the same, and of equals the faster is taken; all of it costs more.
    loose = controller(100)
    assert runs(loose.step(RequestArrived(0, 0, 1, 0))) == [("read", 1, 50)]
    tight = controller(11)
    assert runs(tight.step(RequestArrived(0, 0, 1, 0))) == [("read", 1, 100)]
    validate(loose)
    validate(tight)


def test_the_budget_that_is_left_decides_again_before_the_next_stage():
    two = controller(60, names=("first", "second"))
    (run,) = [a for a in two.step(RequestArrived(0, 0, 1, 0)) if isinstance(a, RunBatch)]
    # The first stage took far longer than planned: the second has 11 ms left, and only the whole device is in time.
    actions = two.step(BatchFinished(49 * MS, run.cause, run.batch, 0, 49 * MS))
    assert runs(actions) == [("second", 1, 100)]


def test_a_request_that_is_late_already_is_run_as_cheaply_as_can_be():
    two = controller(30, names=("first", "second"))
    (run,) = [a for a in two.step(RequestArrived(0, 0, 1, 0)) if isinstance(a, RunBatch)]
    actions = two.step(BatchFinished(200 * MS, run.cause, run.batch, 0, 200 * MS))
    assert runs(actions)[0][:2] == ("second", 1)
    validate(two)


def test_work_starts_without_a_plan_while_a_later_stage_has_no_worker():
    two = controller(60, names=("first", "second"), loaded=("first",))
    assert runs(two.step(RequestArrived(0, 0, 1, 0))) == [("first", 1, 100)]
    assert runs(two.step(RequestArrived(1, 0, 2, 0))) == []
    validate(two)
    two.step(ModelLoaded(2, 0, 1, "second", 0))
    assert runs(two.step(BatchFinished(10 * MS, 2, 1, 0, 10 * MS)))[0][0] == "second"


def test_when_only_smaller_workers_are_left_there_is_another_plan():
    """Four cores answer in time, one does not; once there is but one, whoever waits runs on that."""
    table = ProfileTable([Entry("read", "cpu", points=(Point(1, 1, 90 * MS, 0.0, 9), Point(1, 4, 30 * MS, 0.0, 9)))])
    predictor = Estimator(table)
    planner = Dovetail(predictor, OwnWorkers(predictor), PlannerSettings(admission=False))
    graph = chain("flow", 40 * MS, [StageSpec("read", "onnx", (1,), model="read")])
    both = Controller([graph], Policy(planner, LoadEverything(), predictor))
    for worker, cores in ((1, 4), (2, 1)):
        both.step(WorkerJoined(0, 0, worker, WorkerSpec(f"cpu:{cores}", "cpu", ("onnx",), cores=cores)))
        both.step(ModelLoaded(0, 0, worker, "read", 0))
    (run,) = [a for a in both.step(RequestArrived(0, 0, 1, 0)) if isinstance(a, RunBatch)]
    assert (run.worker, run.cpus) == (1, 4)
    assert runs(both.step(RequestArrived(0, 0, 2, 0))) == [], "it waits for the four"
    started = [a for a in both.step(WorkerLost(1 * MS, 0, 1, "killed")) if isinstance(a, RunBatch)]
    assert [(a.worker, a.cpus) for a in started] == [(2, 1)]
    validate(both)


def test_a_late_request_takes_the_room_that_is_left_at_the_next_event():
    """In time only the whole device would do, and half of it is taken; once it is late, half is as good."""
    half = controller(100, settings=PlannerSettings(space=SPACE, admission=False))
    assert runs(half.step(RequestArrived(0, 0, 1, 0))) == [("read", 1, 50)]
    assert runs(half.step(RequestArrived(0, 0, 2, 0, 0, 11 * MS))) == []
    assert runs(half.step(RequestCancelled(2 * MS, 0, 99))) == [("read", 1, 50)]
    validate(half)


def test_what_cannot_be_in_time_is_refused_at_once_with_the_reason():
    never = controller(8)
    (reject,) = never.step(RequestArrived(0, 0, 1, 0))
    assert isinstance(reject, Reject) and reject.outcome == "shed"
    assert "its fastest plan takes 10 ms" in reject.reason

    full = controller(50)
    rejects = []
    for i in range(1, 60):
        rejects += [a for a in full.step(RequestArrived(i, 0, i, 0)) if isinstance(a, Reject)]
    assert rejects, "more was asked for than can be done by then"
    assert all(r.retry_after_ns > 0 for r in rejects), "and each is told when it would be worth trying again"
    validate(full)


def test_a_crowd_is_over_when_nobody_stands_in_it():
    """Who is refused teaches nothing, so what was learned in a rush must not shut the door for ever."""
    built = controller(100, names=("a", "b"), spread=0.1)
    table = built.policy.predictor.table
    rush = [RequestArrived(i * MS, 0, i, 0) for i in range(1, 101)]
    calm = [RequestArrived(1000 * MS + i * 50 * MS, 0, i, 0) for i in range(101, 201)]
    shed = []

    def observe(_event, actions):
        shed.extend(a.request for a in actions if isinstance(a, Reject))
        validate(built)

    simulation = Simulation(built, Ledger([("flow", 100 * MS)]), iter(rush + calm), [observe])
    built.step(_lose(1))
    simulation.join(SimDevice(2, GPU, built.stages, table, simulation.schedule, rng=random.Random(5)))
    simulation.run()
    assert shed and max(shed) <= 100, "in the rush many were refused, and after it nobody"


@pytest.mark.parametrize("wait", [True, False])
def test_waiting_for_a_batch_is_declared_with_its_reason_and_pays(wait):
    built = controller(400, settings=PlannerSettings(space=SPACE, wait=wait))
    timers, sizes = [], []

    def observe(_event, actions):
        timers.extend(a.reason for a in actions if isinstance(a, SetTimer))
        sizes.extend(len(a.items) for a in actions if isinstance(a, RunBatch))
        validate(built)

    arrivals = (RequestArrived(i * 30 * MS, 0, i, 0) for i in range(1, 80))
    ledger = Ledger([("flow", 400 * MS)])
    simulation = Simulation(built, ledger, arrivals, [observe])
    built.step(_lose(1))
    table = built.policy.predictor.table
    simulation.join(SimDevice(2, GPU, built.stages, table, simulation.schedule))
    simulation.run()
    assert ledger.summary()[0].hit_rate == 1.0
    assert bool(timers) == wait and all("batch of 4 is expected" in reason for reason in timers)
    assert (max(sizes) == 4) == wait


@pytest.mark.parametrize(
    "settings",
    [
        PlannerSettings(space=SPACE),
        PlannerSettings(space=SPACE, wait=False),
        PlannerSettings(space=SPACE, replan=False),
        PlannerSettings(space=SPACE, percentile=0.5),
        PlannerSettings(space=SPACE, premium=None),
        PlannerSettings(space=Space(SPACE.shares_pct, batching=False)),
        PlannerSettings(space=Space(SPACE.shares_pct, sharing=False)),
    ],
)
@pytest.mark.parametrize("rate_per_s", [30.0, 300.0])
def test_every_request_ends_once_and_every_invariant_holds(settings, rate_per_s):
    built = controller(120, names=("a", "b", "c"), settings=settings, spread=0.1)
    table = built.policy.predictor.table
    rng = random.Random(7)
    times = itertools.accumulate(rng.expovariate(rate_per_s) for _ in range(250))
    arrivals = (RequestArrived(round(t * 1e9), 0, i, 0, 1 + i % 2) for i, t in enumerate(times, start=2))
    ledger = Ledger([("flow", 120 * MS)])
    simulation = Simulation(built, ledger, arrivals, [lambda _event, _actions: validate(built)])
    for ident in (2, 3):
        simulation.join(SimDevice(ident, GPU, built.stages, table, simulation.schedule, rng=random.Random(ident)))
    lost = [a for w in [1] for a in built.step(_lose(w))]
    assert not lost
    simulation.run()
    assert sum(s.requests for s in ledger.summary()) == 250
    assert not built.requests


@pytest.mark.parametrize("premium", [0.0025, None])
def test_no_hold_goes_beyond_the_objective_even_if_nobody_comes_any_more(premium):
    """What is late anyway has nothing left to lose by waiting for a batch, and would wait for ever."""
    built = controller(400, settings=PlannerSettings(space=SPACE, premium=premium, admission=False))
    table = built.policy.predictor.table
    arrivals = [RequestArrived(i * 30 * MS, 0, i, 0) for i in range(1, 61)]
    arrivals.append(RequestArrived(1900 * MS, 0, 61, 0, 0, 1901 * MS))
    holds = []

    def observe(_event, actions):
        holds.extend(a.at_ns for a in actions if isinstance(a, SetTimer) and a.reason)
        assert not holds or holds[-1] <= 1800 * MS + 400 * MS
        validate(built)

    ledger = Ledger([("flow", 400 * MS)])
    simulation = Simulation(built, ledger, iter(arrivals), [observe])
    built.step(_lose(1))
    simulation.join(SimDevice(2, GPU, built.stages, table, simulation.schedule))
    simulation.run()
    assert holds and ledger.summary()[0].outcomes["late"] == 1


def _lose(worker):
    from dovetail.control import WorkerLost

    return WorkerLost(0, 0, worker, "not simulated")


def test_the_same_run_decides_the_same():
    def actions():
        built = controller(80, names=("a", "b"), spread=0.2)
        table = built.policy.predictor.table
        rng = random.Random(3)
        times = itertools.accumulate(rng.expovariate(120) for _ in range(300))
        arrivals = (RequestArrived(round(t * 1e9), 0, i, 0) for i, t in enumerate(times, start=1))
        record = []
        simulation = Simulation(built, Ledger([("flow", 80 * MS)]), arrivals, [lambda _e, a: record.append(list(a))])
        built.step(_lose(1))
        simulation.join(SimDevice(2, GPU, built.stages, table, simulation.schedule, rng=random.Random(5)))
        simulation.run()
        return msgspec.msgpack.encode(record)

    assert actions() == actions()


def unprofiled(slo_ms, learned=None):
    """A stage that nobody has profiled, on a device with a price."""
    graph = chain("flow", slo_ms * MS, [StageSpec("read", "model", (1, 4), model="read")])
    predictor = Estimator(ProfileTable(), learned)
    planner = Dovetail(predictor, OwnWorkers(predictor), PlannerSettings(space=SPACE))
    built = Controller([graph], Policy(planner, LoadEverything(), predictor))
    built.step(WorkerJoined(0, 0, 1, GPU))
    built.step(ModelLoaded(0, 0, 1, "read", 0))
    return built


#: What CURVE says of one item.
TRUE_MS = {25: 24, 50: 12, 100: 10}


def serve_one(built, number, at_ms, times_ms=None):
    """One request alone; the batch that it became, and how sure its time was."""
    actions = built.step(RequestArrived(at_ms * MS, 0, number, 0))
    (run,) = [a for a in actions if isinstance(a, RunBatch)]
    spread = run.spread
    end_ms = at_ms + (times_ms or TRUE_MS)[run.share_pct]
    built.step(BatchFinished(end_ms * MS, run.cause, run.batch, at_ms * MS, end_ms * MS))
    return run, spread


@pytest.mark.parametrize(("slo_ms", "cost"), [(100, 600), (30, 1000), (13, 1000)])
def test_a_stage_without_a_profile_is_tried_and_then_run_in_time_and_with_time_to_spare_as_cheaply_as_can_be(
    slo_ms, cost
):
    built = unprofiled(slo_ms)
    planner = built.policy.scheduler
    first, doubt = serve_one(built, 1, 0)
    assert doubt == 2.0 and first.expected_ns >= 10 * MS, "a guess"
    assert not planner.plan_of("flow").known, "one batch is not enough to refuse anything"
    later = [serve_one(built, number, 100 * number) for number in range(2, 200)]
    last, spread = later[-1]
    assert last.expected_ns == TRUE_MS[last.share_pct] * MS and spread < 0.1
    assert last.share_pct * TRUE_MS[last.share_pct] == cost and TRUE_MS[last.share_pct] < slo_ms
    assert planner.plan_of("flow").known and not planner.plan_of("flow").profiled
    validate(built)


def test_nothing_is_refused_because_of_guesses_but_because_of_what_was_learned_unless_nothing_else_is_open():
    built = unprofiled(5)
    for number in range(1, 40):
        run, _ = serve_one(built, number, 100 * number)
    assert built.policy.scheduler.plan_of("flow").known
    at_ns = 5000 * MS
    assert runs(built.step(RequestArrived(at_ns, 0, 100, 0))), "times may have changed: only a request can show it"
    built.step(RequestArrived(at_ns, 0, 101, 0))
    assert 101 in built.requests, "one is tried although another is open"
    (refused,) = built.step(RequestArrived(at_ns, 0, 102, 0))
    assert isinstance(refused, Reject) and "fastest plan" in refused.reason
    built.step(RequestCancelled(at_ns, 0, 101))
    built.step(BatchFinished(at_ns + MS, run.cause, run.batch + 1, at_ns, at_ns + MS))
    assert runs(built.step(RequestArrived(at_ns + 2 * MS, 0, 103, 0)))


def test_a_workflow_that_was_slow_for_a_while_is_not_refused_for_ever_beside_others():
    """Something else is always open, so nobody is let in because nothing is."""
    predictor = Estimator(ProfileTable([Entry("other", "v100", points=(Point(1, 1, MS, 0.0, 1),))]))
    stages = [StageSpec(name, "model", (1,), model=name) for name in ("read", "other")]
    graphs = [chain("flow", 20 * MS, stages[:1]), chain("others", 10**6 * MS, stages[1:])]
    planner = Dovetail(predictor, OwnWorkers(predictor), PlannerSettings(space=Space(shares_pct=(100,))))
    built = Controller(graphs, Policy(planner, LoadEverything(), predictor))
    for worker in (1, 2):
        built.step(WorkerJoined(0, 0, worker, GPU))
        for stage in stages:
            built.step(ModelLoaded(0, 0, worker, stage.name, 0))
    built.step(RequestArrived(0, 0, 1, 1))  # its batch never ends
    let_in = []
    for number in range(2, 602):
        at_ns, took_ns = 60 * MS * number, (50 if number < 302 else 5) * MS
        begun = [a for a in built.step(RequestArrived(at_ns, 0, number, 0)) if isinstance(a, RunBatch)]
        let_in.append(bool(begun))
        for run in begun:
            built.step(BatchFinished(at_ns + took_ns, run.cause, run.batch, at_ns, at_ns + took_ns))
    assert 1 <= sum(let_in[100:300]) <= 5, "now and then one is tried while it is too slow"
    assert all(let_in[460:]), "nobody is refused once it is fast again: what a trial shows counts for more"
    validate(built)


def test_what_was_learned_before_counts_from_the_first_request_on():
    taught = unprofiled(60)
    for number in range(1, 80):
        last, _ = serve_one(taught, number, 100 * number)
    again = unprofiled(60, taught.policy.predictor.state())
    run, spread = serve_one(again, 1, 0)
    assert (run.share_pct, run.expected_ns) == (last.share_pct, last.expected_ns) and spread < 0.1
