"""Work on a simulated device: what runs has work left, and flows at a rate that depends on what else runs.

Rules of this file
- Work is time alone on the device, in nanoseconds. A rate is work per time: 1 alone, less beside others.
- Rates come from `contention(running)` and change only when the set of what runs does. Without a contention everybody
  flows at rate 1, ends are known when work begins, and nothing has to be looked at again.
- Every piece of work ends once; an end that was put off leaves a wake behind that finds `end_ns` later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from ..state import RunBatch
from ..state.worker import FULL_SHARE

__all__ = ["BatchRun", "Contention", "Flow", "Fluid"]


class Flow:
    """One piece of work: a grant that is carried out."""

    #: How much of the device it has, and what bounds it ("compute", "memory") where that is known.
    share_pct = FULL_SHARE
    kind = ""
    begin_ns = 0
    #: When it ends if nothing changes; -1 while it does not run.
    end_ns = -1
    #: Work of this grant in all, and what is left of it: kept under contention only.
    work_ns = 0.0
    left_ns = 0.0
    rate = 1.0
    since_ns = 0


class BatchRun(Flow):
    """A batch that was taken and is not answered yet: its kernels, and the grant that it has."""

    #: Work up to the end of each of its kernels; () while that is not known.
    ends_ns: tuple[int, ...] = ()
    #: Kernels of its grant: the first, and the first that is not to run.
    first = 0
    stop = 1
    #: When it first began; -1 before.
    first_ns = -1
    #: How long it had the device, if it was stopped in between.
    busy_ns = 0

    def __init__(self, task: int, action: RunBatch, counts: tuple[int, ...]) -> None:
        self.task = task
        self.action = action
        #: How many elements its results have, where that counts.
        self.counts = counts

    def spans(self, now_ns: int) -> tuple[tuple[int, int], ...]:
        """When each kernel of the grant that ends now ran, at an even rate."""
        before_ns = self.ends_ns[self.first - 1] if self.first else 0
        work_ns = self.ends_ns[self.stop - 1] - before_ns
        took_ns = now_ns - self.begin_ns
        ends = (
            self.begin_ns + (end_ns - before_ns) * took_ns // max(1, work_ns)
            for end_ns in self.ends_ns[self.first : self.stop]
        )
        return tuple(pairwise((self.begin_ns, *ends)))


#: The rate of each of these, which run together.
Contention = Callable[[Sequence[Flow]], Sequence[float]]
#: (when, for whom, what): sees to it that somebody asks then whether it has ended.
Schedule = Callable[[int, Any, Any], None]


class Fluid:
    """What runs on one device."""

    __slots__ = ("_contention", "_owner", "_schedule", "running")

    def __init__(self, schedule: Schedule, owner: object, contention: Contention | None = None) -> None:
        self.running: list[Flow] = []
        self._schedule = schedule
        self._owner = owner
        self._contention = contention

    def begin(self, flow: Flow, work_ns: int, at_ns: int) -> None:
        """Let it flow from this time on."""
        flow.begin_ns = at_ns
        if self._contention is None:
            flow.end_ns = end_ns = at_ns + work_ns
            self._schedule(end_ns, self._owner, flow)
            return
        flow.end_ns, flow.since_ns, flow.rate = -1, at_ns, 1.0
        flow.work_ns = flow.left_ns = float(work_ns)
        self.running.append(flow)
        self._flow_on(at_ns)

    def shorten(self, flow: Flow, work_ns: int, now_ns: int) -> None:
        """It ends after so much less work."""
        if self._contention is None:
            flow.end_ns -= work_ns
            self._schedule(flow.end_ns, self._owner, flow)
            return
        self._progress(now_ns)
        flow.work_ns -= work_ns
        flow.left_ns -= work_ns
        self._flow_on(now_ns)

    def done_ns(self, flow: Flow, now_ns: int) -> float:
        """Work of it that is done since it began."""
        if self._contention is None:
            return now_ns - flow.begin_ns
        self._progress(now_ns)
        return flow.work_ns - flow.left_ns

    def end(self, flow: Flow, now_ns: int) -> None:
        """It has ended."""
        flow.end_ns = -1
        if self._contention is not None:
            self._progress(now_ns)
            self.running.remove(flow)
            self._flow_on(now_ns)

    def _progress(self, now_ns: int) -> None:
        for flow in self.running:
            if now_ns > flow.since_ns:
                flow.left_ns -= (now_ns - flow.since_ns) * flow.rate
                flow.since_ns = now_ns

    def _flow_on(self, now_ns: int) -> None:
        """The set has changed: everybody flows at another rate, and ends at another time."""
        contention = self._contention
        assert contention is not None
        self._progress(now_ns)
        for flow, rate in zip(self.running, contention(self.running), strict=True):
            flow.rate = rate
            end_ns = max(now_ns, flow.since_ns) + max(0, round(flow.left_ns / rate))
            if end_ns != flow.end_ns:
                flow.end_ns = end_ns
                self._schedule(end_ns, self._owner, flow)
