"""The Arbiter's protocol and its simplest policy: kernels start in the order in which they became ready.

A task is a batch at work on the device; its kernels come one after the other. A kernel asks for a share of the
device; the law kept here is that the shares of started kernels never add up to more than the whole.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import msgspec

from ..state.worker import FULL_SHARE

__all__ = ["Arbiter", "ArbiterEvent", "FirstComeArbiter", "KernelFinished", "KernelReady", "StartKernel", "TaskGone"]


class KernelReady(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A task's next kernel could start."""

    at_ns: int
    task: int
    kernel: int
    share_pct: int = FULL_SHARE
    #: 1 is the highest class.
    priority: int = 1


class KernelFinished(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A started kernel has ended."""

    at_ns: int
    task: int
    kernel: int


class TaskGone(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A task is over, failed, cancelled or killed: whatever it held is free and what it waited for is void."""

    at_ns: int
    task: int


class StartKernel(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """Let this kernel start now."""

    task: int
    kernel: int


ArbiterEvent = KernelReady | KernelFinished | TaskGone


class Arbiter(Protocol):
    """Answers when, for one device."""

    def step(self, event: ArbiterEvent) -> list[StartKernel]:
        """Take one event and say which kernels may start."""
        ...


class FirstComeArbiter:
    """First come, first served: a kernel that does not fit holds back those behind it."""

    def __init__(self) -> None:
        self.free_pct = FULL_SHARE
        self._waiting: deque[KernelReady] = deque()
        self._started: dict[tuple[int, int], int] = {}

    def step(self, event: ArbiterEvent) -> list[StartKernel]:
        """Take one event and say which kernels may start."""
        waiting, started = self._waiting, self._started
        if type(event) is KernelReady:
            if not 0 < event.share_pct <= FULL_SHARE:
                raise ValueError(
                    f"kernel {event.kernel} of task {event.task} asks for {event.share_pct} % of a device"
                )
            waiting.append(event)
        elif type(event) is KernelFinished:
            self.free_pct += started.pop((event.task, event.kernel))
        else:
            waiting = self._waiting = deque(k for k in waiting if k.task != event.task)
            for key in [k for k in started if k[0] == event.task]:
                self.free_pct += started.pop(key)
        starts = []
        while waiting and waiting[0].share_pct <= self.free_pct:
            kernel = waiting.popleft()
            started[kernel.task, kernel.kernel] = kernel.share_pct
            self.free_pct -= kernel.share_pct
            starts.append(StartKernel(kernel.task, kernel.kernel))
        return starts

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert 0 <= self.free_pct <= FULL_SHARE
        assert self.free_pct + sum(self._started.values()) == FULL_SHARE
        assert not self._waiting or self._waiting[0].share_pct > self.free_pct, "idle device and runnable work"
