"""How far single times of a profiled stage scatter: what the profile says at first, and then what is seen.

Rules of this file
- Times are compared with the profile's mean of the same configuration, so all configurations of a stage teach the
  same figure. The scatter is around the mean that is seen: a machine that is slower than its profile is not a machine
  that scatters more.
- What the profile says counts as much as so many times that were seen (`PRIOR`), and fades once a window is full.
- What is said changes only if it is off by a fifth, and is looked at ever more seldom: whoever plans with it plans
  anew then. Until it is looked at, times are put aside.
"""

from __future__ import annotations

import math
from typing import Final

from .running import MILLION, Seen

__all__ = ["PRIOR", "WINDOW", "ProfiledTimes", "Scatter"]

#: Weight of the profile, and how many of the last times count, of all sizes and configurations. A deviation of 256
#: values is known to 4 % (one in √(2 × 256)). [our choice]
PRIOR: Final = 32
WINDOW: Final = 256
#: What is said is changed if it is off by this part. [our choice]
CHANGE: Final = 0.2


class Scatter:
    """Of one stage on one kind of device."""

    __slots__ = ("_aside", "_left", "_profiled", "_seen", "said")

    def __init__(
        self, profiled: float, count: int = 0, mean: int = 0, squares: float = 0.0, said: float | None = None
    ) -> None:
        self._profiled = profiled
        #: Times over the profile's, in millionths; the last ones may not be counted yet.
        self._seen = Seen(WINDOW, count, mean, squares)
        self._aside: list[int] = []
        #: So many more, and it is looked at.
        self._left = _until_look(count)
        #: The spread that is said.
        self.said = profiled if said is None else said

    @property
    def seen(self) -> Seen:
        """Times over the profile's, in millionths."""
        self._seen.add_each(self._aside)
        self._aside.clear()
        return self._seen

    def add(self, duration_ns: int, profile_ns: int) -> bool:
        """A batch took so long where the profile says so; whether something else is said from now on."""
        self._aside.append(duration_ns * MILLION // profile_ns if duration_ns > 0 else 0)
        self._left = left = self._left - 1
        return not left and self._look()

    def _look(self) -> bool:
        self._left = _until_look(self.seen.count)
        now = self.spread()
        if abs(now - self.said) <= CHANGE * self.said:
            return False
        self.said = now
        return True

    def spread(self) -> float:
        """The profile's spread and the seen one, each with its weight."""
        of = self.seen
        count, deviation = of.count, of.deviation()
        seen, prior = min(count, WINDOW), PRIOR * min(1.0, WINDOW / max(1, count))
        total = prior * self._profiled * self._profiled + seen * deviation * deviation
        # Sums of squares may differ in their last bits between machines; a replay elsewhere must say the same.
        return round(math.sqrt(total / (prior + seen)), 9)


def _until_look(count: int) -> int:
    """How many more until there is a power of two of them, or a window more."""
    return min((1 << count.bit_length()) - count, WINDOW - count % WINDOW)


class ProfiledTimes:
    """Times of a profiled stage in one configuration that are not counted yet, and its scatter."""

    __slots__ = ("aside", "mean_ns", "scatter")

    def __init__(self, mean_ns: int, scatter: Scatter) -> None:
        self.aside: list[int] = []
        #: What the profile says; above nought.
        self.mean_ns = max(1, mean_ns)
        self.scatter = scatter
