"""gpulets (ATC 2022): a linear function of the cache and memory use of the victim and of its neighbours, fitted once.

Four features of a pair in the original; here those of several neighbours are added up. It is coarse: it reads the set
at the begin and does not look again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import Array, Errors, Sample, coarse, least_squares

__all__ = ["Gpulets"]


class Gpulets:
    """A static linear model on coarse features."""

    def __init__(self) -> None:
        self._weights: Array = np.array([1.0, 0, 0, 0, 0])
        self._errors = Errors()

    def fit(self, samples: Sequence[Sample]) -> None:
        """Least squares on what ran beside others."""
        beside = [sample for sample in samples if sample.known] or list(samples)
        self._weights = least_squares([coarse(s) for s in beside], [s.slowdown for s in beside])
        for sample in samples:
            self._errors.add(self.predict(sample), sample.slowdown)

    def predict(self, sample: Sample, *, came: bool = False) -> float:
        """One without neighbours, and never less."""
        return max(1.0, float(self._weights @ coarse(sample))) if sample.known else 1.0

    def bound(self, sample: Sample) -> float:
        """Times the 95th percentile of its errors beforehand."""
        return self.predict(sample) * self._errors.above()

    def observe(self, sample: Sample) -> None:
        """Nothing is learned."""
