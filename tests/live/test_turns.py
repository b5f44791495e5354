"""Whose kernel is next: whatever comes and goes, everything launched runs once, in order and one at a time."""

from __future__ import annotations

import typing
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.live.gate.tasks import NEVER_NS, Client, Task
from dovetail.live.gate.turns import WELL_KNOWN, Turns
from dovetail.live.gate.wire import Begin, GatePolicy
from dovetail.profile.kernels import KernelStats

NAMES = typing.get_args(typing.get_type_hints(GatePolicy)["name"])
KERNELS = 4
IDENTS = [f"kernel[{i}]" for i in range(KERNELS)]


def make_task(ident: int, now_ns: int, priority: int = 1) -> Task:
    program: Any = SimpleNamespace(name="model", idents=IDENTS, begin=lambda: [print] * KERNELS)
    client: Any = Client(ident, typing.cast(Any, None))
    return Task(ident, client, Begin(ident, 1, priority, 0, now_ns), program, now_ns)


class Device:
    """A device in virtual time that does as `Turns` says."""

    def __init__(self, policy: GatePolicy) -> None:
        self.stats = {"model": KernelStats.empty("model", IDENTS)}
        self.turns = Turns(policy, self.stats)
        self.now_ns = 0
        self.ran: dict[int, list[int]] = {}
        self.whole: dict[int, Task] = {}

    def begin(self, priority: int, launch: int) -> Task:
        task = make_task(len(self.whole) + 1, self.now_ns, priority)
        self.whole[task.ident] = task
        self.ran[task.ident] = []
        self.turns.begin(task)
        self.launch(task, launch)
        return task

    def launch(self, task: Task, more: int) -> None:
        for _ in range(min(more, KERNELS - task.launched)):
            task.ready_ns.append(self.turns.when(self.now_ns, self.now_ns))
            task.launched += 1
        self.turns.launch(task)

    def run_one(self, length_ns: int, meanwhile: typing.Callable[[], None] = lambda: None) -> bool:
        """Run the next kernel if one may start; `meanwhile` comes in before its end is told."""
        return self._run(length_ns, meanwhile)

    def run_on(self, length_ns: int) -> bool:
        """Run the next kernel if one may start, and those that go on after it."""
        return self._run(length_ns, None)

    def _run(self, length_ns: int, meanwhile: typing.Callable[[], None] | None) -> bool:
        while self.turns.starts:
            start = self.turns.starts.popleft()
            task = self.turns.tasks.get(start.task)
            if task is None:
                continue
            assert start.kernel == len(self.ran[task.ident]) < task.launched, "in order, and only what is launched"
            kernel = start.kernel
            task.running = True
            while True:
                begin_ns = self.now_ns
                self.ran[task.ident].append(kernel)
                self.now_ns += length_ns
                if meanwhile is not None:
                    meanwhile()
                    break
                if not self.turns.goes_on(task, begin_ns, self.now_ns):
                    break
                kernel += 1
                assert kernel < task.launched
            task.running = False
            if task.ident in self.turns.tasks:
                self.turns.ended(task, kernel, begin_ns, self.now_ns, self.now_ns)
                self.turns.leave_alone(self.now_ns)
            return True
        return False

    def ring(self) -> bool:
        if self.turns.alarm_ns >= NEVER_NS:
            return False
        self.now_ns = max(self.now_ns, self.turns.alarm_ns)
        self.turns.ring(self.now_ns)
        return True


@settings(max_examples=150)
@given(st.sampled_from(NAMES), st.sampled_from([0, 5_000_000]), st.randoms(use_true_random=False))
def test_everything_launched_runs_once_in_order_whoever_comes_and_goes(
    name: Any, ageing: int, chance: Random
) -> None:
    device = Device(GatePolicy(name, ageing_ns=ageing, learn=True))
    cancelled: set[int] = set()

    def something() -> None:
        there = list(device.turns.tasks.values())
        what = chance.random()
        if what < 0.3 and len(device.whole) < 12:
            device.begin(chance.randint(1, 3), chance.randint(0, KERNELS))
        elif what < 0.7 and there:
            device.launch(chance.choice(there), chance.randint(1, KERNELS))
        elif what < 0.8 and there:
            task = chance.choice(there)
            cancelled.add(task.ident)
            device.turns.gone(task, device.now_ns)

    for _ in range(80):
        device.now_ns += chance.randint(0, 500_000)
        if chance.random() < 0.5:
            something()
        elif chance.random() < 0.3:
            device.turns.take_back(chance.randint(1, 3), device.now_ns)
        elif chance.random() < 0.5:
            device.run_on(chance.randint(1, 3_000_000))
        else:
            device.run_one(chance.randint(1, 3_000_000), something)
    for _ in range(400):
        for task in list(device.turns.tasks.values()):
            device.launch(task, KERNELS)
        if not device.run_one(100_000) and not (device.turns.tasks and device.ring()):
            break
    assert not device.turns.tasks, "a task was never let in"
    for ident, ran in device.ran.items():
        assert ran == list(range(len(ran)))
        assert len(ran) == KERNELS or ident in cancelled


@pytest.mark.parametrize("name", NAMES)
def test_a_lone_task_is_run_without_the_arbiter_and_taught_to_the_statistics(name: Any) -> None:
    device = Device(GatePolicy(name, learn=True))
    for _ in range(6):
        task = device.begin(1, 1)
        for _ in range(KERNELS):
            assert device.run_one(1_000_000)
            device.now_ns += 200_000
            if task.ident in device.turns.tasks:
                device.launch(task, 1)
    stats = device.stats["model"]
    assert [stats.durations[i].count for i in range(KERNELS)] == [6] * KERNELS
    gap = stats.gap(1)
    assert gap is not None and gap.mean_ns == pytest.approx(200_000)


@pytest.mark.parametrize("name", ["tasks", "fikit", "ours"])
def test_a_start_is_taken_back_for_a_higher_class_that_comes_before_it_begins(name: Any) -> None:
    device = Device(GatePolicy(name, learn=True))
    low = device.begin(2, KERNELS)
    assert device.run_one(1_000_000)
    assert [s.task for s in device.turns.starts] == [low.ident]
    high = device.begin(1, 1)
    device.turns.take_back(1, device.now_ns)
    for done in range(1, KERNELS):
        assert [s.task for s in device.turns.starts] == [high.ident]
        device.run_one(1_000_000, lambda: device.launch(high, 1))
        assert device.ran == {low.ident: [0], high.ident: list(range(done))}
    device.run_one(1_000_000)
    while device.run_one(1_000_000):
        pass
    assert device.ran[low.ident] == list(range(KERNELS)), "and what was taken back runs later"


def test_what_is_not_lower_aged_or_of_an_arbiter_without_classes_is_not_taken_back() -> None:
    device = Device(GatePolicy("ours", learn=True))
    device.begin(2, KERNELS)
    other = device.begin(1, KERNELS)
    device.turns.take_back(1, device.now_ns)
    before = list(device.turns.starts)
    device.turns.take_back(2, device.now_ns)
    assert list(device.turns.starts) == before and before[0].task == other.ident
    for name in ("fifo", "slices"):
        device = Device(GatePolicy(typing.cast(Any, name)))
        device.begin(2, KERNELS)
        device.begin(1, KERNELS)
        assert not any(map(device.turns.yields, device.turns.starts))
        before = list(device.turns.starts)
        device.turns.take_back(1, device.now_ns)
        assert list(device.turns.starts) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_task_that_is_left_alone_goes_on_without_the_arbiter_and_is_learned_once(name: Any) -> None:
    device = Device(GatePolicy(name, learn=True))
    low = device.begin(2, KERNELS)
    assert device.run_one(1_000_000)
    high = device.begin(1, KERNELS)
    while len(device.ran[high.ident]) < KERNELS:
        assert device.run_one(1_000_000)
    if len(device.ran[low.ident]) < KERNELS:  # else the arbiter knows no classes
        assert device.run_on(1_000_000)
    assert device.ran[low.ident] == list(range(KERNELS)), "all the rest at once"
    assert not device.turns.tasks
    if name in ("tasks", "fikit", "ours"):  # the others learn nothing
        assert [spread.count for spread in device.stats["model"].durations] == [2] * KERNELS


def test_a_task_that_is_left_alone_makes_room_again_for_a_higher_one() -> None:
    device = Device(GatePolicy("ours", learn=True))
    low = device.begin(2, KERNELS)
    for done in range(1, KERNELS):
        high = device.begin(1, KERNELS)
        device.turns.take_back(1, device.now_ns)
        while high.ident in device.turns.tasks:
            assert device.run_one(1_000_000)
        assert device.ran[low.ident] == list(range(done - 1)), "nothing beside a task without gaps"
        assert device.run_one(1_000_000)
        assert device.ran[low.ident] == list(range(done))
    assert device.run_on(1_000_000) and not device.turns.tasks


def test_of_a_well_known_program_that_is_alone_some_runs_are_learned_from() -> None:
    device = Device(GatePolicy("ours", learn=True))
    device.turns = Turns(GatePolicy("ours", learn=True), device.stats, learn_every=4)
    for _ in range(WELL_KNOWN + 8):
        device.begin(1, KERNELS)
        assert device.run_on(1_000_000)
    assert [spread.count for spread in device.stats["model"].durations] == [WELL_KNOWN + 2] * KERNELS


def test_launching_ahead_is_learned_as_no_gap() -> None:
    device = Device(GatePolicy("ours", learn=True))
    for _ in range(6):
        device.begin(1, KERNELS)
        device.begin(1, KERNELS)
        while device.run_one(1_000_000):
            pass
    assert not device.turns.tasks
    gap = device.stats["model"].gap(0)
    assert gap is not None and gap.mean_ns == 0
    assert device.stats["model"].launches_ahead


def test_a_gap_that_ends_while_a_filler_runs_is_not_made_longer_by_it() -> None:
    device = Device(GatePolicy("tasks", learn=True))
    high, other = device.begin(1, 1), device.begin(1, KERNELS)
    assert device.run_one(1_000_000)

    def launched_half_way() -> None:
        at_ns = device.now_ns - 25_000_000
        high.ready_ns.append(device.turns.when(at_ns, device.now_ns))
        high.launched += 1
        device.turns.launch(high)

    assert device.run_one(50_000_000, launched_half_way)
    assert device.ran == {high.ident: [0], other.ident: [0]}
    gaps = device.stats["model"].gaps[1]  # the other task's was none
    assert gaps.count * gaps.mean_ns == pytest.approx(25_000_000)
