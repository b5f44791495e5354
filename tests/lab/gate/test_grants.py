"""Whose kernel is next: whatever comes and goes, everything launched runs once, in order and one at a time."""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.device.times import WELL_KNOWN
from dovetail.lab.gate.grants import Grants
from dovetail.lab.gate.tasks import NEVER_NS, Client, Task
from dovetail.lab.gate.wire import Begin, GatePolicy
from dovetail.profile.kernels import KernelStats
from dovetail.units import MS

NAMES = typing.get_args(typing.get_type_hints(GatePolicy)["name"])
BY_CLASS = ("tasks", "fikit", "ours")
KERNELS = 4
IDENTS = tuple(f"kernel[{i}]" for i in range(KERNELS))


def make_task(ident: int, now_ns: int, priority: int) -> Task:
    program: Any = SimpleNamespace(name="model", idents=IDENTS, begin=lambda: [print] * KERNELS)
    client: Any = Client(ident, typing.cast(Any, None))
    return Task(ident, client, Begin(ident, 1, priority, 0, now_ns), program, now_ns)


class Gated:
    """A device in virtual time that does as `Grants` says, and holds it to the laws."""

    def __init__(self, policy: GatePolicy, **more: Any) -> None:
        self.policy = policy
        self.grants = Grants(policy, **more)
        self.now_ns = 0
        #: Task -> its kernels that ran, in order; and why each kernel of all of them did.
        self.ran: dict[int, list[int]] = {}
        self.order: list[tuple[int, str]] = []
        #: Kernels whose end was told.
        self.told: Counter[int] = Counter()
        #: Statistics have drifted, so that they began anew.
        self.anew = False

    def counts(self) -> list[int]:
        """How often each kernel was learned from."""
        found = [stats for stats in self.grants.stats() if stats.name == "model"]
        return [spread.count for stats in found for spread in stats.durations]

    @property
    def stats(self) -> KernelStats:
        return {stats.name: stats for stats in self.grants.stats()}["model"]

    def begin(self, priority: int, launch: int) -> Task:
        task = make_task(len(self.ran) + 1, self.now_ns, priority)
        self.ran[task.ident] = []
        task.launch(launch, self.now_ns, self.now_ns)
        before = self.counts()
        self.grants.begin(task, self.now_ns)
        self.anew |= sum(self.counts()) < sum(before)
        self.check()
        return task

    def launch(self, task: Task, more: int, arrived_ns: int | None = None) -> None:
        at_ns = self.now_ns if arrived_ns is None else arrived_ns
        task.launch(min(KERNELS, task.launched + more), at_ns, at_ns)
        self.grants.launch(task, at_ns)
        self.check()

    def cancel(self, task: Task) -> None:
        self.grants.gone(task, self.now_ns)
        self.check()

    def run_one(self, length_ns: int, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Run the next kernel if one may start; `meanwhile` comes in before its end is told."""
        return self._run(length_ns, meanwhile)

    def run_on(self, length_ns: int) -> bool:
        """Run the next kernel if one may start, and those that go on after it."""
        return self._run(length_ns, None)

    def _run(self, length_ns: int, meanwhile: Callable[[], None] | None) -> bool:
        task = self.grants.ready
        if task is None:
            return False
        assert task.grant is not None
        task.running = True
        while True:
            assert self.grants.tasks[task.ident] is task
            assert task.kernel == len(self.ran[task.ident]) < task.launched, "in order, and only what is launched"
            if self.policy.name in BY_CLASS and task.grant.why != "aged":
                assert not self.overtaken(task), "a higher class waits for what runs and nothing else"
            begin_ns = self.now_ns
            self.ran[task.ident].append(task.kernel)
            self.order.append((task.ident, task.grant.why))
            self.told[task.kernel] += 1
            self.now_ns += length_ns
            if meanwhile is not None:
                meanwhile()
                break
            if not self.grants.goes_on(task, begin_ns, self.now_ns):
                break
        if task.ident in self.grants.tasks:
            self.grants.ended(task, begin_ns, self.now_ns, self.now_ns)
        else:
            self.told[self.ran[task.ident][-1]] -= 1  # cancelled while it ran
        self.check()
        return True

    def overtaken(self, task: Task) -> list[Task]:
        """Those above it that are launched; of those whose gap it fills, since what is in between may not fit."""
        there = self.grants.tasks.values()
        assert task.grant is not None
        best = min(t.priority for t in there)
        above = [t for t in there if t.priority < task.priority and t.kernel < t.launched]
        return [t for t in above if t.priority == best] if task.grant.why == "fill" else above

    def ring(self) -> bool:
        if self.grants.alarm_ns >= NEVER_NS:
            return False
        self.now_ns = max(self.now_ns, self.grants.alarm_ns)
        self.grants.ring(self.now_ns)
        self.check()
        return True

    def check(self) -> None:
        if self.grants.ready is None:
            self.grants.rest()
        self.grants._machine.validate()
        granted = [t for t in self.grants.tasks.values() if t.grant is not None]
        assert len(granted) <= 1, "one at a time"
        for task in granted:
            if task.revoked and not task.running:
                assert task.kernel < task.launched, "what was revoked and has nothing to run was given back"
        if len(self.grants.tasks) == 1:
            (task,) = self.grants.tasks.values()
            assert task.kernel == task.launched or granted == [task], "a task that is alone never waits"


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from([0, 5 * MS]), st.randoms(use_true_random=False))
def test_everything_launched_runs_once_in_order_whoever_comes_and_goes(
    name: Any, ageing: int, chance: Random
) -> None:
    device = Gated(GatePolicy(name, ageing_ns=ageing, learn=True))
    cancelled: set[int] = set()

    def something() -> None:
        there = list(device.grants.tasks.values())
        what = chance.random()
        if what < 0.3 and len(device.ran) < 12:
            device.begin(chance.randint(1, 3), chance.randint(0, KERNELS))
        elif what < 0.7 and there:
            device.launch(chance.choice(there), chance.randint(1, KERNELS))
        elif what < 0.8 and there:
            task = chance.choice(there)
            cancelled.add(task.ident)
            device.cancel(task)
        elif what < 0.9 and device.grants.alarm_ns <= device.now_ns:
            device.ring()

    for _ in range(80):
        device.now_ns += chance.randint(0, 500_000)
        if chance.random() < 0.5:
            something()
        elif chance.random() < 0.5:
            device.run_on(chance.randint(1, 3 * MS))
        else:
            device.run_one(chance.randint(1, 3 * MS), something)
    for _ in range(400):
        for task in list(device.grants.tasks.values()):
            device.launch(task, KERNELS)
        if not device.run_one(100_000) and not (device.grants.tasks and device.ring()):
            break
    assert not device.grants.tasks, "a task was never let in"
    for ident, ran in device.ran.items():
        assert ran == list(range(len(ran)))
        assert len(ran) == KERNELS or ident in cancelled
    if device.told:
        told = [device.told[i] for i in range(KERNELS)]
        assert device.counts() == told or device.anew
        assert all(count <= seen for count, seen in zip(device.counts(), told, strict=True)), "nothing counts twice"


@pytest.mark.parametrize("name", NAMES)
def test_a_lone_task_is_run_by_one_grant_and_learned_once(name: Any) -> None:
    device = Gated(GatePolicy(name, learn=True))
    for _ in range(6):
        task = device.begin(1, 1)
        grant = task.grant
        for _ in range(KERNELS):
            assert task.grant is grant, "the machine is not asked between its kernels"
            assert device.run_one(MS)
            device.now_ns += 200_000
            if task.ident in device.grants.tasks:
                device.launch(task, 1)
    assert [spread.count for spread in device.stats.durations] == [6] * KERNELS
    for after in range(KERNELS - 1):
        gap = device.stats.gap(after)
        assert gap is not None and gap.count == 6 and gap.mean_ns == pytest.approx(200_000)


def test_what_ran_before_a_new_policy_is_learned_as_before() -> None:
    device = Gated(GatePolicy("ours", learn=True))
    device.begin(1, KERNELS)
    assert device.run_on(MS)
    device.grants.set_policy(GatePolicy("fifo"))
    assert [spread.count for spread in device.stats.durations] == [1] * KERNELS


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_learned_unless_the_policy_says_so(name: Any) -> None:
    device = Gated(GatePolicy(name))
    for _ in range(2):
        for task in [device.begin(1, 1), device.begin(2, KERNELS)]:
            device.now_ns += 1000
            device.launch(task, KERNELS)
        while device.run_one(MS):
            pass
    assert not device.grants.tasks
    spreads = [*device.stats.durations, *device.stats.gaps]
    assert [spread.count for spread in spreads] == [0] * len(spreads)


@pytest.mark.parametrize("name", BY_CLASS)
def test_a_grant_is_given_back_for_a_higher_class_that_comes_before_its_kernel_begins(name: Any) -> None:
    device = Gated(GatePolicy(name, learn=True))
    low = device.begin(2, KERNELS)
    assert device.run_one(MS)
    assert device.grants.ready is low
    high = device.begin(1, 1)
    for done in range(1, KERNELS):
        assert device.grants.ready is high
        device.run_one(MS, lambda: device.launch(high, 1))
        assert device.ran == {low.ident: [0], high.ident: list(range(done))}
    device.run_one(MS)
    while device.run_one(MS):
        pass
    assert device.ran[low.ident] == list(range(KERNELS)), "and what was given back runs later"


def filled(device: Gated) -> tuple[Task, Task]:
    """A high task in a gap into which one kernel of a low one was let, which has not begun."""
    for _ in range(6):
        task = device.begin(1, 1)
        while device.run_one(100_000):
            if task.ident in device.grants.tasks:
                device.now_ns += 5 * MS
                device.launch(task, 1)
    high = device.begin(1, 1)
    assert device.run_one(100_000)
    low = device.begin(2, KERNELS)
    assert low.grant is not None and (low.grant.why, low.grant.last) == ("fill", 0)
    return high, low


@pytest.mark.parametrize("name", ["fikit", "ours"])
def test_a_filler_is_given_back_if_the_gap_ends_before_it_begins(name: Any) -> None:
    device = Gated(GatePolicy(name, learn=True))
    high, low = filled(device)
    device.launch(high, 1)
    assert device.grants.ready is high and low.grant is None
    assert device.run_one(100_000), "and is let in again when the next gap comes"
    assert low.grant is not None and (low.grant.why, low.grant.first) == ("fill", 0)
    assert device.run_one(100_000, lambda: device.launch(high, 1)), "one that has begun is not stopped"
    assert device.ran[low.ident] == [0] and device.grants.ready is high


def test_an_aged_kernel_is_not_given_back() -> None:
    device = Gated(GatePolicy("tasks", ageing_ns=5 * MS))
    high = device.begin(1, 1)
    assert device.run_one(MS)
    low = device.begin(2, KERNELS)
    assert device.grants.ready is None and device.ring()
    assert low.grant is not None and low.grant.why == "aged"
    device.launch(high, KERNELS)
    assert device.grants.ready is low and not device.grants.yields(low)
    assert device.run_one(MS)
    assert device.grants.ready is high


def test_what_was_taken_back_ages_as_if_it_had_never_been_granted() -> None:
    device = Gated(GatePolicy("fikit", ageing_ns=20 * MS, learn=True))
    high, low = filled(device)
    since_ns = device.now_ns
    for _ in range(KERNELS - 2):
        device.now_ns += 8 * MS
        device.launch(high, 1)
        assert device.grants.ready is high and device.run_one(1000)
        assert low.grant is not None and low.grant.why == "fill", "let in, and given back at the next launch"
    device.now_ns = since_ns + 20 * MS
    device.launch(high, 1)
    assert low.grant is not None and low.grant.why == "aged"


@pytest.mark.parametrize("name", NAMES)
def test_equals_take_nothing_back_but_take_turns(name: Any) -> None:
    device = Gated(GatePolicy(name))
    first = device.begin(2, KERNELS)
    other = device.begin(2, KERNELS)
    assert device.grants.ready is first
    while device.run_one(MS):
        pass
    turns = "".join("a" if ident == first.ident else "b" for ident, _ in device.order)
    # Kernels of 1 ms: by launch one after the other, by slices two at a time, else in turn.
    assert turns == {"fifo": "aaaabbbb", "slices": "aabbaabb"}.get(name, "abababab"), other


@pytest.mark.parametrize("name", ["fifo", "slices"])
def test_without_classes_a_lower_kernel_is_not_taken_back_for_a_higher_one(name: Any) -> None:
    device = Gated(GatePolicy(name))
    low = device.begin(2, KERNELS)
    assert device.run_one(MS)
    device.begin(1, KERNELS)
    assert device.grants.ready is low and not device.grants.yields(low)


def test_first_come_goes_by_the_order_of_launches_whosever_turn_it_was() -> None:
    device = Gated(GatePolicy("fifo"))
    one = device.begin(1, 1)
    other = device.begin(1, 2)
    device.launch(one, 2)
    device.launch(other, 2)
    device.launch(one, 1)
    while device.run_one(MS):
        pass
    assert [ident for ident, _ in device.order] == [1, 2, 2, 1, 1, 2, 2, 1]


@pytest.mark.parametrize("name", NAMES)
def test_a_task_that_is_left_alone_goes_on_without_the_arbiter_and_is_learned_once(name: Any) -> None:
    device = Gated(GatePolicy(name, learn=True))
    low = device.begin(2, KERNELS)
    assert device.run_one(MS)
    high = device.begin(1, KERNELS)
    while len(device.ran[high.ident]) < KERNELS:
        assert device.run_one(MS)
    if len(device.ran[low.ident]) < KERNELS:  # else the arbiter knows no classes
        assert device.run_on(MS)
    assert device.ran[low.ident] == list(range(KERNELS)), "all the rest at once"
    assert not device.grants.tasks
    assert [spread.count for spread in device.stats.durations] == [2] * KERNELS


def test_a_task_that_is_left_alone_makes_room_again_for_a_higher_one() -> None:
    device = Gated(GatePolicy("ours", learn=True))
    low = device.begin(2, KERNELS)
    for done in range(1, KERNELS):
        high = device.begin(1, KERNELS)
        while high.ident in device.grants.tasks:
            assert device.run_one(MS)
        assert device.ran[low.ident] == list(range(done - 1)), "nothing beside a task without gaps"
        assert device.run_one(MS)
        assert device.ran[low.ident] == list(range(done))
    assert device.run_on(MS) and not device.grants.tasks


def test_a_lone_task_that_is_in_a_gap_lets_the_next_filler_in_at_its_place_in_the_sequence() -> None:
    device = Gated(GatePolicy("ours", learn=True))
    high, low = filled(device)
    assert device.run_one(1000) and device.grants.ready is low
    device.cancel(low)
    device.now_ns += MS
    again = device.begin(2, KERNELS)
    assert again.grant is not None and again.grant.why == "fill"
    device.launch(high, 1)
    assert device.run_one(1000)
    assert device.stats.gaps[1].count == 7, "and the gap is learned as the one that it is"


def test_of_a_well_known_program_that_is_alone_some_runs_are_learned_from() -> None:
    device = Gated(GatePolicy("ours", learn=True), learn_every=4)
    for _ in range(WELL_KNOWN + 8):
        device.begin(1, KERNELS)
        assert device.run_on(MS)
    assert [spread.count for spread in device.stats.durations] == [WELL_KNOWN + 2] * KERNELS


@pytest.mark.parametrize("others", [0, 1])
def test_launching_ahead_is_learned_as_no_gap(others: int) -> None:
    device = Gated(GatePolicy("ours", learn=True))
    for _ in range(6):
        tasks = [device.begin(1, 1) for _ in range(1 + others)]
        for task in tasks:
            assert device.run_one(MS, lambda task=task: device.launch(task, KERNELS))  # type: ignore[misc]
        while device.run_one(MS):
            pass
    assert not device.grants.tasks
    gap = device.stats.gap(1)
    assert gap is not None and gap.mean_ns == 0
    assert device.stats.launches_ahead


def test_a_gap_that_ends_while_a_filler_runs_is_not_made_longer_by_it() -> None:
    device = Gated(GatePolicy("tasks", learn=True))
    high, other = device.begin(1, 1), device.begin(1, KERNELS)
    assert device.run_one(MS)
    half_way_ns = device.now_ns + 25 * MS
    assert device.run_one(50 * MS, lambda: device.launch(high, 1, half_way_ns))
    assert device.ran == {high.ident: [0], other.ident: [0]}
    gaps = device.stats.gaps[1]
    assert gaps.count * gaps.mean_ns == pytest.approx(25 * MS)
