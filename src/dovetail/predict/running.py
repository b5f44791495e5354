"""Running means, in constant memory: how everything that is learned of time is learned.

Rules of this file: means are integers, so that a replay learns the same to the bit. A mean is of all values at first
and then weighted towards the last `window` of them, so that old moods of a machine fade.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul, truediv

from .estimate import GUESSED_SPREAD

__all__ = ["MILLION", "Mean", "Rate", "Seen"]

MILLION = 1_000_000


class Mean:
    """The mean of integers."""

    __slots__ = ("count", "value", "window")

    def __init__(self, window: int = 16) -> None:
        self.window = window
        self.value = 0
        self.count = 0

    def add(self, value: int) -> None:
        """Take one value."""
        self.count = count = self.count + 1
        self.value += (value - self.value) // (count if count < self.window else self.window)


class Seen:
    """Times that were seen: their mean, and how far single ones are from it.

    The sum of squares is Welford's, and fades as the mean does.
    """

    __slots__ = ("count", "mean", "squares", "window")

    def __init__(self, window: int, count: int = 0, mean: int = 0, squares: float = 0.0) -> None:
        self.window = window
        self.count = count
        self.mean = mean
        self.squares = squares

    def add(self, value: int) -> None:
        """Take one value."""
        self.add_each((value,))

    def add_each(self, values: Sequence[int]) -> None:
        """Take values one after the other."""
        count, mean, squares, window = self.count, self.mean, self.squares, self.window
        for value in values:
            count += 1
            off = value - mean
            if count <= window:
                mean += off // count
            else:
                squares -= squares / window
                mean += off // window
            squares += off * (value - mean)
        self.count, self.mean, self.squares = count, mean, squares

    def add_many(self, values: Sequence[int]) -> None:
        """Take values at once; what was seen before has the weight of the window at most, and they have their own."""
        many, before = len(values), min(self.count, self.window)
        if not many:
            return
        total = before + many
        off = sum(values) - many * self.mean
        squares = sum(map(mul, values, values)) - many * self.mean * self.mean - 2 * self.mean * off
        self.count += many
        self.mean += off // total
        # Around the old mean it is the sum of both; off²/total takes it to the new one. The squares are larger than a
        # float holds exactly, and only the interpreter's own division rounds once: compiled code would round twice.
        squares = self.squares + max(0.0, squares - truediv(off * off, total))
        self.squares = squares * min(self.count, self.window) / total

    def fade(self, count: int) -> None:
        """Let what was seen so far count for so many values at most."""
        seen = min(self.count, self.window)
        if seen > count:
            self.squares *= count / seen
            self.count = count

    def spread(self) -> float:
        """Standard deviation over mean of a single value, and the doubt that few of them leave.

        The doubt is that of a guess at the first value, half of it at the second, and so on.
        """
        return math.hypot(self.deviation(), GUESSED_SPREAD / max(1, self.count))

    def deviation(self) -> float:
        """Standard deviation over mean of a single value, as far as it was seen."""
        seen = self.count if self.count < self.window else self.window
        return math.sqrt(self.squares / (seen - 1)) / self.mean if seen > 1 and self.mean > 0 else 0.0


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
        last_ns, self._last_ns = self._last_ns, now_ns
        if last_ns >= 0:
            self._recent.add(now_ns - last_ns)
            self._steady.add(now_ns - last_ns)

    def expected_ns(self, count: int) -> int | None:
        """How long `count` more arrivals are expected to take; None while too little is known."""
        return None if self._recent.count < self.ENOUGH else self._recent.value * count

    def steady_interval_ns(self) -> int | None:
        """The interval in the long run; None while too little is known."""
        return None if self._steady.count < self.ENOUGH else self._steady.value
