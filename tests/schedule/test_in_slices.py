"""Offers in slices, decision by decision: a scripted scaler opens them."""

from __future__ import annotations

from tests.control.test_scaling import SPEC, Scripted, runs

from dovetail.control import BatchFinished, Controller, Event, ModelLoaded, RequestArrived, RunBatch, WorkerJoined
from dovetail.control.actions import SetTimer
from dovetail.control.validate import validate
from dovetail.predict import Estimator
from dovetail.predict.interference import Interference
from dovetail.profile.curve import Curve
from dovetail.profile.table import Entry, ProfileTable
from dovetail.scale import Adjustment, SliceWish
from dovetail.schedule import Dovetail, PlannerSettings
from dovetail.schedule.in_slices import IN_SLICE, QUOTA, WHOLE
from dovetail.schedule.offers import Considered
from dovetail.units import MS, SECOND
from dovetail.wiring import own_policy
from dovetail.workflow.graph import StageSpec, chain

NAMES = ("look", "read")
#: The smaller the share, the longer it takes.
CURVE = Curve((1, 2, 4), (MS, MS, MS), (10 * MS, 18 * MS, 32 * MS))


class _Both(Scripted):
    def manages(self, stage: StageSpec) -> bool:
        return True


class World:
    """A device with two stages; every event may bring slices: (stage, share, quota, batch)."""

    def __init__(
        self, *slices: tuple[str, int, int, int], limits: bool, interference: Interference | None = None
    ) -> None:
        stages = [StageSpec(name, "model", (1, 2, 4)) for name in NAMES]
        table = ProfileTable([Entry(name, "gpu", curve=CURVE) for name in NAMES])
        self.scaler = _Both()
        policy = own_policy(
            Estimator(table, interference=interference), PlannerSettings(goal="time"), scaler=self.scaler
        )
        self.controller = Controller([chain(s.name, SECOND, [s]) for s in stages], policy)
        self.weighed: list[Considered] = []
        assert isinstance(policy.scheduler, Dovetail)
        policy.scheduler.watcher = self.weighed.append
        self.step(WorkerJoined(0, 0, 1, SPEC))
        for name in NAMES:
            self.step(ModelLoaded(0, 0, 1, name, 0))
        self.scaler.wish = Adjustment(
            slices=tuple(SliceWish(name, 1, *size, "test", limits=limits) for name, *size in slices)
        )
        self.requests = 0
        self.started = self.ask("look")

    def step(self, event: Event) -> list[RunBatch]:
        self.actions = self.controller.step(event)
        validate(self.controller)
        return runs(self.actions)

    def ask(self, name: str) -> list[RunBatch]:
        self.requests += 1
        return self.step(RequestArrived(self.controller.now_ns, 0, self.requests, NAMES.index(name)))

    @property
    def running(self) -> dict[str, tuple[int, int, int]]:
        """Share, quota and items of what runs, by client."""
        return {
            b.slice.client: (b.config.share_pct, b.config.quota_pct, len(b.items))
            for b in self.controller.batches.values()
            if b.slice is not None
        }


def test_a_limit_is_all_that_a_batch_has() -> None:
    world = World(("look", 40, 50, 1), limits=True)
    assert world.running == {"look#1": (40, 50, 1)}
    assert world.weighed[-1].offers[0].reason == IN_SLICE


def test_what_is_no_limit_is_the_least_and_alone_a_batch_has_what_the_planner_gives() -> None:
    world = World(("look", 40, 50, 1), ("read", 30, 50, 1), limits=False)
    assert world.running == {"look#1": (100, 50, 1)}
    assert world.weighed[-1].offers[0].reason == WHOLE
    world.ask("read")
    assert world.running["read#2"] == (30, 50, 1), "beside another it has its share"
    assert world.weighed[-1].offers[0].reason == IN_SLICE


def test_a_slice_runs_one_batch_and_the_next_has_all_that_waits_up_to_its_largest() -> None:
    world = World(("look", 50, 100, 2), limits=True)
    (first,) = list(world.controller.batches)
    for _ in range(3):
        assert world.ask("look") == [], "its slice is at work"
    now_ns = world.controller.now_ns
    (run,) = world.step(BatchFinished(now_ns + 20 * MS, 0, first, now_ns, now_ns + 20 * MS))
    assert len(run.items) == 2


def test_a_batch_waits_here_for_the_quota_and_a_timer_is_set_for_its_end() -> None:
    world = World(("look", 50, 10, 1), limits=True)
    (first,) = list(world.controller.batches)
    now_ns = world.controller.now_ns
    world.step(BatchFinished(now_ns + 20 * MS, 0, first, now_ns, now_ns + 20 * MS))
    assert world.ask("look") == []
    (considered,) = world.weighed[-1:]
    offer = considered.offers[0]
    assert offer.reason == QUOTA and offer.start_ns > world.controller.now_ns
    assert offer.score == offer.start_ns - world.controller.now_ns + offer.run_ns, "the wait counts"
    (timer,) = [a for a in world.actions if isinstance(a, SetTimer) and a.at_ns == offer.start_ns]
    assert timer.reason == QUOTA


def test_the_least_score_is_taken_and_of_equals_the_slice_that_was_idle_for_longest() -> None:
    world = World(("look", 25, 100, 1), ("look", 50, 100, 1), ("look", 25, 100, 1), limits=True)
    assert list(world.running) == ["look#2"], "the larger share ends first"
    world.ask("look")
    world.ask("look")
    assert list(world.running) == ["look#2", "look#1", "look#3"]
    runs_of = {b.slice.id: b.id for b in world.controller.batches.values() if b.slice is not None}
    now_ns = world.controller.now_ns
    for slice_id in (3, 1):  # 3 is idle first
        now_ns += MS
        world.step(BatchFinished(now_ns, 0, runs_of[slice_id], 0, now_ns))
    world.ask("look")
    assert "look#3" in world.running and "look#1" not in world.running


def test_what_a_batch_takes_is_that_of_the_items_which_it_has() -> None:
    world = World(("look", 50, 100, 2), limits=True)
    (first,) = list(world.controller.batches)
    for _ in range(3):
        world.ask("look")
    now_ns = world.controller.now_ns
    world.step(BatchFinished(now_ns + 20 * MS, 0, first, now_ns, now_ns + 20 * MS))
    offer = next(c.offers[0] for c in reversed(world.weighed) if c.waiting == 3 and c.offers)
    assert offer.config.batch == 2 and offer.score == offer.run_ns / 2, "three wait, two of them go"
