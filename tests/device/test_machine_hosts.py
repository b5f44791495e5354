"""Tasks whose hosts launch kernels one by one, and arbiters by which equals take turns: golden lists of actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dovetail.device import (
    ArbiterSettings,
    Device,
    DeviceTimes,
    GapArbiter,
    GapSettings,
    KernelArbiter,
    ModelCache,
    PriorityArbiter,
    Rules,
    TaskState,
)
from dovetail.device.events import (
    TO_THE_END,
    BatchWithdrawn,
    DeviceAction,
    DeviceEvent,
    Grant,
    GrantEnded,
    KernelsLaunched,
    PlannedBatch,
    Refuse,
    Revoke,
    TaskPlanned,
)
from dovetail.device.times import MOST_PENDING, WELL_KNOWN
from dovetail.lab.kernels.first_come import FirstComeArbiter
from dovetail.predict import Estimator
from dovetail.profile.kernels import MIN_COUNT, KernelStats
from dovetail.profile.table import ProfileTable
from dovetail.state import NEVER_NS, RunBatch
from dovetail.units import MS, US

IDENTS = ("a", "b", "c")


class Host:
    """A device with one kind of task, in virtual time."""

    def __init__(self, arbiter: Any = None, rules: Rules | None = None, **times: Any) -> None:
        self.predictor = Estimator(ProfileTable())
        if callable(arbiter):
            arbiter = arbiter(self.predictor.kernels)
        cache, known = ModelCache(0), DeviceTimes(self.predictor, "gpu", {}, **times)
        self.device = Device(0, {"model": ("", 0)}, cache, known, rules, arbiter=arbiter)
        self.now_ns = 0

    @property
    def stats(self) -> KernelStats:
        return self.predictor.kernels["model"]

    def step(self, event: DeviceEvent) -> list[DeviceAction]:
        actions = self.device.step(event, self.now_ns)
        self.device.validate()
        return actions

    def begin(self, batch: int, launched: int, priority: int = 1, **more: Any) -> list[DeviceAction]:
        run = batch_of(batch, priority, **more)
        return self.step(PlannedBatch(run, "model", IDENTS, launched))

    def launch(self, task: int, upto: int) -> list[DeviceAction]:
        return self.step(KernelsLaunched(task, upto))

    def ran(self, task: int, first: int, *lengths_ns: int, gaps: tuple[int, ...] = ()) -> list[DeviceAction]:
        """Kernels from `first` on take so long, one after the other, and end the grant."""
        spans = []
        for length_ns in lengths_ns:
            spans.append((self.now_ns, self.now_ns + length_ns))
            self.now_ns += length_ns
        upto = first + len(lengths_ns)
        return self.step(GrantEnded(task, upto, upto == len(IDENTS), tuple(spans), gaps))


def ours(stats: Mapping[str, KernelStats]) -> KernelArbiter:
    return GapArbiter(stats, GapSettings(), learn=False)


def batch_of(batch: int, priority: int, **more: Any) -> RunBatch:
    more = {"share_pct": 100, "latest_ns": NEVER_NS, **more}
    return RunBatch(0, batch, 0, "model", (), 1, earliest_ns=0, expected_ns=0, priority=priority, **more)


def test_a_batch_that_comes_with_its_kernels_is_granted_as_far_as_they_are_launched() -> None:
    host = Host()
    assert host.begin(1, 0) == [], "nothing is launched yet"
    host.now_ns = 5 * US
    assert host.launch(1, 1) == [Grant(1)]
    assert host.stats.gaps[0].mean_ns == 5 * US
    assert host.ran(1, 0, MS) == []
    host.now_ns += 30 * US
    assert host.launch(1, 3) == [Grant(1, 1)]
    assert host.ran(1, 1, MS, MS, gaps=(-MS,)) == []
    assert host.device.idle
    assert [spread.count for spread in host.stats.durations] == [1, 1, 1]
    assert [(spread.count, spread.mean_ns) for spread in host.stats.gaps[1:]] == [(1, 30 * US), (1, 0), (0, 0)]


def test_what_is_told_later_of_a_grant_that_was_kept_is_learned_in_full() -> None:
    host = Host()
    assert host.begin(1, 1) == [Grant(1)]
    spans = ((0, 10), (30, 40), (50, 60))
    host.now_ns = 60
    host.launch(1, 3)
    assert host.step(GrantEnded(1, 3, True, spans, (20, 10))) == []
    assert [spread.mean_ns for spread in host.stats.durations] == [10, 10, 10]
    assert [(spread.count, spread.mean_ns) for spread in host.stats.gaps] == [(0, 0), (1, 20), (1, 10), (0, 0)]


def test_of_batches_that_ran_beside_each_other_nothing_is_learned() -> None:
    host = Host()
    for batch in (1, 2):
        (grant,) = host.begin(batch, 3, share_pct=50)
        assert isinstance(grant, Grant) and grant.hit
    for batch in (1, 2):
        host.ran(batch, 0, MS, MS, MS)
    assert "model" not in host.predictor.kernels or [s.count for s in host.stats.durations] == [0, 0, 0]
    host.begin(3, 3, share_pct=50)
    host.ran(3, 0, MS, MS, MS)
    assert [spread.count for spread in host.stats.durations] == [1, 1, 1], "it was alone"


def test_a_batch_that_has_ended_is_over() -> None:
    host = Host()
    host.begin(1, 3)
    task = host.device.task(1)
    assert task is not None and task.state is TaskState.RUNNING
    host.ran(1, 0, MS, MS, MS)
    assert task.state is TaskState.OVER and host.device.task(1) is None


def test_a_batch_that_is_refused_leaves_no_host_behind() -> None:
    host = Host()
    host.now_ns = MS
    (refused,) = host.begin(1, 1, share_pct=0)
    assert isinstance(refused, Refuse) and refused.reason == "no_share"
    (refused,) = host.begin(2, 1, latest_ns=1)
    assert isinstance(refused, Refuse) and refused.reason == "too_late"
    with pytest.raises(ValueError, match="4 of 3 kernels of task 3"):
        host.begin(3, 4)
    assert host.device.idle
    assert host.step(batch_of(4, 1)) == [Grant(4)], "and batches are granted at once again"


def test_of_a_hosted_task_that_is_not_alone_every_kernel_is_granted_by_itself() -> None:
    host = Host(PriorityArbiter())
    assert host.begin(1, 1) == [Grant(1)]
    assert host.begin(2, 3, priority=2) == [Revoke(1)], "it may leave gaps"
    assert host.ran(1, 0, MS) == [], "strict classes fill none"
    assert host.launch(1, 2) == [Grant(1, 1, 1)]
    assert host.ran(1, 1, MS) == []
    assert host.launch(1, 3) == [Grant(1, 2)], "with all launched it may go on to the end"
    assert host.ran(1, 2, MS) == [Grant(2)]


def test_a_task_that_is_entered_in_a_gap_is_known_by_its_place_and_since_when_it_waits() -> None:
    host = Host(GapArbiter(settings=GapSettings(budget=0.0), learn=False), learn=False)
    arbiter = host.device.dispatch.arbiter
    assert isinstance(arbiter, GapArbiter)
    host.begin(1, 2)
    host.ran(1, 0, MS, MS)
    host.now_ns += 3 * US
    host.begin(2, 3, priority=2)
    assert (arbiter._tasks[1].position, arbiter._tasks[1].free_ns) == (1, 2 * MS)


def test_a_task_in_a_gap_stays_with_the_arbiter_when_the_other_is_gone_and_leaves_it_with_its_next_kernel() -> None:
    host = Host(PriorityArbiter())
    host.begin(1, 1)
    host.begin(2, 3, priority=2)
    host.ran(1, 0, MS)
    assert host.step(BatchWithdrawn(2)) == []
    assert host.device.dispatch.entered
    assert host.launch(1, 2) == [Grant(1, 1, TO_THE_END)]
    assert not host.device.dispatch.entered


def test_equals_take_turns_if_the_arbiter_says_so_and_else_come_one_after_the_other() -> None:
    turns = Host(PriorityArbiter(settings=ArbiterSettings(order="turn")))
    assert turns.begin(1, 3) == [Grant(1)]
    assert turns.begin(2, 3) == [Revoke(1)]
    assert turns.ran(1, 0, MS) == [Grant(2, 0, 0)]
    assert turns.ran(2, 0, MS) == [Grant(1, 1, 1)]
    after = Host(PriorityArbiter(settings=ArbiterSettings(order="slack")))
    assert after.begin(1, 3) == [Grant(1)]
    assert after.begin(2, 3) == []
    assert after.ran(1, 0, MS, MS, MS) == [Grant(2)]


def test_a_higher_class_does_not_take_turns_with_a_lower_one() -> None:
    host = Host(PriorityArbiter())
    host.begin(1, 3, priority=2)
    assert host.begin(2, 3) == [Revoke(1)]
    assert host.ran(1, 0, MS) == [Grant(2)], "to the end: nobody of its class is there"


def test_the_end_of_a_task_is_no_gap_that_could_be_filled() -> None:
    """Of three classes the third may go before the second in a gap of the first, but not at its end."""
    host = Host(ours)
    for batch, sequence in ((1, "gaps"), (2, "unknown"), (3, "short")):
        host.step(PlannedBatch(batch_of(batch, batch), sequence, IDENTS, 3))
    for _ in range(MIN_COUNT):
        for kernel in range(len(IDENTS)):
            host.predictor.kernels["gaps"].observe_gap(kernel, 100 * MS)
            host.predictor.kernels["short"].observe(kernel, MS)
    host.now_ns = MS
    granted = [a for a in host.step(GrantEnded(1, 3)) if isinstance(a, Grant)]
    assert [(grant.task, grant.why) for grant in granted] == [(2, "turn")]


def test_first_come_first_served_goes_by_launches_over_classes_and_tasks() -> None:
    host = Host(FirstComeArbiter())
    assert host.begin(1, 2, priority=2) == [Grant(1)]
    assert host.begin(2, 1) == [Revoke(1)]
    assert host.launch(1, 3) == []
    assert host.launch(2, 3) == []
    assert host.ran(1, 0, MS) == [Grant(1, 1, 1)]
    assert host.ran(1, 1, MS) == [Grant(2, 0, 0)]
    assert host.ran(2, 0, MS) == [Grant(1, 2, 2)]
    assert host.ran(1, 2, MS) == [Grant(2, 1)]


def test_first_come_knows_how_far_a_revoked_grant_came_and_takes_back_what_did_not_begin() -> None:
    host = Host(FirstComeArbiter())
    host.begin(1, 3)
    host.begin(2, 3)
    assert host.step(GrantEnded(1, 0, False)) == [Grant(1, 0, 0)], "it was first, and is so still"
    assert host.ran(1, 0, MS) == [Grant(1, 1, 1)]
    again = Host(FirstComeArbiter())
    again.begin(1, 3)
    again.begin(2, 3)
    assert again.ran(1, 0, MS, MS) == [Grant(1, 2, 2)]


@pytest.mark.parametrize("revokes_one", [False, True])
def test_one_kernel_is_revoked_for_a_higher_class_only_by_a_device_that_listens_before_it_begins(
    revokes_one: bool,
) -> None:
    host = Host(PriorityArbiter(), Rules(revokes_one=revokes_one))
    host.begin(1, 1, priority=3)
    host.begin(2, 1, priority=3)
    assert host.ran(1, 0, MS) == [Grant(2, 0, 0)]
    assert host.launch(1, 2) == [], "an equal takes nothing back"
    assert host.begin(3, 0, priority=1) == [], "neither does a higher one of which nothing is launched"
    assert host.launch(3, 1) == ([Revoke(2)] if revokes_one else [])
    if revokes_one:
        assert host.step(GrantEnded(2, 0, False)) == [Grant(3, 0, 0)]


def test_an_aged_kernel_is_not_revoked() -> None:
    host = Host(PriorityArbiter(settings=ArbiterSettings(ageing_ns=MS)), Rules(revokes_one=True))
    host.begin(1, 1)
    host.begin(2, 3, priority=2)
    host.ran(1, 0, 2 * MS)
    assert host.device.task(2) is not None
    assert [a for a in host.launch(1, 2) if isinstance(a, Revoke)] == []


def test_plans_that_come_later_still_count() -> None:
    host = Host(PriorityArbiter())
    assert host.step(batch_of(1, 1)) == [Grant(1)]
    assert host.step(TaskPlanned(1, "model", IDENTS, 3)) == []
    assert host.begin(2, 3) == [Revoke(1)]


@pytest.mark.parametrize(("every", "counts"), [(1, WELL_KNOWN + 8), (4, WELL_KNOWN + 2)])
def test_of_grants_over_several_kernels_of_a_well_known_sequence_one_in_so_many_is_learned_from(
    every: int, counts: int
) -> None:
    host = Host(learn_every=every)
    for batch in range(WELL_KNOWN + 8):
        host.begin(batch, 3)
        host.ran(batch, 0, MS, MS, MS)
    assert [spread.count for spread in host.stats.durations] == [counts] * 3


def test_who_is_in_a_hurry_learns_later_and_never_puts_off_too_much() -> None:
    host = Host(lazy=True)
    for batch in range(MOST_PENDING):
        host.begin(batch, 3)
        host.ran(batch, 0, MS, MS, MS, gaps=(-1, 5))
    assert host.stats.seen == 0
    times = host.device._times
    times.catch_up()
    assert (host.stats.seen, host.stats.gaps[2].mean_ns) == (MOST_PENDING, 5)
    times.catch_up()
    assert host.stats.seen == MOST_PENDING, "once"
    for batch in range(MOST_PENDING + 1):
        host.begin(batch, 3)
        host.ran(batch, 0, MS, MS, MS)
    assert host.stats.seen == 2 * MOST_PENDING + 1


def test_single_kernels_are_always_learned_from() -> None:
    host = Host(PriorityArbiter(), learn_every=4)
    for batch in range(1, WELL_KNOWN + 9):
        host.begin(batch, 1)
        for kernel in range(3):
            host.ran(batch, kernel, MS)
            host.launch(batch, kernel + 2)
    assert [spread.count for spread in host.stats.durations] == [WELL_KNOWN + 8] * 3


def test_a_device_that_does_not_learn_keeps_nothing() -> None:
    host = Host(learn=False)
    host.begin(1, 1)
    host.ran(1, 0, MS)
    host.now_ns += MS
    host.launch(1, 3)
    host.ran(1, 1, MS, MS, gaps=(5,))
    assert sum(spread.count for spread in [*host.stats.durations, *host.stats.gaps]) == 0


def test_gaps_of_a_task_that_is_behind_are_not_learned() -> None:
    host = Host(ours)
    arbiter = host.device.dispatch.arbiter
    assert isinstance(arbiter, GapArbiter)
    host.begin(1, 1)
    host.begin(2, 3, priority=2)
    host.ran(1, 0, MS)
    arbiter._delayed(arbiter._tasks[1], MS)
    host.now_ns += MS
    host.launch(1, 2)
    host.ran(1, 1, MS, gaps=(-1,))
    assert [spread.count for spread in host.stats.gaps] == [0, 0, 0, 0]
