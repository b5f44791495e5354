"""iGniter (TPDS 2023): scheduling delay by the number of neighbours, and active time by the cache use of neighbours.

t = solo · (1 + α_cache Σ c) + n_k · (α_sch n + β_sch), fitted by victim, once. Its third channel, the frequency that
falls when power is above the limit, is left out: nobody's power is known here. n is the number of those who run
together; without kernel counts the second term is a factor by victim for each neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import Array, Errors, Sample, least_squares

__all__ = ["Igniter"]


class Igniter:
    """A static model with parameters by victim."""

    def __init__(self) -> None:
        self._of: dict[str, Array] = {}
        self._all: Array = np.zeros(2)
        self._errors = Errors()

    def fit(self, samples: Sequence[Sample]) -> None:
        """Least squares by victim; a victim that was not there has the parameters of all."""
        beside = [sample for sample in samples if sample.known]
        if beside:
            self._all = _fitted(beside)
        for name in {sample.victim.model for sample in beside}:
            self._of[name] = _fitted([s for s in beside if s.victim.model == name])
        for sample in samples:
            self._errors.add(self.predict(sample), sample.slowdown)

    def predict(self, sample: Sample, *, came: bool = False) -> float:
        """One, and what both channels add."""
        return 1 + max(0.0, float(self._of.get(sample.victim.model, self._all) @ _channels(sample)))

    def bound(self, sample: Sample) -> float:
        """Times the 95th percentile of its errors beforehand."""
        return self.predict(sample) * self._errors.above()

    def observe(self, sample: Sample) -> None:
        """Nothing is learned."""


def _channels(sample: Sample) -> Array:
    return np.array([sum(max(0.0, b.load.cache) for b in sample.known), float(len(sample.known))])


def _fitted(samples: Sequence[Sample]) -> Array:
    return least_squares([_channels(s) for s in samples], [s.slowdown - 1 for s in samples])
