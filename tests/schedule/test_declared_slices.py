"""Slices that stages declare are used by the scheduler's offers, as the scaler's are."""

from __future__ import annotations

import pytest

from dovetail.control import (
    Action,
    BatchFinished,
    Controller,
    Event,
    ModelLoaded,
    Policy,
    RequestArrived,
    RunBatch,
    SliceChanged,
    WorkerJoined,
)
from dovetail.control.validate import validate
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.schedule import Dovetail, PlannerSettings
from dovetail.schedule.in_slices import IN_SLICE
from dovetail.schedule.offers import Considered
from dovetail.state import WorkerSpec
from dovetail.units import MS, SECOND
from dovetail.wiring import PolicySpec, make_controller, own_policy
from dovetail.workflow.graph import StageSpec, chain

SPEC = WorkerSpec("gpu", "gpu", ("model",), usd_per_hour=3600.0)
SLOW = WorkerSpec("old", "old", ("model",), usd_per_hour=3600.0)
#: A batch of four hardly takes longer than one on the one device, and three times as long on the other.
TIMES_MS = {"gpu": {1: 10, 2: 12, 4: 16}, "old": {1: 30, 2: 50, 4: 90}}
READ = StageSpec("read", "model", (1, 2, 4), share_pct=50, quota_pct=40, client="flow")


def table(*stages: StageSpec) -> ProfileTable:
    return ProfileTable(
        [
            Entry(stage.name, kind, points=tuple(Point(b, 1, ms * MS, 0.0, 1) for b, ms in times.items()))
            for stage in stages
            for kind, times in TIMES_MS.items()
        ]
    )


class World:
    """Workers 1, 2 and so on of these kinds, and a workflow of one stage with a slice of its own."""

    def __init__(
        self, *specs: WorkerSpec, slo_ns: int = SECOND, stage: StageSpec = READ, policy: Policy | None = None
    ) -> None:
        known = table(stage)
        self.weighed: list[Considered] = []
        if policy is None:
            policy = own_policy(Estimator(known), PlannerSettings(goal="time", admission=False))
            assert isinstance(policy.scheduler, Dovetail)
            policy.scheduler.watcher = self.weighed.append
        self.controller = Controller([chain("flow", slo_ns, [stage])], policy)
        self.requests = 0
        for ident, spec in enumerate(specs, 1):
            self.step(WorkerJoined(0, 0, ident, spec))
            self.step(ModelLoaded(0, 0, ident, stage.name, 0))

    def step(self, event: Event) -> list[RunBatch]:
        actions: list[Action] = self.controller.step(event)
        validate(self.controller)
        return [a for a in actions if isinstance(a, RunBatch)]

    def ask(self, at_ms: int) -> list[RunBatch]:
        self.requests += 1
        return self.step(RequestArrived(at_ms * MS, 0, self.requests, 0))

    def done(self, run: RunBatch, at_ms: int) -> list[RunBatch]:
        return self.step(BatchFinished(at_ms * MS, 0, run.batch, run.earliest_ns, at_ms * MS))


def brief(runs: list[RunBatch]) -> list[tuple[int, int, int, int, str, str]]:
    return [(r.worker, len(r.items), r.share_pct, r.quota_pct, r.client, r.reason) for r in runs]


def test_every_batch_of_a_declared_slice_is_an_offer_that_was_weighed() -> None:
    """The golden list: what is sent, where, how large and why, and what was offered for it."""
    w = World(SPEC)
    one = (1, 1, 50, 40, "flow", IN_SLICE)
    assert brief(w.ask(0)) == [one]
    second = w.ask(1)
    assert brief(second) == [one], "one more waits at the device for its tokens"
    assert w.ask(2) == [] and w.ask(3) == [], "and no third"
    assert [len(c.offers) for c in w.weighed] == [1, 1], "nothing is weighed where no slice has room"
    assert brief(w.step(BatchFinished(10 * MS, 0, 1, 0, 10 * MS))) == [(1, 2, 50, 40, "flow", IN_SLICE)]
    (offer,) = w.weighed[-1].offers
    assert (offer.worker.id, offer.config.batch, offer.start_ns, offer.run_ns) == (1, 2, 10 * MS, 12 * MS)
    assert offer.score == (10 + 12) * MS / 2, "what the slice was sent before goes first"
    assert w.weighed[-1].waiting == 2


def test_the_slice_in_which_a_batch_would_end_first_is_taken() -> None:
    w = World(SLOW, SPEC)
    assert [r.worker for r in w.ask(0)] == [2], "the faster device"
    assert [r.worker for r in w.ask(0)] == [2], "10 and 10 ms there are still less than 30"
    assert [r.worker for r in w.ask(0)] == [1], "no room there any more"
    assert [r.worker for r in w.ask(0)] == [1] and w.ask(0) == []


def test_of_equals_the_worker_with_the_fewest_batches_is_taken() -> None:
    w = World(SPEC, SPEC)
    assert [r.worker for _ in range(4) for r in w.ask(0)] == [1, 2, 1, 2]


@pytest.mark.parametrize(("slo_ms", "items"), [(1000, 4), (72, 1)])
def test_the_planner_says_how_large_a_batch_is(slo_ms: int, items: int) -> None:
    """On the slow device four together take 90 ms, and one takes 30."""
    w = World(SLOW, slo_ns=slo_ms * MS)
    first, _ = [run for _ in range(2) for run in w.ask(0)]
    for _ in range(4):
        assert w.ask(1) == []
    (run,) = w.done(first, 30)
    assert len(run.items) == items


def test_a_slice_that_is_changed_is_what_the_next_offer_has() -> None:
    w = World(SPEC, SPEC)
    w.ask(0)
    w.step(SliceChanged(MS, 0, "flow", 25, 70, 1))
    (run,) = w.ask(2)
    assert (run.worker, run.share_pct, run.quota_pct) == (1, 25, 70)
    assert w.ask(3) == [], "the other worker is not its home"
    (run,) = w.step(SliceChanged(4 * MS, 0, "flow", 30, 60, 0))
    assert (run.worker, run.share_pct, run.quota_pct) == (2, 30, 60)


def test_a_model_that_goes_and_comes_back_finds_its_slice_as_it_was_changed() -> None:
    w = World(SPEC)
    w.step(SliceChanged(MS, 0, "flow", 25, 70, 0))
    w.controller.cluster.let_go("read", 1)
    assert w.ask(2) == [], "nobody has the model"
    w.step(ModelLoaded(3 * MS, 0, 1, "read", 0))
    w.controller.workers[1].resident["read"] = 0
    (run,) = w.ask(4)
    assert (run.share_pct, run.quota_pct) == (25, 70)


@pytest.mark.parametrize("name", ["by-class", "esg", "infless", "orion", "compass", "hash", "dovetail"])
def test_every_policy_runs_a_stage_in_its_slices_and_nowhere_else(name: str) -> None:
    """`validate` looks after every step: no batch beside its slice, and nothing waits that has room there."""
    other = StageSpec("plain", "model", (1, 2, 4))
    graphs = [chain("flow", SECOND, [READ]), chain("rest", SECOND, [other])]
    controller = make_controller(graphs, PolicySpec(name=name), list(table(READ, other).entries.values()), 1)
    running: list[RunBatch] = []
    seen = set()

    def step(event: Event) -> None:
        actions = controller.step(event)
        validate(controller)
        running.extend(a for a in actions if isinstance(a, RunBatch))
        seen.update((r.stage, r.share_pct, r.quota_pct, r.client) for r in running if r.stage == "read")

    for ident in (1, 2):
        step(WorkerJoined(0, 0, ident, SPEC))
        for stage in ("read", "plain"):
            step(ModelLoaded(0, 0, ident, stage, 0))
    for number in range(1, 25):
        step(RequestArrived(number * MS, 0, number, number % 2))
        sent = [run.worker for run in running if run.stage == "read"]
        assert max(sent.count(1), sent.count(2)) <= 2
        if number % 3 == 0 and running:
            run = running.pop(0)
            step(BatchFinished(number * MS, 0, run.batch, run.earliest_ns, number * MS))
    while running:
        run = running.pop(0)
        step(BatchFinished(30 * MS, 0, run.batch, run.earliest_ns, 30 * MS))
    assert not controller.requests and seen == {("read", 50, 40, "flow")}
