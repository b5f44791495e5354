"""Grants of a gated device: what the Device machine lets its clients' tasks run, and what it is told of them.

Rules of this file
- No clock, socket or kernel: times come in, and the task whose kernel is next is `ready`.
- The machine decides. A client's task is a batch that comes with its kernels, its launches are `KernelsLaunched`.
  Every task asks for the whole device, so one at a time has a grant.
- A grant to the end is kept while its host launches nothing: of a task that is alone, the machine hears when it comes
  and when it ends. After a kernel the machine's code is no longer in the cache, and a step costs some 30 µs. What was
  launched meanwhile is told before another task comes.
- A grant that is revoked ends with the kernel that is at work. If none is, it ends at once in favour of a higher
  class; in favour of an equal it ends after the kernel that is next.
- What was told of kernels is learned while nothing may begin, so that no kernel waits for that.
- Times that the machine is told never go back. A launch counts from when it could be read, not from when it was,
  which is when a kernel ended: else fillers would make gaps look longer, and more would be filled.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...device import Device, DeviceTimes, ModelCache, Rules
from ...device.events import (
    TO_THE_END,
    AlarmRang,
    BatchWithdrawn,
    DeviceEvent,
    Grant,
    GrantEnded,
    KernelsLaunched,
    PlannedBatch,
    Revoke,
    SetAlarm,
)
from ...predict import Estimator
from ...predict.state import EstimatorState
from ...profile.kernels import KernelStats
from ...profile.table import ProfileTable
from ...state import NEVER_NS, RunBatch
from ...state.worker import FULL_SHARE
from .policies import make_arbiter
from .tasks import Task
from .wire import GatePolicy

__all__ = ["Grants"]

#: One kernel of a lower class is taken back, too: the device listens before it begins.
RULES = Rules(revokes_one=True)


class Grants:
    """The tasks of a device, and which of them may go on."""

    def __init__(self, policy: GatePolicy, stats: Iterable[KernelStats] = (), *, learn_every: int = 1) -> None:
        self._predictor = Estimator(ProfileTable(), EstimatorState(kernels=tuple(stats)), tells=False)
        self._learn_every = learn_every
        #: Programs as the machine knows them: none has weights of which it would have to know.
        self._models: dict[str, tuple[str, int]] = {}
        self.tasks: dict[int, Task] = {}
        #: When `ring` is to be called.
        self.alarm_ns = NEVER_NS
        #: The task that has a grant.
        self._granted: Task | None = None
        #: Time of the last event that the machine was told.
        self._told_ns = 0
        self._times: DeviceTimes | None = None
        self.set_policy(policy)

    def set_policy(self, policy: GatePolicy) -> None:
        """Another arbiter; there must be no tasks."""
        assert not self.tasks
        self.rest()
        self._times = times = DeviceTimes(
            self._predictor, "gate", {}, learn=policy.learn, learn_every=self._learn_every, lazy=True
        )
        arbiter = make_arbiter(policy, times.kernels)
        self._by_class, self._by_launch = not arbiter.classless, arbiter.by_launch
        self._machine = Device(0, self._models, ModelCache(0), times, RULES, arbiter=arbiter)
        self.alarm_ns = NEVER_NS

    def stats(self) -> tuple[KernelStats, ...]:
        """What is known of kernels: a copy."""
        self.rest()
        return self._predictor.state().kernels

    # -- what comes ---------------------------------------------------------------------------------------------

    def begin(self, task: Task, now_ns: int) -> None:
        """A task has come, with what was launched of it."""
        if self._granted is not None:
            self._tell_launched(self._granted, now_ns)
        name = task.program.name
        self._models[name] = ("", 0)
        self.tasks[task.ident] = task
        task.known = task.launched
        task.hosted = task.launched < len(task.kernels)
        run = RunBatch(
            0, task.ident, 0, name, (), 1, FULL_SHARE, 0, NEVER_NS, 0, priority=task.priority, client=task.told[4]
        )
        self._step(PlannedBatch(run, name, task.program.idents, task.launched), now_ns)

    def launch(self, task: Task, now_ns: int) -> None:
        """More kernels of a task were launched."""
        if task.grant is None or self._by_launch:
            self._tell_launched(task, now_ns)

    def gone(self, task: Task, now_ns: int) -> None:
        """A task is over before its time."""
        del self.tasks[task.ident]
        if task.grant is None:
            self._step(BatchWithdrawn(task.ident), now_ns)
        else:
            self._end(task, True, now_ns)

    def ring(self, now_ns: int) -> None:
        """The time of the alarm has come."""
        self.alarm_ns = NEVER_NS
        self._step(AlarmRang(), now_ns)

    def rest(self) -> None:
        """Nothing may begin now: there is time to learn from what ran."""
        if self._times is not None:
            self._times.catch_up()

    # -- what runs ----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> Task | None:
        """The task whose next kernel may begin now."""
        task = self._granted
        return task if task is not None and task.kernel < task.launched else None

    def yields(self, task: Task) -> bool:
        """Whether a kernel of it that has not begun is taken back if a higher class comes."""
        return task.priority > 1 and self._by_class and task.grant is not None and task.grant.why != "aged"

    def goes_on(self, task: Task, begin_ns: int, end_ns: int) -> bool:
        """Whether a task whose kernel has ended may begin the next at once."""
        grant = task.grant
        if grant is None or grant.last != TO_THE_END or task.revoked or task.kernel + 1 >= task.launched:
            return False
        task.spans.append((begin_ns, end_ns))
        task.kernel += 1
        return True

    def ended(self, task: Task, begin_ns: int, end_ns: int, now_ns: int) -> None:
        """A kernel has ended."""
        task.running = False
        task.spans.append((begin_ns, end_ns))
        task.kernel += 1
        assert task.grant is not None
        if task.kernel == len(task.kernels):
            del self.tasks[task.ident]
            self._end(task, True, now_ns)
        elif task.revoked or task.grant.last != TO_THE_END:
            self._end(task, False, now_ns)

    # -- the machine --------------------------------------------------------------------------------------------

    def _tell_launched(self, task: Task, now_ns: int) -> None:
        if task.known < task.launched:
            task.known = task.launched
            self._step(KernelsLaunched(task.ident, task.launched), now_ns)

    def _end(self, task: Task, over: bool, now_ns: int) -> None:
        """What was granted to a task has ended."""
        task.grant = self._granted = None
        if not over and task.known < task.launched:
            self._tell_launched(task, now_ns)
        ended = GrantEnded(task.ident, task.kernel, over, tuple(task.spans), task.gaps())
        task.revoked = False
        task.spans.clear()
        self._step(ended, now_ns)

    def _step(self, event: DeviceEvent, now_ns: int) -> None:
        if now_ns > self._told_ns:
            self._told_ns = now_ns
        for action in self._machine.step(event, self._told_ns):
            if type(action) is Grant:
                assert self._granted is None, "one at a time"
                self._granted = task = self.tasks[action.task]
                task.grant = action
            elif type(action) is SetAlarm:
                self.alarm_ns = action.at_ns
            else:
                assert type(action) is Revoke, action
                self.tasks[action.task].revoked = True
        held = self._granted
        if held is not None and held.revoked and self._ends_at_once(held):
            self._end(held, False, self._told_ns)

    def _ends_at_once(self, task: Task) -> bool:
        """Whether a grant that was revoked has nothing to run, or gives its next kernel back."""
        if task.running:
            return False
        above = (t for t in self.tasks.values() if t.priority < task.priority)
        return task.kernel == task.launched or (self.yields(task) and any(t.kernel < t.launched for t in above))
