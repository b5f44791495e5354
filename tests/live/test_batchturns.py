"""Whose turn it is, kernel by kernel: a higher class at the next kernel, and room for what is expected."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from dovetail.live.gate.tasks import NEVER_NS
from dovetail.live.worker.batchturns import TURNAROUND_NS, BatchTurns
from hypothesis import given
from hypothesis import strategies as st

from dovetail.device import StartKernel
from dovetail.profile.kernels import MIN_COUNT, KernelStats
from dovetail.units import MS, US

KERNEL_NS = 2 * MS


class Device:
    """One device in virtual time; every kernel takes as long as its batch says."""

    def __init__(self, known: dict[str, KernelStats] | None = None, ageing_ns: int = 0) -> None:
        self.turns = BatchTurns(known, ageing_ns=ageing_ns)
        self.now_ns = 0
        self.length_ns: dict[int, int] = {}
        self.ran: list[tuple[int, int]] = []
        self.running: tuple[StartKernel, int] | None = None

    def take(self, ident: int, priority: int, kernels: int = 3, length_ns: int = KERNEL_NS, **options: Any) -> None:
        self.length_ns[ident] = length_ns
        idents = [f"{length_ns}[{i}]" for i in range(kernels)]
        name = f"model-{kernels}-{length_ns}"
        objective_ns = options.get("objective_ns", 0)
        self.turns.take(ident, priority, objective_ns, name, [print] * kernels, idents, self.now_ns, self.now_ns)
        self.turns.take_back(priority, self.now_ns)

    def begin_kernel(self) -> int:
        """Begin the next kernel; the batch's number, or 0 if none may start."""
        while self.turns.starts:
            start = self.turns.starts.popleft()
            if start.task in self.turns.tasks:
                self.turns.tasks[start.task].running = True
                self.running = start, self.now_ns
                self.ran.append((start.task, start.kernel))
                return start.task
        return 0

    def end_kernel(self, then: bool = False) -> None:
        assert self.running is not None
        (start, begin_ns), self.running = self.running, None
        self.now_ns = max(self.now_ns, begin_ns + self.length_ns[start.task])
        task = self.turns.tasks[start.task]
        task.running = False
        if then:
            self.turns.expect(task.priority, self.now_ns, self.now_ns)
        self.turns.ended(task, start.kernel, begin_ns, self.now_ns, self.now_ns)

    def run_all(self) -> None:
        while True:
            while self.begin_kernel():
                self.end_kernel()
            if self.turns.alarm_ns >= NEVER_NS:
                return
            self.now_ns = max(self.now_ns, self.turns.alarm_ns)
            self.turns.ring(self.now_ns)

    def expect_while_a_lower_one_waits(self) -> None:
        """Batch 1, of the highest class, has ended and another is to follow; batch 2, lower and long, is here."""
        self.take(1, 1, 1)
        self.begin_kernel()
        self.take(2, 3)
        self.end_kernel(then=True)

    def learn(self, kernels: int = 3, length_ns: int = KERNEL_NS) -> None:
        """Let the arbiter know the kernels of such batches."""
        for i in range(MIN_COUNT):
            self.take(-1000 - i, 5, kernels, length_ns)
            self.run_all()
            self.now_ns += 100 * MS
        self.ran.clear()


def test_a_higher_class_begins_at_the_next_kernel_and_the_lower_goes_on_after_it() -> None:
    device = Device()
    device.take(1, 3)
    assert device.begin_kernel() == 1
    device.take(2, 1)
    device.end_kernel()
    device.run_all()
    assert device.ran == [(1, 0), (2, 0), (2, 1), (2, 2), (1, 1), (1, 2)]


def test_batches_of_one_class_run_one_after_the_other_by_deadline() -> None:
    device = Device()
    device.take(1, 1, 1)
    device.begin_kernel()
    for ident, objective_ns in ((2, 0), (3, 900 * MS), (4, 500 * MS), (5, 500 * MS), (6, 0)):
        device.take(ident, 2, 2, objective_ns=objective_ns)
    device.end_kernel()
    device.run_all()
    assert [task for task, kernel in device.ran if kernel == 0] == [1, 4, 5, 3, 2, 6]
    assert all(
        device.ran[i + 1] == (task, 1) for i, (task, kernel) in enumerate(device.ran) if not kernel and task > 1
    )


def test_a_hint_keeps_a_long_kernel_of_a_lower_class_off_until_the_expected_batch_is_there() -> None:
    device = Device()
    device.learn()
    device.expect_while_a_lower_one_waits()
    assert device.begin_kernel() == 0, "held back"
    device.now_ns += TURNAROUND_NS // 2
    device.take(3, 1, 1)
    assert device.begin_kernel() == 3
    device.end_kernel()
    device.run_all()
    assert device.ran == [(1, 0), (3, 0), (2, 0), (2, 1), (2, 2)]


def test_a_hint_holds_back_a_batch_that_comes_to_an_empty_device() -> None:
    device = Device()
    device.learn()
    device.take(1, 1, 1)
    device.begin_kernel()
    device.end_kernel(then=True)
    device.take(2, 3)
    assert device.begin_kernel() == 0
    device.take(3, 1, 1)
    assert device.begin_kernel() == 3


def test_a_hint_that_does_not_come_true_costs_its_time_and_the_grace() -> None:
    device = Device()
    device.learn()
    device.expect_while_a_lower_one_waits()
    held_ns = device.now_ns
    device.run_all()
    assert device.ran[-1] == (2, 2)
    grace_ns = device.turns.settings.grace_ns
    assert device.now_ns - held_ns <= 3 * KERNEL_NS + TURNAROUND_NS + grace_ns + MS // 10


def test_a_hint_lets_kernels_pass_that_end_before_it_and_holds_no_equal_class() -> None:
    device = Device()
    device.learn(length_ns=TURNAROUND_NS // 8)
    device.learn()
    device.take(1, 1, 1)
    device.begin_kernel()
    device.take(2, 3, length_ns=TURNAROUND_NS // 8)
    device.end_kernel(then=True)
    assert device.begin_kernel() == 2
    device.end_kernel()
    device.take(3, 1)
    assert device.begin_kernel() == 3


def test_the_turnaround_is_learned() -> None:
    device = Device()
    for i in range(60):
        device.take(2 * i + 1, 1, 1)
        device.begin_kernel()
        device.end_kernel(then=True)
        device.now_ns += 900 * US
        device.take(2 * i + 2, 1, 1)
        device.run_all()
        device.now_ns += 50 * MS
    assert device.turns.turnaround_ns == pytest.approx(900 * US, rel=0.01)


@given(st.randoms(use_true_random=False))
def test_nothing_starts_while_a_higher_class_is_ready_and_everything_runs(chance: Random) -> None:
    device = Device()
    wanted: dict[int, tuple[int, int]] = {}

    def come() -> None:
        for _ in range(chance.randint(0, 2)):
            ident = len(wanted) + 1
            wanted[ident] = chance.randint(1, 4), chance.randint(1, 4)
            device.take(ident, *wanted[ident], chance.choice([US, MS]))

    for _ in range(40):
        come()
        device.now_ns += chance.randint(0, MS)
        ident = device.begin_kernel()
        if ident:
            there = [wanted[i][0] for i in device.turns.tasks]
            assert wanted[ident][0] == min(there)
            come()
            device.end_kernel(then=chance.random() < 0.2)
        elif device.turns.alarm_ns < NEVER_NS:
            device.now_ns = max(device.now_ns, device.turns.alarm_ns)
            device.turns.ring(device.now_ns)
    device.run_all()
    assert not device.turns.tasks
    for ident, (_, kernels) in wanted.items():
        assert [k for task, k in device.ran if task == ident] == list(range(kernels))


def news(device: Device) -> dict[str, KernelStats]:
    return {stats.name: stats for stats in device.turns.news(100)}


def test_what_others_have_learned_is_known_at_once() -> None:
    teacher = Device()
    teacher.learn()
    learned = news(teacher)
    for known, holds in ((learned, True), ({}, False)):
        device = Device(known)
        device.expect_while_a_lower_one_waits()
        assert (device.begin_kernel() == 0) is holds, "only a kernel that is known to be too long is held back"


def test_news_are_what_was_seen_since_the_last() -> None:
    device = Device()
    device.learn()
    (first,) = news(device).values()
    assert first.seen == MIN_COUNT and first.gaps[0].count == MIN_COUNT
    assert news(device) == {}
    device.take(1, 5)
    device.run_all()
    (second,) = news(device).values()
    assert second.seen == 1
    learner = Device({first.name: first})
    learner.take(1, 5)
    learner.run_all()
    (third,) = news(learner).values()
    assert third.seen == 1, "what was known before is no news"
    assert learner.turns.stats[first.name].seen == MIN_COUNT + 1


def test_news_of_many_come_in_turn() -> None:
    device = Device()
    for i in range(5):
        device.take(i + 1, 5, length_ns=MS + i)
        device.run_all()
    told = [stats.name for _ in range(3) for stats in device.turns.news(2)]
    assert len(told) == len(set(told)) == 5


def test_kernels_that_take_another_time_now_are_learned_anew_and_told_as_such() -> None:
    device = Device()
    device.learn()
    name = next(iter(device.turns.stats))
    (before,) = device.turns.news(9)
    device.length_ns.clear()
    for i in range(400):
        device.take(i + 1, 5)
        device.length_ns[i + 1] = 3 * KERNEL_NS
        device.run_all()
    (now,) = device.turns.news(9)
    assert now.name == name
    before.merge(now)
    assert before.durations[0].mean_ns == pytest.approx(3 * KERNEL_NS)


@pytest.mark.parametrize("ageing_ns", [0, 5 * MS])
def test_with_ageing_a_lower_class_gets_a_kernel_per_this_time_and_without_none(ageing_ns: int) -> None:
    device = Device(ageing_ns=ageing_ns)
    device.take(1000, 3, kernels=4)
    waits = []
    for ident in range(1, 40):
        device.take(ident, 1)
        for _ in range(3):
            if device.begin_kernel() == 1000:
                waits.append(device.now_ns)
            device.end_kernel()
    assert len(waits) == (4 if ageing_ns else 0)
    # A wait that was taken back once counts twice at most.
    assert all(ageing_ns <= b - a <= 2 * ageing_ns + 2 * KERNEL_NS for a, b in pairwise(waits))


def test_equals_do_not_age() -> None:
    device = Device(ageing_ns=MS)
    for ident in (1, 2, 3):
        device.take(ident, 2)
    device.run_all()
    assert [task for task, _ in device.ran] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_what_is_known_of_kernels_is_bounded() -> None:
    turns = BatchTurns()
    for i in range(2000):
        turns.take(i, 1, 0, f"shape-{i}", [print], ["kernel"], i, i)
        turns.gone(turns.tasks[i], i)
    assert len(turns.stats) < 1000
    assert all(isinstance(s, KernelStats) for s in turns.stats.values())
