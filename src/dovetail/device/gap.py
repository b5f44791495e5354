"""Beyond FIKIT: gaps as distributions, and filling that pays for the delay it causes.

What is different from `fikit`, and why
- A gap is known by its position in the sequence and as a distribution. What counts is the delay that a filler is
  expected to cause: E[(duration - rest of the gap)+], given how much of the gap has passed already. A gap that has
  lasted longer than usual is still a gap.
- Delay is paid from a credit: a small part (`budget`) of the time that the class has tasks on the device. The fuller
  the credit, the more delay is accepted for the work gained, up to all of it; an empty credit fills nothing. What is
  charged is the delay that a filler did cause. However wrong the statistics are, all delay by fillers together stays
  below budget × time + `burst_ns` + one kernel (twice `burst_ns` with `catch_up`). And a lower task whose next kernel
  is longer than every gap is not starved: it comes through when the credit is full.
- A host that launches without waiting for results catches up: its gaps get shorter by the delay. Delay that a task
  has caught up with is given back; with `catch_up` that is counted on before, for no more than `burst_ns` at a time.
- Kernels that ask for less than the device may run beside each other. Then what counts is the time until the holder's
  next kernel that does not fit beside, and that those which do take a little longer.
- Where the device takes launched kernels by class, fillers are launched before the gap begins: nobody need notice it.
- A kernel that may be run in parts is cut where the gain is highest: work, less `price` times the delay that it is
  expected to cause, or more while the credit is low. Nothing is cut for a gap that takes it whole, nor between tasks.
- After a kernel of which nothing is known the next may come at any moment: a filler is paid for in full.
- A task that is expected (`TaskExpected`) is a gap with a known end.
- Statistics are learned while running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from ..predict.interference import Load
from ..predict.kernel_pairs import KernelPairs
from ..profile.kernels import KernelStats
from ..state.worker import FULL_SHARE
from .account import Account
from .arbiter import KernelFinished, KernelReady, StartKernel, TaskBegan, TaskGone, TaskKnown
from .arbiter_tasks import ArbiterTask, Offer
from .gap_settings import GapSettings
from .outlook import Owed, Tail, delay_to, peak
from .priority import PriorityArbiter

__all__ = ["GapArbiter", "GapSettings"]


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
        pairs: KernelPairs | None = None,
    ) -> None:
        super().__init__(stats, settings or GapSettings(), account=account, learn=learn, pairs=pairs)
        #: Class -> delay that it may still suffer; below nothing, no gap of it is filled.
        self.credit_ns: dict[int, float] = {}
        #: Class -> all delay that fillers caused it, and all time that it had tasks here: the law is about these.
        self.delayed_ns: dict[int, int] = {}
        self.there_ns: dict[int, int] = {}
        self._since_ns = 0
        #: ArbiterTask -> since when its ready kernel waits for a filler.
        self._blocked_ns: dict[int, int] = {}
        #: (task, kernel) that was launched while a filler ran -> since when it waited.
        self._late_ns: dict[tuple[int, int], int] = {}
        self._owed: dict[int, Owed] = {}
        #: ArbiterTask that launches ahead -> its usual gaps added up from the last one backwards.
        self._slack_ns: dict[int, list[float]] = {}
        #: Class -> how many tasks of it are there.
        self._classes: dict[int, int] = {}
        #: (sequence, position) -> observations, and the duration that they make likely.
        self._likely: dict[tuple[str, int], tuple[int, int]] = {}
        #: (sequence, position) -> the wait after that kernel.
        self._tails: dict[tuple[str, int], Tail] = {}
        self._again_ns = -1

    # -- the account of delay -----------------------------------------------------------------------------------

    def _passed(self, now_ns: int) -> None:
        self._again_ns = -1
        passed_ns = now_ns - self._since_ns
        if passed_ns <= 0:
            return
        self._since_ns = now_ns
        credits_ns, there_ns, burst_ns = self.credit_ns, self.there_ns, self.settings.burst_ns
        earned_ns = passed_ns * self.settings.budget
        for priority in self._classes:
            credit_ns = credits_ns.get(priority, 0.0) + earned_ns
            credits_ns[priority] = credit_ns if credit_ns < burst_ns else burst_ns
            there_ns[priority] = there_ns.get(priority, 0) + passed_ns

    def _begin(self, event: TaskBegan) -> ArbiterTask:
        self._classes[event.priority] = self._classes.get(event.priority, 0) + 1
        task = super()._begin(event)
        self._note_slack(task)
        return task

    def _known(self, event: TaskKnown) -> None:
        super()._known(event)
        if (task := self._tasks.get(event.task)) is not None:
            self._note_slack(task)

    def _note_slack(self, task: ArbiterTask) -> None:
        if self.settings.catch_up and task.stats is not None and task.stats.launches_ahead:
            self._slack_ns[task.ident] = list(accumulate(gap.mean_ns for gap in reversed(task.stats.gaps)))

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
        if len(task.ready) == 1:
            self._note_blocked(task, event.at_ns)

    def _finished(self, event: KernelFinished) -> None:
        task = self._tasks.get(event.task)
        if task is None:
            return
        since_ns = self._late_ns.pop((event.task, event.kernel), None)
        if since_ns is not None and event.begin_ns > since_ns:
            self._delayed(task, event.begin_ns - since_ns)
        super()._finished(event)
        if task.ready:
            self._note_blocked(task, task.free_ns)

    def _note_blocked(self, task: ArbiterTask, since_ns: int) -> None:
        """Remember since when the task waits, if it does so for a lower kernel that was let in."""
        if task.started or self.used_pct + task.ready[0].share_pct <= FULL_SHARE:
            return
        below = (t for t in self._tasks.values() if t.rank > task.rank)
        if any(started.why in ("fill", "beside") for t in below for started in t.started.values()):
            self._blocked_ns[task.ident] = since_ns
            # What is launched while it waits is part of catching up.
            self._owed.setdefault(task.ident, Owed())

    def _gone(self, event: TaskGone) -> None:
        task = self._tasks.get(event.task)
        if task is not None:
            self._classes[task.priority] -= 1
            if not self._classes[task.priority]:
                del self._classes[task.priority]
        super()._gone(event)
        self._owed.pop(event.task, None)
        self._slack_ns.pop(event.task, None)
        self._blocked_ns.pop(event.task, None)
        for key in [k for k in self._late_ns if k[0] == event.task]:
            del self._late_ns[key]

    def _start(self, task: ArbiterTask, why: str, now_ns: int, parts: int = 0) -> StartKernel:
        blocked_ns = self._blocked_ns.pop(task.ident, None)
        if blocked_ns is not None and self.settings.by_class:
            # Launched at once; when it began, its end will tell.
            self._late_ns[task.ident, task.ready[0].kernel] = blocked_ns
        elif blocked_ns is not None:
            self._delayed(task, now_ns - blocked_ns)
        return super()._start(task, why, now_ns, parts)

    def _slowed(self, task: ArbiterTask, others: Sequence[Load], took_ns: int) -> None:
        """Neighbours cost a holder the usual part of what its kernel took, as if they had been there all the time.

        What the kernel takes alone is a belief, and may be wrong.
        """
        if task.rank == min(t.rank for t in self._tasks.values()):
            extra = self._extra(task, others)
            self._delayed(task, round(took_ns * extra / (1 + extra)))

    def _extra(self, holder: ArbiterTask, others: Sequence[Load]) -> float:
        """By which part of its time a kernel of a holder takes longer beside these."""
        load = holder.load
        return self.settings.beside if self.pairs is None or load is None else self.pairs.extra(load, others)

    def _delayed(self, task: ArbiterTask, delay_ns: int) -> None:
        self._charge(task.priority, delay_ns)
        self._owed.setdefault(task.ident, Owed()).delay_ns += delay_ns

    def _give_back(self, task: ArbiterTask, owed: Owed) -> None:
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

    def usual(self, task: int) -> bool:
        """Gaps of a task that is behind are shorter than usual."""
        return task not in self._owed

    # -- gaps ---------------------------------------------------------------------------------------------------

    def _worth(self, task: ArbiterTask, holders: list[ArbiterTask], now_ns: int) -> Offer | None:
        """The work gained less the delay caused, if the credit allows for that.

        Of all that is left of the kernel; or, if it may be run in parts, of as many of them as gain the most.
        """
        rest_ns, room_pct = self._rest_ns(task, holders, now_ns), FULL_SHARE - task.ready[0].share_pct
        if rest_ns is None:
            return None
        begin_ns, own = rest_ns + self.settings.overhead_ns, () if task.load is None else (task.load,)
        tail = None if len(holders) > 1 or self._expected or task.started else self._tail(holders[0], room_pct)

        def delay_by(takes_ns: float) -> float:
            if tail is not None:
                return tail.expected_delay_ns(round(begin_ns + takes_ns), now_ns - holders[0].free_ns)
            delay_ns = self._expected_delay_ns(task.priority, round(begin_ns + takes_ns), now_ns)
            end_ns = begin_ns + takes_ns
            return delay_ns + sum(delay_to(h, end_ns, room_pct, self._extra(h, own), now_ns) for h in holders)

        offer = self._weighed(task, holders, delay_by)
        if offer is None and not task.started:
            elapsed_ns = now_ns - min(h.free_ns for h in holders)
            self._again_ns = now_ns + max(self.settings.again_ns, elapsed_ns // 2)
        return offer

    def _tail(self, holder: ArbiterTask, room_pct: int) -> Tail | None:
        """The wait that a holder is in, if it waits for its host and its next kernel does not fit beside another."""
        stats, position = holder.stats, holder.position
        if stats is None or holder.started or holder.ready or stats.is_last(position):
            return None
        gap = stats.gap(position)
        if gap is None or stats.shares.get(position + 1, FULL_SHARE) <= room_pct:
            return None
        known = self._tails.get((stats.name, position))
        if known is None or not known.fits(gap):
            known = self._tails[stats.name, position] = Tail(gap)
        return known

    def _worth_before(self, task: ArbiterTask, holders: list[ArbiterTask], now_ns: int) -> Offer | None:
        """Of the gap that comes after the holder's kernel, if its host waits for that: all of it is ahead."""
        holder = holders[0]
        if len(holders) > 1 or task.started or len(holder.started) != 1:
            return None
        if holder.stats is None or holder.stats.launches_ahead:
            return None
        (kernel,) = holder.started
        gap = holder.stats.gap(kernel)
        if gap is None:
            return None
        begin_ns = round(holder.stats.durations[kernel].mean_ns) if self._expected else 0

        def delay_by(takes_ns: float) -> float:
            delay_ns = self._expected_delay_ns(task.priority, begin_ns + round(takes_ns), now_ns)
            return delay_ns + gap.expected_delay_ns(round(takes_ns))

        return self._weighed(task, holders, delay_by)

    def _weighed(
        self, task: ArbiterTask, holders: list[ArbiterTask], delay_by: Callable[[float], float]
    ) -> Offer | None:
        """How much of the task's next kernel to start; `delay_by` says what delay is expected of a time at work."""
        duration_ns, settings, head = self._duration_ns(task), self.settings, task.ready[0]
        if duration_ns is None:
            return None
        takes_ns = self._takes_ns(duration_ns, head.rest)
        delay_ns = delay_by(takes_ns)
        if task.started:
            return None if delay_ns else Offer(takes_ns)
        credit_ns, slack_ns = self._afford(holders)
        delay_ns = max(0.0, delay_ns - slack_ns)
        offer = None
        if credit_ns >= 0 and delay_ns * settings.burst_ns <= takes_ns * credit_ns:
            offer = Offer(takes_ns - delay_ns)
        if head.left == 1 or credit_ns <= 0 or not delay_ns:
            return offer
        price = max(settings.price, settings.burst_ns / credit_ns)
        # To cut a kernel costs the rest of it, too.
        cut_ns = settings.part_ns + settings.part_extra * duration_ns if head.left == head.parts else 0.0

        def gain(parts: int) -> float:
            part = parts / head.parts
            delay_ns = max(0.0, delay_by(self._takes_ns(duration_ns, part)) - slack_ns)
            return duration_ns * part - price * delay_ns - cut_ns

        parts = peak(gain, head.left - 1)
        if gain(parts) > (duration_ns * head.rest - price * delay_ns if offer else 0.0):
            return Offer(gain(parts), parts)
        return offer

    def _afford(self, holders: list[ArbiterTask]) -> tuple[float, float]:
        """Delay that the holders may suffer, and delay that they are expected to catch up with."""
        credit_ns, all_slack_ns = self.credit_ns.get(holders[0].priority, 0.0), 0.0
        for holder in holders:
            slack_ns, owed = self._slack_of(holder), self._owed.get(holder.ident)
            owed_ns = owed.delay_ns if owed else 0
            all_slack_ns += max(0.0, slack_ns - owed_ns)
            credit_ns += max(0.0, min(owed_ns, slack_ns, self.settings.burst_ns))
        return credit_ns, all_slack_ns

    def _takes_ns(self, duration_ns: float, part: float) -> float:
        """How long a part of a kernel takes, or all of it."""
        if part == 1.0:
            return duration_ns
        return duration_ns * part * (1 + self.settings.part_extra) + self.settings.part_ns

    def _may_fill_ahead(self, task: ArbiterTask) -> bool:
        """Behind another filler, if both surely fit into the gap (`_worth`)."""
        return self.settings.by_class and len(task.started) < self.settings.ahead

    def _worth_beside(self, task: ArbiterTask, holders: list[ArbiterTask], now_ns: int) -> Offer | None:
        """The same question: how long until a holder's next kernel that does not fit beside it?

        A holder with a kernel that could begin but for lower ones is not made to wait for one more.
        """
        if task.started or any(t.ready and not t.started for t in holders):
            return None
        return self._worth(task, holders, now_ns)

    def _rest_ns(self, task: ArbiterTask, holders: list[ArbiterTask], now_ns: int) -> int | None:
        """How long the task's started kernels are at work yet; None if unknown."""
        if not task.started:
            return 0
        if task.stats is None or not all(map(task.stats.known, task.started)):
            return None
        begin_ns = min(s.start_ns for s in task.started.values())
        if not any(h.started for h in holders):
            # Launched before the gap, it began with that.
            begin_ns = max(begin_ns, *(h.free_ns for h in holders))
        total_ns = sum(self._takes_ns(task.stats.durations[k].mean_ns, s.part) for k, s in task.started.items())
        return max(0, round(total_ns) - (now_ns - begin_ns))

    def _slack_of(self, holder: ArbiterTask) -> float:
        """Delay that the holder is expected to catch up with: a part of its gaps to come."""
        slack_ns = self._slack_ns.get(holder.ident)
        if slack_ns is None:
            return 0.0
        coming = len(slack_ns) - 2 - max(holder.last_ready, holder.position)
        return slack_ns[coming] * self.settings.catch_up if coming >= 0 else 0.0

    def _await_expected(self, task: ArbiterTask, now_ns: int) -> bool:
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

    def _duration_ns(self, task: ArbiterTask) -> int | None:
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
        if not self._expected and self._again_ns <= now_ns:
            return times[0]
        if self._again_ns > now_ns:
            times.append(self._again_ns)
        if self._expected and any(t.ready for t in self._tasks.values()):
            times += [e.expected_ns + self.settings.grace_ns + 1 for e in self._expected.values()]
        return min((t for t in times if t is not None and t > now_ns), default=None)
