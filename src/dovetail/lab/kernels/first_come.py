"""The simplest arbiter: kernels start in the order in which they became ready, whatever their class."""

from __future__ import annotations

from collections import deque

from ...device.arbiter import (
    KernelEvent,
    KernelFinished,
    KernelReady,
    KernelRevoked,
    KernelRunning,
    StartKernel,
    TaskGone,
)
from ...state.worker import FULL_SHARE

__all__ = ["FirstComeArbiter"]


class FirstComeArbiter:
    """First come, first served: a kernel that does not fit holds back those behind it."""

    takes_turns = True
    classless = True
    by_launch = True

    def __init__(self) -> None:
        self.free_pct = FULL_SHARE
        self._waiting: deque[KernelReady] = deque()
        self._started: dict[tuple[int, int], int] = {}

    def step(self, event: KernelEvent) -> list[StartKernel]:
        """Take one event and say which kernels may start."""
        waiting, started = self._waiting, self._started
        if type(event) is KernelReady:
            if not 0 < event.share_pct <= FULL_SHARE:
                raise ValueError(
                    f"kernel {event.kernel} of task {event.task} asks for {event.share_pct} % of a device"
                )
            waiting.append(event)
        elif type(event) is KernelFinished:
            share_pct = started.pop((event.task, event.kernel))
            self.free_pct += share_pct
            if event.next_ready:
                waiting.append(KernelReady(event.at_ns, event.task, event.next_kernel, share_pct))
            if event.over:
                waiting = self._waiting = deque(k for k in waiting if k.task != event.task)
            elif event.upto > event.kernel + 1:
                waiting = self._waiting = deque(k for k in waiting if k.task != event.task or k.kernel >= event.upto)
        elif type(event) is KernelRunning:
            started[event.task, event.kernel] = event.share_pct
            self.free_pct -= event.share_pct
        elif type(event) is KernelRevoked:
            share_pct = started.pop((event.task, event.kernel))
            self.free_pct += share_pct
            waiting.appendleft(KernelReady(event.at_ns, event.task, event.kernel, share_pct))
        elif type(event) is TaskGone:
            waiting = self._waiting = deque(k for k in waiting if k.task != event.task)
            for key in [k for k in started if k[0] == event.task]:
                self.free_pct += started.pop(key)
        else:
            return []
        starts = []
        while waiting and waiting[0].share_pct <= self.free_pct:
            kernel = waiting.popleft()
            started[kernel.task, kernel.kernel] = kernel.share_pct
            self.free_pct -= kernel.share_pct
            starts.append(StartKernel(kernel.task, kernel.kernel))
        return starts

    def aged_due(self, now_ns: int) -> bool:
        """Nobody waits for longer than those before it take."""
        return False

    def usual(self, task: int) -> bool:
        """Nobody is let in before a task by what is known of its gaps."""
        return True

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert 0 <= self.free_pct <= FULL_SHARE
        assert self.free_pct + sum(self._started.values()) == FULL_SHARE
        assert not self._waiting or self._waiting[0].share_pct > self.free_pct, "idle device and runnable work"
