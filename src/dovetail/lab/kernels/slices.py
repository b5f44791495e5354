"""Time slices as an arbiter: what a driver does with processes that share a GPU, as far as kernels can be kept whole.

A task keeps the device for a slice and gives it up between kernels; one that has nothing to run gives it up at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...device.arbiter import (
    ArbiterAction,
    KernelEvent,
    KernelFinished,
    KernelReady,
    KernelRevoked,
    KernelRunning,
    StartKernel,
    TaskGone,
)
from ...units import MS

__all__ = ["SLICE_NS", "SliceArbiter"]

#: Time slice between contexts. Figures in public range from some hundred µs to some ms by device; unverified.
SLICE_NS = 2 * MS


class SliceArbiter:
    """Round robin over tasks with something to run, each for a slice; knows neither classes nor durations."""

    takes_turns = True
    classless = True
    by_launch = False

    def __init__(self, slice_ns: int = SLICE_NS) -> None:
        self._slice_ns = slice_ns
        #: Task -> its ready kernels. Tasks are in the order of their turns.
        self._ready: dict[int, deque[int]] = {}
        self._turn = -1
        self._turn_ends_ns = 0
        self._running: tuple[int, int] | None = None

    def step(self, event: KernelEvent) -> Sequence[ArbiterAction]:
        """Take one event and say which kernel may start."""
        if type(event) is KernelReady:
            self._ready.setdefault(event.task, deque()).append(event.kernel)
        elif type(event) is KernelFinished:
            self._running = None
            if event.over:
                self._ready.pop(event.task, None)
            elif event.next_ready:
                self._ready.setdefault(event.task, deque()).append(event.next_kernel)
        elif type(event) is KernelRunning:
            self._running = (event.task, event.kernel)
            self._turn = event.task
            self._turn_ends_ns = event.begin_ns + self._slice_ns
        elif type(event) is KernelRevoked:
            self._ready.setdefault(event.task, deque()).appendleft(event.kernel)
            self._running = None
        elif type(event) is TaskGone:
            self._ready.pop(event.task, None)
            if self._running is not None and self._running[0] == event.task:
                self._running = None
        else:
            return ()
        return self._start(event.at_ns) if self._running is None else ()

    def _start(self, now_ns: int) -> Sequence[StartKernel]:
        ready = self._ready
        if not ready:
            return ()
        if self._turn not in ready or now_ns >= self._turn_ends_ns:
            if self._turn in ready:
                ready[self._turn] = ready.pop(self._turn)
            self._turn = next(iter(ready))
            self._turn_ends_ns = now_ns + self._slice_ns
        task = self._turn
        kernel = ready[task].popleft()
        if not ready[task]:
            del ready[task]
        self._running = (task, kernel)
        return (StartKernel(task, kernel),)

    def aged_due(self, now_ns: int) -> bool:
        """Everybody has a slice in turn."""
        return False

    def usual(self, task: int) -> bool:
        """Nobody is let in before a task by what is known of its gaps."""
        return True

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert self._running is not None or not self._ready, "idle device and runnable work"
