"""A step costs the same with more workers or queues: counted in calls of functions, not in time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from statistics import median, quantiles

import pytest

from dovetail.control import (
    Action,
    BatchFinished,
    Controller,
    Event,
    ModelLoaded,
    RequestArrived,
    RunBatch,
    WorkerJoined,
)
from dovetail.predict import Estimator
from dovetail.profile.curve import Curve
from dovetail.profile.table import Entry, ProfileTable
from dovetail.schedule import PlannerSettings
from dovetail.schedule.protocol import Hold, Offer
from dovetail.state import Queue, WorkerSpec
from dovetail.units import MS
from dovetail.wiring import own_policy
from dovetail.workflow.graph import StageSpec, chain

pytestmark = pytest.mark.interpreted

CURVE = Curve((1, 4), (10 * MS, 20 * MS), (6 * MS, 12 * MS))
FEW, MANY = 10, 1000
#: Steps that are counted, after as many that are not.
STEPS = 200


def world(models: int, workers: int, memory_bytes: int = 0, stranded: int = 0) -> Controller:
    """Workflows of one model of 100 bytes each, and some that no worker can run."""
    names = [f"m{i}" for i in range(models)]
    stages = [StageSpec(n, "model", (1, 4), model=n, weights_bytes=100) for n in names]
    stages += [StageSpec(f"s{i}", "torch", (1, 4), model=f"s{i}") for i in range(stranded)]
    predictor = Estimator(ProfileTable([Entry(s.name, "gpu", curve=CURVE) for s in stages]))
    policy = own_policy(predictor, PlannerSettings(admission=False))
    controller = Controller([chain(f"w-{s.name}", 1000 * MS, [s]) for s in stages], policy)
    for ident in range(1, workers + 1):
        spec = WorkerSpec(f"gpu{ident}", "gpu", ("model",), usd_per_hour=1.0, memory_bytes=memory_bytes)
        controller.step(WorkerJoined(0, 0, ident, spec))
        for name in () if memory_bytes else names:
            controller.step(ModelLoaded(0, 0, ident, name, 100))
    for number in range(stranded):
        controller.step(RequestArrived(0, 0, 10**6 + number, models + number))
    return controller


def calls(controller: Controller, models: int, at_once: int) -> list[int]:
    """Calls of functions in each of the later steps: so many requests come every millisecond, models in turn."""
    counted: list[int] = []
    calling = 0

    def note(frame: object, event: str, arg: object) -> None:
        nonlocal calling
        calling += event in ("call", "c_call")

    events: list[tuple[int, int, Event]] = []
    order = count()
    for number in range(1, 2 * STEPS * at_once + 1):
        at_ns = number // at_once * MS
        heappush(events, (at_ns, next(order), RequestArrived(at_ns, 0, number, number % models)))
    for steps in range(2 * STEPS):
        at_ns, _, event = heappop(events)
        calling = 0
        sys.setprofile(note)
        try:
            actions = controller.step(event)
        finally:
            sys.setprofile(None)
        if steps >= STEPS:
            counted.append(calling)
        for action in actions:
            if isinstance(action, RunBatch):
                end_ns = at_ns + action.expected_ns
                heappush(events, (end_ns, next(order), BatchFinished(end_ns, 0, action.batch, at_ns, end_ns)))
    return counted


def alike(few: list[int], many: list[int]) -> None:
    assert sum(few) > 50 * len(few), "steps decide something"
    assert median(many) <= 1.2 * median(few)
    # A twentieth of the steps also look at plans: the 95th percentile is now with them and now without.
    assert quantiles(many, n=10)[-1] <= 1.5 * quantiles(few, n=10)[-1]


@pytest.mark.parametrize("memory_bytes", [0, 500], ids=["all models fit", "half of them fit"])
def test_a_step_costs_the_same_with_a_hundred_times_the_workers(memory_bytes: int) -> None:
    few, many = (calls(world(FEW, n, memory_bytes), FEW, 1) for n in (FEW, MANY))
    alike(few, many)


def test_queues_without_work_cost_nothing() -> None:
    few, many = (calls(world(n, FEW), FEW, 1) for n in (FEW, MANY // 4))
    alike(few, many)


def test_queues_for_which_nobody_has_room_are_not_asked_in_every_step() -> None:
    few, many = (calls(world(FEW, FEW, stranded=n), FEW, 1) for n in (FEW, MANY // 4))
    alike(few, many)


def test_queues_that_are_held_cost_nothing() -> None:
    few, many = world(FEW, FEW), world(4 * FEW, FEW)
    alike(calls(few, FEW, 1), calls(many, 4 * FEW, 1))
    held = [sum(queue.held_until_ns > c.now_ns for queue in c.queues.values()) for c in (few, many)]
    assert held[0] >= FEW // 2 and held[1] >= 2 * FEW, "queues wait for larger batches"


def test_a_queue_that_waits_for_room_is_asked_only_when_that_may_have_changed() -> None:
    models = 4 * FEW
    controller = world(models, 4, memory_bytes=300)
    scheduler = controller.policy.scheduler
    offers, step = scheduler.offers, controller.step
    asked, per_step = 0, []

    def ask(queue: Queue, now_ns: int) -> Sequence[Offer] | Hold:
        nonlocal asked
        asked += 1
        return offers(queue, now_ns)

    def stepped(event: Event) -> list[Action]:
        nonlocal asked
        asked = 0
        actions = step(event)
        per_step.append(asked)
        return actions

    scheduler.offers = ask  # type: ignore[method-assign]
    controller.step = stepped  # type: ignore[method-assign]
    calls(controller, models, 4)
    waiting = sum(queue.size > 0 for queue in controller.queues.values())
    assert waiting >= models // 2, "few models fit, and most requests wait"
    assert median(per_step[-STEPS:]) <= 2
