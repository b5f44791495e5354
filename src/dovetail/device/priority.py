"""Kernels by class: the highest class that has a task on the device goes first, and lower ones fill its gaps.

Rules of this file
- The tasks of the best rank (class; with `order="slack"` also deadline) have their turn: their kernels start as soon
  as there is room, one task after the other. A kernel that runs is never interrupted.
- While they are between two kernels there is a gap. Whether a lower kernel may start in it is the one question that
  is left to the policies built on this (`fikit`, `gap`): `_worth`.
- As soon as a kernel of the best rank is ready, nothing lower starts any more. So it waits for lower ones no longer
  than for a kernel that is already running. Exceptions, if declared: short kernels that were launched together
  (`ahead_ns`), and one aged start per `ageing_ns`.
- If the device idles although something could run, `hold` says why.
- Pure: time comes in with events; the same events give the same actions.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..state.worker import FULL_SHARE
from .arbiter import (
    AlarmRang,
    ArbiterAction,
    KernelEvent,
    KernelFinished,
    KernelReady,
    KernelRevoked,
    KernelRunning,
    SetAlarm,
    StartKernel,
    TaskBegan,
    TaskExpected,
    TaskGone,
    TaskKnown,
)
from .arbiter_books import ArbiterBooks
from .arbiter_tasks import ArbiterTask, Offer, Started

__all__ = ["PriorityArbiter"]

#: How many may start before one that waits for share (`_back_fill`). As with memory (`Rules.overtakes`); unmeasured.
MOST_OVERTAKES = 8


class PriorityArbiter(ArbiterBooks):
    """Strict classes that fill no gaps: a lower class runs when no task of a higher one is there.

    The base of the arbiters that do fill, and the policy "exclusive by task" in its own right.
    """

    # -- events -------------------------------------------------------------------------------------------------

    def step(self, event: KernelEvent) -> Sequence[ArbiterAction]:
        """Take one event and say which kernels may start, and when to ask again."""
        now_ns = event.at_ns
        self._passed(now_ns)
        if type(event) is KernelReady:
            self._ready(event)
        elif type(event) is KernelFinished:
            if event.next_ready and (task := self._tasks.get(event.task)) is not None:
                # Before its end: that there is a next is not to look like a gap.
                self._ready(KernelReady(now_ns, event.task, event.next_kernel, task.used_pct))
            self._finished(event)
            if event.over:
                self._gone(TaskGone(now_ns, event.task))
        elif type(event) is TaskBegan:
            if event.task in self._tasks:
                self._gone(TaskGone(now_ns, event.task))
            self._expected.pop(event.task, None)
            self._begin(event)
        elif type(event) is TaskGone:
            self._gone(event)
        elif type(event) is TaskExpected:
            self._expected[event.task] = event
        elif type(event) is TaskKnown:
            self._known(event)
        elif type(event) is KernelRunning:
            self._adopt(event)
        elif type(event) is KernelRevoked:
            self._take_back(event)
        elif type(event) is AlarmRang and now_ns >= self._alarm_ns:
            self._alarm_ns = -1
        if self.account.active or self._by_quota:
            self._by_quota = self.account.active
            several = len({task.priority for task in self._tasks.values()}) > 1
            for task in self._tasks.values():
                task.rank_by(self.account.rank(task.client, now_ns) if self._by_quota else None, several)
        actions: list[ArbiterAction] = []
        while (start := self._next(now_ns)) is not None:
            actions.append(start)
        alarm_ns = self._next_alarm_ns(now_ns)
        if alarm_ns is not None and alarm_ns != self._alarm_ns:
            self._alarm_ns = alarm_ns
            actions.append(SetAlarm(alarm_ns))
        return actions

    # -- decisions ----------------------------------------------------------------------------------------------

    def _next(self, now_ns: int) -> StartKernel | None:
        """The next kernel to start now, started; None when there is none."""
        settings = self.settings
        self.hold = ""
        if self.used_pct >= FULL_SHARE and settings.ahead == 1 and not settings.by_class:
            return None
        best: tuple[int, ...] | None = None
        holders: list[ArbiterTask] = []
        others: list[ArbiterTask] = []
        for task in self._tasks.values():
            if not task.active or (self.account.active and not self._allowed(task, now_ns)):
                continue
            if best is None or task.rank < best:
                others += holders
                best, holders = task.rank, [task]
            elif task.rank == best:
                holders.append(task)
            else:
                others.append(task)
        if best is None:
            self.hold = "whoever is ready is over quota" if any(t.ready for t in self._tasks.values()) else ""
            return None
        lower = [t for t in others if t.ready and (not t.started or (not t.in_parts and self._may_fill_ahead(t)))]
        first = holders[0].priority
        if settings.ageing_ns and (waiting := [t for t in lower if not t.started and t.priority > first]):
            aged = min(waiting, key=lambda t: (t.since_ns, t.ident))
            if self._age_due_ns(aged) <= now_ns:
                # It has priority over all, so that the bound is one: those with their turn wait for it to find room.
                return self._start(aged, "aged", now_ns) if self._room_for(aged) else None
        turn = [t for t in holders if t.ready and (not t.started or self._may_launch_ahead(t))]
        if turn:
            task = turn[0] if len(turn) == 1 else min(turn, key=lambda t: (t.turn, t.ident))
            if not self._room_for(task):
                return self._back_fill(task, lower, now_ns) if self.account.active else None
            if not self._await_expected(task, now_ns):
                return self._start(task, "turn", now_ns)
            self.hold = "a task of a higher class is expected"
        return self._fill(holders, lower, now_ns) if lower else None

    def _may_launch_ahead(self, task: ArbiterTask) -> bool:
        """Whether a kernel may be started behind others of its task that have not ended."""
        settings = self.settings
        if len(task.started) >= settings.ahead or task.in_parts:
            return False
        return task.priority == 1 or settings.by_class or task.started_and_next_ns() <= settings.ahead_ns

    def _back_fill(self, waiting: ArbiterTask, lower: list[ArbiterTask], now_ns: int) -> StartKernel | None:
        """Quotas count, and whose turn it is waits for share: another of its class may use what is free meanwhile.

        So many times, then the share is kept for it. Large shares are not starved by small ones.
        """
        fits = [t for t in lower if t.priority == waiting.priority and not t.started and self._room_for(t)]
        if waiting.overtaken >= MOST_OVERTAKES or not fits:
            return None
        waiting.overtaken += 1
        return self._start(min(fits, key=lambda t: t.rank), "back-fill", now_ns)

    def _fill(self, holders: list[ArbiterTask], lower: list[ArbiterTask], now_ns: int) -> StartKernel | None:
        """A kernel of a lower class that may start now, started: of the best class that has one, the worthiest."""
        gap = not any(t.started or t.ready for t in holders)
        before = self.settings.by_class and not gap and not any(t.ready for t in holders)
        kept_pct = FULL_SHARE - sum(t.share_pct for t in holders)
        lower_pct = self.used_pct - sum(t.used_pct for t in holders)
        ranks = sorted({t.rank for t in lower}) if len(lower) > 1 else (lower[0].rank,)
        for rank in ranks:
            chosen: tuple[float, int, ArbiterTask, str, int] | None = None
            for task in lower:
                if task.rank != rank:
                    continue
                offer: Offer | None
                if not self._room_for(task):
                    offer, why = self._worth_before(task, holders, now_ns) if before else None, "fill"
                elif lower_pct + task.ready[0].share_pct <= kept_pct:
                    offer, why = Offer(float("inf")), "beside"
                elif gap:
                    offer, why = self._worth(task, holders, now_ns), "fill"
                else:
                    offer, why = self._worth_beside(task, holders, now_ns), "beside"
                if offer is not None and (chosen is None or (-offer.worth, task.turn) < chosen[:2]):
                    chosen = (-offer.worth, task.turn, task, why, offer.parts)
            if chosen is not None:
                return self._start(chosen[2], chosen[3], now_ns, chosen[4])
        if gap:
            self.hold = f"kept for the next kernel of task {min(t.ident for t in holders)}: nothing fits into the gap"
        return None

    def _worth(self, task: ArbiterTask, holders: list[ArbiterTask], now_ns: int) -> Offer | None:
        """What it is worth to let the task's next kernel start in the gap of the holders; None: it must not."""
        return None

    def _worth_before(self, task: ArbiterTask, holders: list[ArbiterTask], now_ns: int) -> Offer | None:
        """The same before the gap begins: launched now, it runs when the holder's kernel has ended."""
        return None

    def _may_fill_ahead(self, task: ArbiterTask) -> bool:
        """Whether a filler may be started behind another of its task that has not ended."""
        return False

    def _worth_beside(self, task: ArbiterTask, holders: list[ArbiterTask], now_ns: int) -> Offer | None:
        """The same beside a kernel of the holders that leaves room for it."""
        return None

    def _await_expected(self, task: ArbiterTask, now_ns: int) -> bool:
        """Whether a kernel whose turn it is should wait for an expected task of a higher class."""
        return False

    def _passed(self, now_ns: int) -> None:
        """Time has passed, before an event is looked at."""

    def _start(self, task: ArbiterTask, why: str, now_ns: int, parts: int = 0) -> StartKernel:
        """Start the task's next kernel, or so many parts of it."""
        kernel = task.ready.popleft()
        started = parts or kernel.left
        if started < kernel.left:
            task.ready.appendleft(msgspec.structs.replace(kernel, ready_ns=now_ns, left=kernel.left - started))
        if self.used_pct > task.used_pct:
            self._crowd(task, kernel.kernel, FULL_SHARE - kernel.share_pct, now_ns)
        task.started[kernel.kernel] = Started(
            kernel.share_pct, now_ns, why, started / kernel.parts, kernel.ready_ns, task.last_start_ns
        )
        self._release(task)
        self._starts += 1
        task.turn = self._starts
        task.last_start_ns = now_ns
        task.overtaken = 0
        if why == "aged":
            self._aged_ns = now_ns
        self.account.started(task.client, kernel.share_pct, now_ns)
        return StartKernel(task.ident, kernel.kernel, why, parts)

    def _room_for(self, task: ArbiterTask) -> bool:
        """Whether the task's next kernel may be started as far as others leave room for it."""
        used_pct = self.used_pct
        if self.settings.by_class:
            used_pct = sum(t.used_pct for t in self._tasks.values() if t.rank <= task.rank)
        return used_pct + max(0, task.ready[0].share_pct - task.used_pct) <= FULL_SHARE

    def _allowed(self, task: ArbiterTask, now_ns: int) -> bool:
        share_pct = task.ready[0].share_pct if task.ready else task.share_pct
        return bool(task.started) or self.account.may_start(task.client, share_pct, now_ns)

    def aged_due(self, now_ns: int) -> bool:
        """Whether a kernel of a lower class has waited for so long that it goes before all others."""
        if not self.settings.ageing_ns:
            return False
        waiting = [t for t in self._tasks.values() if t.ready and not t.started]
        best = min((t.rank for t in self._tasks.values() if t.active), default=None)
        return best is not None and any(t.rank > best and self._age_due_ns(t) <= now_ns for t in waiting)

    # -- alarms -------------------------------------------------------------------------------------------------

    def _age_due_ns(self, task: ArbiterTask) -> int:
        return max(task.since_ns, self._aged_ns) + self.settings.ageing_ns

    def _next_alarm_ns(self, now_ns: int) -> int | None:
        """When something may start that may not now, though no event says so."""
        if not self.account.active and not self.settings.ageing_ns:
            return None
        times: list[int] = []
        waiting = [t for t in self._tasks.values() if t.ready and not t.started]
        if self.settings.ageing_ns and waiting:
            times.append(min(self._age_due_ns(t) for t in waiting))
        over = (t for t in waiting if self.account.active and not self._allowed(t, now_ns))
        for client in sorted({t.client for t in over}):
            next_ns = self.account.next_ns(client, now_ns)
            if next_ns is not None:
                times.append(next_ns)
        return min((t for t in times if t > now_ns), default=None)

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        tasks = self._tasks.values()
        # By class, what is launched may be more than the device runs: what is of one class, or above it, is not.
        assert self.settings.by_class or 0 <= self.used_pct <= FULL_SHARE, (
            f"{self.used_pct} % of the device are in use"
        )
        assert self.used_pct == sum(t.used_pct for t in tasks), "shares are not those of the started kernels"
        if self.used_pct == 0 and any(t.ready for t in tasks):
            assert self.hold, "idle device, runnable work, and no reason given"
