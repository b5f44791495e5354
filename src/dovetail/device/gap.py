"""Beyond FIKIT: gaps as distributions, and filling that pays for the delay it causes.

What is different from `fikit`, and why
- A gap is known by its position in the sequence and as a distribution. What counts is the delay that a filler is
  expected to cause: E[(duration - rest of the gap)+], given how much of the gap has passed already. A gap that has
  lasted longer than usual is still a gap.
- Delay is paid from a credit: a small part (`budget`) of the time that the class has tasks on the device. The fuller
  the credit, the more delay is accepted for the work gained, up to all of it; an empty credit fills nothing. What is
  charged is the delay that a filler did cause. However wrong the statistics are, all delay by fillers together stays
  below budget × time + `burst_ns` + one kernel. And a lower task whose next kernel is longer than every gap is not
  starved: it comes through when the credit is full.
- A host that launches without waiting for results catches up: its gaps get shorter by the delay. Delay that a task
  has caught up with is given back.
- After a kernel of which nothing is known the next may come at any moment: a filler is paid for in full.
- A task that is expected (`TaskExpected`) is a gap with a known end.
- Statistics are learned while running.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..profile.kernels import KernelStats
from ..units import MS, US
from .account import Account
from .arbiter import KernelReady, StartKernel, TaskBegan, TaskGone
from .priority import PriorityArbiter
from .tasks import ArbiterSettings, Task

__all__ = ["GapArbiter", "GapSettings"]


class GapSettings(ArbiterSettings, frozen=True, kw_only=True):
    """Our knobs."""

    #: Delay by fillers that a class may suffer, as a part of the time that it has tasks on the device.
    budget: float = 0.03
    #: Credit that is kept at most.
    burst_ns: int = MS // 2
    #: Quantile of a filler's duration that is reckoned with.
    quantile: float = 0.5
    #: What a filler costs beside its duration: to start it, and to notice its end.
    overhead_ns: int = 2 * US
    #: A gap that could not be filled is looked at again after this time, then after half as long again, and so on.
    again_ns: int = 50 * US
    #: How long after its time an expected task is still waited for.
    grace_ns: int = 200 * US


class _Owed:
    """Delay of a task that it has not caught up with, and by how much its gaps were shorter than usual since."""

    __slots__ = ("caught_up_ns", "delay_ns")

    def __init__(self) -> None:
        self.delay_ns = 0
        self.caught_up_ns = 0.0


class GapArbiter(PriorityArbiter):
    """Fills gaps as long as the class's credit allows for the delay that is expected of it."""

    settings: GapSettings

    def __init__(
        self,
        stats: Mapping[str, KernelStats] | None = None,
        settings: GapSettings | None = None,
        *,
        account: Account | None = None,
        learn: bool = True,
    ) -> None:
        super().__init__(stats, settings or GapSettings(), account=account, learn=learn)
        #: Class -> delay that it may still suffer; below nothing, no gap of it is filled.
        self.credit_ns: dict[int, float] = {}
        #: Class -> all delay that fillers caused it, and all time that it had tasks here: the law is about these.
        self.delayed_ns: dict[int, int] = {}
        self.there_ns: dict[int, int] = {}
        self._since_ns = 0
        #: Task -> since when its ready kernel waits for a filler.
        self._blocked_ns: dict[int, int] = {}
        self._owed: dict[int, _Owed] = {}
        #: Class -> how many tasks of it are there.
        self._classes: dict[int, int] = {}
        #: (sequence, position) -> observations, and the duration that they make likely.
        self._likely: dict[tuple[str, int], tuple[int, int]] = {}
        self._again_ns = -1

    # -- the account of delay -----------------------------------------------------------------------------------

    def _passed(self, now_ns: int) -> None:
        self._again_ns = -1
        passed_ns = now_ns - self._since_ns
        if passed_ns <= 0:
            return
        self._since_ns = now_ns
        for priority in self._classes:
            credit_ns = self.credit_ns.get(priority, 0.0) + passed_ns * self.settings.budget
            self.credit_ns[priority] = min(credit_ns, self.settings.burst_ns)
            self.there_ns[priority] = self.there_ns.get(priority, 0) + passed_ns

    def _begin(self, event: TaskBegan) -> Task:
        self._classes[event.priority] = self._classes.get(event.priority, 0) + 1
        return super()._begin(event)

    def _ready(self, event: KernelReady) -> None:
        task = self._tasks.get(event.task)
        owed = None if task is None else self._owed.get(task.ident)
        if task is not None and owed is not None and task.stats is not None and task.stats.launches_ahead:
            idle = not (task.started or task.ready)
            gap = task.stats.gap(event.kernel - 1)
            if gap is not None:
                owed.caught_up_ns += gap.mean_ns - (event.at_ns - task.free_ns if idle else 0)
            if idle:
                self._give_back(task, owed)
        super()._ready(event)
        task = self._tasks[event.task]
        if task.started or len(task.ready) > 1 or self._room_for(task):
            return
        below = (t for t in self._tasks.values() if t.rank > task.rank)
        if any(started.why == "fill" for t in below for started in t.started.values()):
            self._blocked_ns[task.ident] = event.at_ns

    def _gone(self, event: TaskGone) -> None:
        task = self._tasks.get(event.task)
        if task is not None:
            self._classes[task.priority] -= 1
            if not self._classes[task.priority]:
                del self._classes[task.priority]
        super()._gone(event)
        self._owed.pop(event.task, None)
        self._blocked_ns.pop(event.task, None)

    def _start(self, task: Task, why: str, now_ns: int) -> StartKernel:
        blocked_ns = self._blocked_ns.pop(task.ident, None)
        if blocked_ns is not None:
            self._charge(task.priority, now_ns - blocked_ns)
            self._owed.setdefault(task.ident, _Owed()).delay_ns += now_ns - blocked_ns
        return super()._start(task, why, now_ns)

    def _give_back(self, task: Task, owed: _Owed) -> None:
        back_ns = max(0, min(owed.delay_ns, round(owed.caught_up_ns)))
        self._charge(task.priority, -back_ns)
        owed.delay_ns -= back_ns
        owed.caught_up_ns -= back_ns
        if not owed.delay_ns:
            del self._owed[task.ident]

    def _charge(self, priority: int, delay_ns: int) -> None:
        credit_ns = self.credit_ns.get(priority, 0.0) - delay_ns
        self.credit_ns[priority] = min(credit_ns, self.settings.burst_ns)
        self.delayed_ns[priority] = self.delayed_ns.get(priority, 0) + delay_ns

    def _learns_gap(self, task: Task) -> bool:
        """Gaps of a task that is behind are shorter than usual."""
        return task.ident not in self._owed

    # -- gaps ---------------------------------------------------------------------------------------------------

    def _worth(self, task: Task, holders: list[Task], now_ns: int) -> float | None:
        """The work gained less the delay caused, if the credit allows for that."""
        duration_ns = self._duration_ns(task)
        if duration_ns is None:
            return None
        end_ns = duration_ns + self.settings.overhead_ns
        delay_ns = self._expected_delay_ns(task.priority, end_ns, now_ns)
        for holder in holders:
            gap = None if holder.stats is None else holder.stats.gap(holder.position)
            if gap is None:
                delay_ns += end_ns
            else:
                delay_ns += gap.expected_delay_ns(end_ns, now_ns - holder.free_ns)
        credit_ns = self.credit_ns.get(holders[0].priority, 0.0)
        if credit_ns < 0 or delay_ns * self.settings.burst_ns > end_ns * credit_ns:
            elapsed_ns = now_ns - min(h.free_ns for h in holders)
            self._again_ns = now_ns + max(self.settings.again_ns, elapsed_ns // 2)
            return None
        return duration_ns - delay_ns

    def _await_expected(self, task: Task, now_ns: int) -> bool:
        """Hold a kernel back that a task of a higher class would find running. Whoever sends hints wants that."""
        if not self._expected:
            return False
        duration_ns = self._duration_ns(task)
        return duration_ns is not None and self._expected_delay_ns(task.priority, duration_ns, now_ns) > 0

    def _expected_delay_ns(self, priority: int, duration_ns: int, now_ns: int) -> float:
        """Delay to expected tasks of classes above `priority`; hints that were wrong are forgotten."""
        delay_ns = 0.0
        for event in list(self._expected.values()):
            if now_ns > event.expected_ns + self.settings.grace_ns:
                del self._expected[event.task]
            elif event.priority < priority:
                delay_ns += max(0, now_ns + duration_ns - max(now_ns, event.expected_ns))
        return delay_ns

    def _duration_ns(self, task: Task) -> int | None:
        """How long the task's next kernel is likely to take; worked out anew when an eighth more has been seen."""
        stats, position = task.stats, task.ready[0].kernel
        if stats is None or not stats.known(position):
            return None
        count = stats.durations[position].count
        seen, duration_ns = self._likely.get((stats.name, position), (0, 0))
        if not 0 <= count - seen <= seen // 8:
            duration_ns = stats.durations[position].quantile_ns(self.settings.quantile)
            self._likely[stats.name, position] = (count, duration_ns)
        return duration_ns

    def _next_alarm_ns(self, now_ns: int) -> int | None:
        times = [super()._next_alarm_ns(now_ns)]
        if self._again_ns > now_ns:
            times.append(self._again_ns)
        if self._expected and any(t.ready for t in self._tasks.values()):
            times += [e.expected_ns + self.settings.grace_ns + 1 for e in self._expected.values()]
        return min((t for t in times if t is not None and t > now_ns), default=None)
