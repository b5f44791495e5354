"""gpulets' linear model, corrected by a running mean of what it was off: dynamics are in it in part.

The correction is by victim, and the newest error weighs a fifth [our choice; the original's weight is not known].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .common import Errors, Sample
from .gpulets import Gpulets

__all__ = ["Ewma"]

_WEIGHT = 0.2


class Ewma:
    """A static linear model times a running factor."""

    def __init__(self) -> None:
        self._static = Gpulets()
        self._off: dict[str, float] = {}
        self._errors = Errors()

    def fit(self, samples: Sequence[Sample]) -> None:
        """The linear model, then the factors."""
        self._static.fit(samples)
        for sample in samples:
            self.observe(sample)

    def predict(self, sample: Sample, *, came: bool = False) -> float:
        """The linear model's answer times the victim's factor."""
        return max(1.0, self._static.predict(sample) * math.exp(self._off.get(sample.victim.model, 0.0)))

    def bound(self, sample: Sample) -> float:
        """Times the 95th percentile of its last errors."""
        return self.predict(sample) * self._errors.above()

    def observe(self, sample: Sample) -> None:
        """The factor moves."""
        self._errors.add(self.predict(sample), sample.slowdown)
        name = sample.victim.model
        error = math.log(sample.slowdown / self._static.predict(sample))
        off = self._off.get(name, 0.0)
        self._off[name] = off + _WEIGHT * (error - off)
