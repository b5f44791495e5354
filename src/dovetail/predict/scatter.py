"""How far single times of a profiled stage scatter: what the profile says at first, and then what is seen.

Rules of this file
- Times are compared with the profile's mean of the same configuration, so all configurations of a stage teach the
  same figure. The scatter is around the mean that is seen: a machine that is slower than its profile is not a machine
  that scatters more.
- What the profile says counts as much as so many times that were seen (`PRIOR`), and fades once a window is full.
- What is said changes only if it is off by a fifth, and is looked at ever more seldom: whoever plans with it plans
  anew then.
"""

from __future__ import annotations

import math
from typing import Final

from .running import MILLION, Seen

__all__ = ["PRIOR", "WINDOW", "Scatter"]

#: Weight of the profile, and how many of the last times count, of all sizes and configurations. A deviation of 256
#: values is known to 4 % (one in √(2 × 256)). [our choice]
PRIOR: Final = 32
WINDOW: Final = 256
#: What is said is changed if it is off by this part. [our choice]
CHANGE: Final = 0.2


class Scatter:
    """Of one stage on one kind of device."""

    __slots__ = ("_profiled", "said", "seen")

    def __init__(
        self, profiled: float, count: int = 0, mean: int = 0, squares: float = 0.0, said: float | None = None
    ) -> None:
        self._profiled = profiled
        #: Times over the profile's, in millionths.
        self.seen = Seen(WINDOW, count, mean, squares)
        #: The spread that is said.
        self.said = profiled if said is None else said

    def add(self, duration_ns: int, profile_ns: int) -> bool:
        """A batch took so long where the profile says so; whether something else is said from now on."""
        seen = self.seen
        seen.add(max(0, duration_ns) * MILLION // max(1, profile_ns))
        if seen.count % WINDOW and seen.count & (seen.count - 1):
            return False  # not a power of two, and not a window later
        now = self.spread()
        if abs(now - self.said) <= CHANGE * self.said:
            return False
        self.said = now
        return True

    def spread(self) -> float:
        """The profile's spread and the seen one, each with its weight."""
        count, deviation = self.seen.count, self.seen.deviation()
        seen, prior = min(count, WINDOW), PRIOR * min(1.0, WINDOW / max(1, count))
        total = prior * self._profiled * self._profiled + seen * deviation * deviation
        # Sums of squares may differ in their last bits between machines; a replay elsewhere must say the same.
        return round(math.sqrt(total / (prior + seen)), 9)
