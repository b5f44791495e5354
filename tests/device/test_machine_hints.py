"""After a batch whose requests go on here the next of its class is expected: what that holds back, and how long."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from dovetail.control import RunBatch
from dovetail.device import Device, DeviceTimes, GapArbiter, GapSettings, ModelCache
from dovetail.device.arbiter import ArbiterAction, KernelEvent, TaskBegan, TaskExpected, TaskGone
from dovetail.device.events import (
    TO_THE_END,
    AlarmRang,
    DeviceAction,
    Grant,
    GrantEnded,
    PlannedBatch,
    Revoke,
    SetAlarm,
    TaskPlanned,
)
from dovetail.predict import Estimator
from dovetail.predict.estimate import GUESSED_TURNAROUND_NS
from dovetail.profile.kernels import MIN_COUNT, KernelStats
from dovetail.profile.table import ProfileTable
from dovetail.state.run_batch import NEVER_NS
from dovetail.units import MS, US

KERNEL_NS = 2 * MS
GRACE_NS = GapSettings().grace_ns


class Line:
    """One device in virtual time that carries out its grants kernel by kernel; all kernels of a batch are alike."""

    def __init__(self, *, ageing_ns: int = 0, known: list[KernelStats] | None = None) -> None:
        self.predictor = Estimator(ProfileTable())
        self.predictor.learn(known or [])
        times = DeviceTimes(self.predictor, "cpu", {})
        arbiter = GapArbiter(times.kernels, GapSettings(order="slack", ageing_ns=ageing_ns), learn=False)
        self.machine = Device(1, {"stage": ("stage", 0)}, ModelCache(1), times, arbiter=arbiter)
        self.now_ns = 0
        #: (batch, kernel), in the order in which they began.
        self.ran: list[tuple[int, int]] = []
        self._kernels: dict[int, tuple[int, int]] = {}
        self._grants: list[Grant] = []
        self._revoked: set[int] = set()
        self._alarms: set[int] = set()

    def take(
        self,
        batch: int,
        priority: int,
        kernels: int = 3,
        length_ns: int = KERNEL_NS,
        *,
        follows: bool = False,
        known: bool = True,
    ) -> None:
        """A batch comes. What its kernels are is known then, or a moment later."""
        self._kernels[batch] = kernels, length_ns
        run = RunBatch(0, batch, 1, "stage", ((1, 0, 0),), 1, 100, 0, NEVER_NS, 0, priority=priority, follows=follows)
        name = f"{kernels} of {length_ns}"
        plan = name, tuple(f"{name}, {i}" for i in range(kernels)), kernels
        if known:
            self._step(PlannedBatch(run, *plan))
        else:
            self._step(run)
            self._step(TaskPlanned(batch, *plan))

    def _step(self, event: object) -> None:
        actions: list[DeviceAction] = self.machine.step(event, self.now_ns)  # type: ignore[arg-type]
        self.machine.validate()
        for action in actions:
            if isinstance(action, Grant):
                self._grants.append(action)
                self._revoked.discard(action.task)
            elif isinstance(action, Revoke):
                self._revoked.add(action.task)
            elif isinstance(action, SetAlarm):
                self._alarms.add(action.at_ns)

    @property
    def granted(self) -> list[int]:
        """Batches that run."""
        return [grant.task for grant in self._grants]

    def go(self) -> bool:
        """Run what is granted, to its end or, if it was revoked, one kernel; whether there was anything."""
        if not self._grants:
            return False
        grant = self._grants[0]
        kernels, length_ns = self._kernels[grant.task]
        last = kernels - 1 if grant.last == TO_THE_END else grant.last
        spans = []
        position = grant.first
        while position <= last and (not spans or grant.task not in self._revoked):
            spans.append((self.now_ns, self.now_ns + length_ns))
            self.ran.append((grant.task, position))
            self.now_ns += length_ns
            position += 1
        self._grants.pop(0)
        self._step(GrantEnded(grant.task, position, position == kernels, tuple(spans)))
        return True

    def run_all(self) -> None:
        """Until nothing is to be done any more."""
        while self.go() or self._alarms:
            if not self._grants and self._alarms:
                first_ns = min(self._alarms)
                self._alarms.remove(first_ns)
                self.now_ns = max(self.now_ns, first_ns)
                self._step(AlarmRang())

    def learn(self, kernels: int = 3, length_ns: int = KERNEL_NS) -> None:
        """Let such batches of a low class run often enough to be known."""
        for i in range(MIN_COUNT):
            self.take(1000 + len(self._kernels) + i, 5, kernels, length_ns)
            self.run_all()
            self.now_ns += 100 * MS
        self.ran.clear()

    def expect(self, low_length_ns: int = KERNEL_NS) -> None:
        """Batch 1 of the highest class has ended, another is to follow, and batch 2 of a low class is here."""
        self.take(1, 1, 1, follows=True)
        self.take(2, 3, length_ns=low_length_ns)
        assert self.granted == [1]
        self.go()


def test_a_hint_keeps_a_long_kernel_of_a_lower_class_off_until_the_expected_batch_is_there() -> None:
    line = Line()
    line.learn()
    line.expect()
    assert line.granted == [], "held back"
    line.now_ns += GUESSED_TURNAROUND_NS // 2
    line.take(3, 1, 1)
    assert line.granted == [3]
    line.run_all()
    assert line.ran == [(1, 0), (3, 0), (2, 0), (2, 1), (2, 2)]


def test_a_hint_holds_back_a_batch_that_comes_to_an_empty_device() -> None:
    line = Line()
    line.learn()
    line.take(1, 1, 1, follows=True)
    line.go()
    line.take(2, 3)
    assert line.granted == []
    line.take(3, 1, 1)
    assert line.granted == [3]


@pytest.mark.parametrize(("after_ns", "holds"), [(0, True), (GRACE_NS, True), (GRACE_NS + 1, False)])
def test_who_comes_to_an_empty_device_waits_until_the_expected_time_and_the_grace_are_over(
    after_ns: int, holds: bool
) -> None:
    line = Line()
    line.learn()
    line.take(1, 1, 1, follows=True)
    line.go()
    line.now_ns += GUESSED_TURNAROUND_NS + after_ns
    line.take(2, 3)
    assert (line.granted == []) is holds


@pytest.mark.parametrize("known", [True, False])
def test_what_becomes_known_of_a_batch_that_runs_lets_nobody_in_beside_it(known: bool) -> None:
    line = Line()
    line.learn()
    line.expect()
    line.take(3, 1, 2, known=known)
    assert line.granted == [3]
    line.take(4, 3, known=known)
    assert line.granted == [3]
    line.run_all()
    assert [batch for batch, _ in line.ran] == [1, 3, 3, 2, 2, 2, 4, 4, 4]


def test_a_hint_that_does_not_come_true_costs_its_time_and_the_grace() -> None:
    line = Line()
    line.learn()
    line.expect()
    held_ns = line.now_ns
    line.run_all()
    assert line.ran[-1] == (2, 2)
    assert line.now_ns - held_ns <= 3 * KERNEL_NS + GUESSED_TURNAROUND_NS + GRACE_NS + MS // 10


def test_a_hint_lets_kernels_pass_that_end_before_it() -> None:
    short_ns = GUESSED_TURNAROUND_NS // 8
    line = Line()
    line.learn(length_ns=short_ns)
    line.expect(short_ns)
    assert line.granted == [2]


def test_a_hint_holds_no_equal_class() -> None:
    line = Line()
    line.learn()
    line.take(1, 1, 1, follows=True)
    line.take(2, 1)
    line.go()
    assert line.granted == [2]


def test_what_nothing_is_known_of_is_not_held_back_and_what_others_have_learned_is_known() -> None:
    teacher = Line()
    teacher.learn()
    learned = teacher.predictor.news(9)
    for known, holds in ((learned, True), ([], False)):
        line = Line(known=known)
        line.expect()
        assert (line.granted == []) is holds


def test_how_long_the_next_batch_takes_to_come_is_learned() -> None:
    line = Line()
    line.take(999, 2, 1)  # hints are of use to classes above the lowest only
    line.run_all()
    for i in range(60):
        line.take(2 * i + 1, 1, 1, follows=True)
        line.go()
        line.now_ns += 900 * US
        line.take(2 * i + 2, 1, 1)
        line.run_all()
        line.now_ns += 50 * MS
    assert line.predictor.turnaround("cpu").mean_ns == pytest.approx(900 * US, rel=0.01)


@pytest.mark.parametrize("ageing_ns", [0, 5 * MS])
def test_with_ageing_a_lower_class_gets_a_kernel_per_this_time_and_without_none(ageing_ns: int) -> None:
    line = Line(ageing_ns=ageing_ns)
    line.take(1, 1)
    line.take(1000, 3, kernels=4)
    began: list[int] = []
    for batch in range(2, 40):
        line.take(batch, 1)
        while line.granted and line.granted[0] != batch - 1:
            if line.granted[0] == 1000:
                began.append(line.now_ns)
            line.go()
        line.go()
    assert len(began) == (4 if ageing_ns else 0)
    # What is granted here goes on to the end of its batch, so that the one that has waited comes in between two.
    assert all(ageing_ns <= after - before <= ageing_ns + 9 * KERNEL_NS for before, after in pairwise(began))


def test_equals_do_not_age() -> None:
    line = Line(ageing_ns=MS)
    for batch in (1, 2, 3):
        line.take(batch, 2)
    line.run_all()
    assert [batch for batch, _ in line.ran] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


# -- nobody else is here ---------------------------------------------------------------------------------------------


class Told:
    """One device whose arbiter says what it is told."""

    def __init__(self) -> None:
        self.predictor = Estimator(ProfileTable())
        times = DeviceTimes(self.predictor, "cpu", {})
        arbiter = GapArbiter(times.kernels, GapSettings(order="slack"), learn=False)
        self.machine = Device(1, {"stage": ("stage", 0)}, ModelCache(1), times, arbiter=arbiter)
        self.heard: list[type] = []
        step = arbiter.step

        def hear(event: KernelEvent) -> list[ArbiterAction]:
            self.heard.append(type(event))
            return step(event)

        arbiter.step = hear  # type: ignore[method-assign]
        self.run(9, 2, 0)  # a lower class was here: hints are of use
        self.end(9, 1)

    def run(self, batch: int, priority: int, now_ns: int, *, follows: bool = False) -> list[DeviceAction]:
        found = self.machine.step(self.batch(batch, priority, follows=follows), now_ns)
        self.machine.validate()
        return found

    def end(self, batch: int, now_ns: int) -> list[DeviceAction]:
        found = self.machine.step(GrantEnded(batch, 1), now_ns)
        self.machine.validate()
        return found

    @staticmethod
    def batch(batch: int, priority: int, *, follows: bool = False) -> RunBatch:
        run = RunBatch(0, batch, 1, "stage", ((1, 0, 0),), 1, 100, 0, NEVER_NS, 0, priority=priority)
        return msgspec.structs.replace(run, follows=follows)


def test_who_is_expected_and_finds_nobody_costs_no_question_and_teaches_how_long_it_took() -> None:
    device = Told()
    now_ns = MS
    for i in range(60):
        assert device.run(2 * i + 10, 1, now_ns, follows=True) == [Grant(2 * i + 10)]
        assert device.end(2 * i + 10, now_ns + MS) == []
        assert device.run(2 * i + 11, 1, now_ns + MS + 700 * US) == [Grant(2 * i + 11)]
        assert device.end(2 * i + 11, now_ns + 3 * MS) == []
        now_ns += 20 * MS
    assert device.heard == []
    assert device.predictor.turnaround("cpu").mean_ns == pytest.approx(700 * US, rel=0.01)


def test_who_is_in_the_way_of_one_that_is_expected_is_not_alone() -> None:
    device = Told()
    device.run(10, 1, MS, follows=True)
    device.end(10, 2 * MS)
    expected_ns = 2 * MS + GUESSED_TURNAROUND_NS
    assert not device.machine.begin_alone(device.batch(11, 2), expected_ns + GRACE_NS)
    assert device.machine.begin_alone(device.batch(11, 2), expected_ns + GRACE_NS + 1)


def test_an_arbiter_hears_what_is_expected_with_its_first_task() -> None:
    device = Told()
    device.run(10, 1, MS, follows=True)
    device.end(10, 2 * MS)
    assert device.heard == []
    device.run(11, 2, 2 * MS + 1)
    assert device.heard[:2] == [TaskExpected, TaskBegan]
    device.run(12, 1, 2 * MS + 2)
    assert device.heard.count(TaskExpected) == 1 and TaskGone in device.heard
