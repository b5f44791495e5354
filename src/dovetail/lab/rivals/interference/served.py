"""A rival in the place of our own model: the same scheduler asks it, and tells it what happened.

Rules of this file
- Everything but the slow-down of a set is the product's: whether neighbours are felt, the work integral over those
  who run, who is kept apart. So rivals are better here than they were published: the coarse ones are asked again
  whenever the set changes.
- What a rival is told is what ours is told: the batch, its time alone, and who was there when.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....predict.interference import Beside, Forecast, Interference, Load
from .common import Rival, Sample

__all__ = ["Served"]


class Served(Interference):
    """The model of interference of a server, with a rival inside."""

    def __init__(self, rival: Rival) -> None:
        super().__init__()
        self.rival = rival
        #: What it was told, for whoever fits others beforehand.
        self.told: list[Sample] = []

    def slowdown(self, kind: str, victim: Load, others: Sequence[Load]) -> float:
        """As the rival says of a set that stays."""
        if not others:
            return 1.0
        beside = tuple(Beside(other) for other in others)
        return max(1.0, self.rival.predict(Sample(kind, victim, _SOLO_NS, _SOLO_NS, beside, beside)))

    def slowdowns(self, kind: str) -> _Slowdowns:
        """The same, each set asked once."""
        return _Slowdowns(self, kind)

    def over(self, kind: str, victim: Load, solo_ns: int, beside: Sequence[Beside]) -> float:
        """As the rival says of who was there."""
        there = tuple(other for other in beside if other.begin_ns <= 0)
        sample = Sample(kind, victim, solo_ns, solo_ns, there, tuple(beside))
        return solo_ns * max(1.0, self.rival.predict(sample, came=True))

    def predict(
        self, kind: str, victim: Load, solo_ns: int, others: Sequence[Load], ends_ns: Sequence[int] | None = None
    ) -> Forecast:
        """The same as a forecast, with the scatter of a batch."""
        slow = self.slowdown(kind, victim, others)
        return Forecast(solo_ns, round(solo_ns * slow), math.sqrt(self.kind(kind).variance), "all")

    def factor(self, kind: str, victim: Load, others: Sequence[Load], level: float) -> float:
        """The bound of the rival, which is at 95 %."""
        beside = tuple(Beside(other) for other in others)
        sample = Sample(kind, victim, _SOLO_NS, _SOLO_NS, beside, beside)
        return max(1.0, self.rival.bound(sample) / max(1.0, self.rival.predict(sample)))

    def observe(
        self,
        kind: str,
        victim: Load,
        solo_ns: int,
        duration_ns: int,
        beside: Sequence[Beside],
        forecast: Forecast | None = None,
    ) -> float:
        """Tell the rival."""
        self._kinds.setdefault(kind, self.kind(kind))
        there = tuple(other for other in beside if other.begin_ns <= 0)
        sample = Sample(kind, victim, solo_ns, duration_ns, there, tuple(beside))
        self.told.append(sample)
        self.rival.observe(sample)
        return 0.0


_SOLO_NS = 10_000_000


class _Slowdowns:
    """Sets that were asked, and what was said."""

    def __init__(self, served: Served, kind: str) -> None:
        self._served = served
        self._kind = kind
        self._said: dict[tuple[Load, ...], float] = {}

    def __call__(self, victim: Load, others: Sequence[Load]) -> float:
        key = victim, *others
        found = self._said.get(key)
        if found is None:
            found = self._said[key] = self._served.slowdown(self._kind, victim, others)
        return found
