"""Beyond FIKIT: gaps as distributions, and filling that pays for the delay it causes.

What is different from `fikit`, and why
- A gap is known by its position in the sequence and as a distribution. What counts is the delay that a filler is
  expected to cause: E[(duration - rest of the gap)+], given how much of the gap has passed already. A gap that has
  lasted longer than usual is still a gap.
- Delay is paid from a credit: a small part (`budget`) of the time that the class has tasks on the device. A filler
  starts while the credit covers the delay expected of it; what is charged is the delay that it did cause. However
  wrong the statistics are, all delay by fillers together stays below budget × time + `burst_ns` + one kernel. And a
  lower task whose next kernel is longer than every gap is not starved: it comes through when the credit is there.
- After a kernel of which nothing is known the next may come at any moment: a filler is paid for in full.
- A task that is expected (`TaskExpected`) is a gap with a known end.
- Statistics are learned while running.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..profile.kernels import KernelStats
from ..units import MS, US
from .account import Account
from .arbiter import KernelReady, StartKernel
from .priority import PriorityArbiter
from .tasks import ArbiterSettings, Task

__all__ = ["GapArbiter", "GapSettings"]


class GapSettings(ArbiterSettings, frozen=True, kw_only=True):
    """Our knobs."""

    #: Delay by fillers that a class may suffer, as a part of the time that it has tasks on the device.
    budget: float = 0.03
    #: Credit that is kept at most.
    burst_ns: int = 2 * MS
    #: Quantile of a filler's duration that is reckoned with.
    quantile: float = 0.5
    #: Nothing is filled if less than this is gained: what a decision costs.
    small_fill_ns: int = 2 * US
    #: A gap that could not be filled is looked at again after this time, then after half as long again, and so on.
    again_ns: int = 50 * US
    #: How long after its time an expected task is still waited for.
    grace_ns: int = 200 * US


class GapArbiter(PriorityArbiter):
    """Fills gaps as long as the delay expected of it is covered by the class's credit."""

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
        self._again_ns = -1

    # -- the account of delay -----------------------------------------------------------------------------------

    def _passed(self, now_ns: int) -> None:
        passed_ns = now_ns - self._since_ns
        self._since_ns = now_ns
        self._again_ns = -1
        for priority in {t.priority for t in self._tasks.values() if t.active}:
            credit_ns = self.credit_ns.get(priority, 0.0) + passed_ns * self.settings.budget
            self.credit_ns[priority] = min(credit_ns, self.settings.burst_ns)
            self.there_ns[priority] = self.there_ns.get(priority, 0) + passed_ns

    def _ready(self, event: KernelReady) -> None:
        super()._ready(event)
        task = self._tasks[event.task]
        if task.started or len(task.ready) > 1 or self._room_for(task):
            return
        if any(
            s.why == "fill" for t in self._tasks.values() if t.priority > task.priority for s in t.started.values()
        ):
            self._blocked_ns[task.ident] = event.at_ns

    def _start(self, task: Task, why: str, now_ns: int) -> StartKernel:
        blocked_ns = self._blocked_ns.pop(task.ident, None)
        if blocked_ns is not None:
            delay_ns = now_ns - blocked_ns
            self.credit_ns[task.priority] = self.credit_ns.get(task.priority, 0.0) - delay_ns
            self.delayed_ns[task.priority] = self.delayed_ns.get(task.priority, 0) + delay_ns
        return super()._start(task, why, now_ns)

    # -- gaps ---------------------------------------------------------------------------------------------------

    def _worth(self, task: Task, holders: list[Task], now_ns: int) -> float | None:
        """The work gained less the delay caused, if the credit covers that."""
        duration_ns = self._duration_ns(task)
        if duration_ns is None or duration_ns < self.settings.small_fill_ns:
            return None
        delay_ns = 0.0
        for holder in holders:
            gap = None if holder.stats is None else holder.stats.gap(holder.position)
            if gap is None:
                delay_ns += duration_ns
            else:
                delay_ns += gap.expected_delay_ns(duration_ns, now_ns - holder.free_ns)
        delay_ns += self._expected_delay_ns(task.priority, duration_ns, now_ns)
        credit_ns = self.credit_ns.get(holders[0].priority, 0.0)
        if credit_ns < 0 or delay_ns > credit_ns:
            elapsed_ns = now_ns - min(h.free_ns for h in holders)
            self._again_ns = now_ns + max(self.settings.again_ns, elapsed_ns // 2)
            return None
        return duration_ns - delay_ns

    def _await_expected(self, task: Task, now_ns: int) -> bool:
        """Hold a kernel back that a task of a higher class would find running, unless the credit covers it."""
        if not self._expected:
            return False
        duration_ns = self._duration_ns(task)
        if duration_ns is None:
            return False
        delay_ns = self._expected_delay_ns(task.priority, duration_ns, now_ns)
        above = min((e.priority for e in self._expected.values()), default=task.priority)
        return delay_ns > max(0.0, self.credit_ns.get(above, 0.0))

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
        stats = task.stats
        return None if stats is None else stats.duration_ns(task.ready[0].kernel, self.settings.quantile)

    def _next_alarm_ns(self, now_ns: int) -> int | None:
        times = [super()._next_alarm_ns(now_ns)]
        if self._again_ns > now_ns:
            times.append(self._again_ns)
        if self._expected and any(t.ready for t in self._tasks.values()):
            times += [e.expected_ns + self.settings.grace_ns + 1 for e in self._expected.values()]
        return min((t for t in times if t is not None and t > now_ns), default=None)
