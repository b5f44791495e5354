"""What the planner learns while running: arrival rates, waits in queues, and sizes of fan-outs.

Exponentially weighted means in integer nanoseconds (or millionths), so that a replay learns the same to the bit.
"""

from __future__ import annotations

__all__ = ["MILLION", "Mean", "Rate"]

MILLION = 1_000_000


class Mean:
    """An exponentially weighted mean of integers; the first value is taken whole."""

    __slots__ = ("count", "value")

    #: Each new value counts a sixteenth: about as quick as the last sixteen values.
    SHIFT = 4

    def __init__(self) -> None:
        self.value = 0
        self.count = 0

    def add(self, value: int) -> None:
        """Take one value."""
        self.count += 1
        if self.count == 1:
            self.value = value
        else:
            self.value += (value - self.value) >> self.SHIFT


class Rate:
    """Mean interval between arrivals."""

    __slots__ = ("_last_ns", "interval")

    def __init__(self) -> None:
        self._last_ns = -1
        self.interval = Mean()

    def arrived(self, now_ns: int) -> None:
        """One more arrival."""
        if self._last_ns >= 0:
            self.interval.add(now_ns - self._last_ns)
        self._last_ns = now_ns

    def expected_ns(self, count: int) -> int | None:
        """How long `count` more arrivals are expected to take; None while too little is known."""
        return None if self.interval.count < 4 else self.interval.value * count
