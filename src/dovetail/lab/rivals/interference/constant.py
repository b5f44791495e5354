"""One factor for everything: the mean of what was seen beforehand."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .common import Errors, Sample

__all__ = ["Constant"]


class Constant:
    """Says the mean slow-down."""

    def __init__(self) -> None:
        self._mean = 1.0
        self._errors = Errors()

    def fit(self, samples: Sequence[Sample]) -> None:
        """The mean."""
        self._mean = statistics.fmean(sample.slowdown for sample in samples)
        for sample in samples:
            self._errors.add(self._mean, sample.slowdown)

    def predict(self, sample: Sample, *, came: bool = False) -> float:
        """The mean; one without neighbours."""
        return self._mean if sample.known else 1.0

    def bound(self, sample: Sample) -> float:
        """The mean times the 95th percentile of its errors beforehand."""
        return self.predict(sample) * self._errors.above()

    def observe(self, sample: Sample) -> None:
        """Nothing is learned."""
