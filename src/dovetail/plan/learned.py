"""What the planner learns while running: arrival rates, waits in queues, and sizes of fan-outs.

Exponentially weighted means in integer nanoseconds (or millionths), so that a replay learns the same to the bit.
"""

from __future__ import annotations

__all__ = ["MILLION", "Mean", "Rate"]

MILLION = 1_000_000


class Mean:
    """The mean of integers, of all at first and then weighted towards the last `window` of them."""

    __slots__ = ("count", "value", "window")

    def __init__(self, window: int = 16) -> None:
        self.window = window
        self.value = 0
        self.count = 0

    def add(self, value: int) -> None:
        """Take one value."""
        self.count += 1
        self.value += (value - self.value) // min(self.count, self.window)


class Rate:
    """Mean interval between arrivals: of late, to decide with, and in the long run, to plan with."""

    __slots__ = ("_last_ns", "_recent", "_steady")

    #: Fewer intervals than this say nothing.
    ENOUGH = 4

    def __init__(self) -> None:
        self._last_ns = -1
        self._recent = Mean(16)
        self._steady = Mean(256)

    def arrived(self, now_ns: int) -> None:
        """One more arrival."""
        if self._last_ns >= 0:
            self._recent.add(now_ns - self._last_ns)
            self._steady.add(now_ns - self._last_ns)
        self._last_ns = now_ns

    def expected_ns(self, count: int) -> int | None:
        """How long `count` more arrivals are expected to take; None while too little is known."""
        return None if self._recent.count < self.ENOUGH else self._recent.value * count

    def steady_interval_ns(self) -> int | None:
        """The interval in the long run; None while too little is known."""
        return None if self._steady.count < self.ENOUGH else self._steady.value
