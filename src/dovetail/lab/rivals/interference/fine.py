"""Static and fine-grained: a linear function of who is there and for how long, fitted once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import Array, Errors, Sample, fine, least_squares

__all__ = ["Fine"]


class Fine:
    """A static linear model on features that are weighted by time."""

    def __init__(self) -> None:
        self._weights: Array = np.array([1.0, *[0.0] * 9])
        self._errors = Errors()

    def fit(self, samples: Sequence[Sample]) -> None:
        """Least squares, on who was there as it came."""
        self._weights = least_squares([fine(s, came=True) for s in samples], [s.slowdown for s in samples])
        for sample in samples:
            self._errors.add(self.predict(sample), sample.slowdown)

    def predict(self, sample: Sample, *, came: bool = False) -> float:
        """Never less than one."""
        return max(1.0, float(self._weights @ fine(sample, came=came)))

    def bound(self, sample: Sample) -> float:
        """Times the 95th percentile of its errors beforehand."""
        return self.predict(sample) * self._errors.above()

    def observe(self, sample: Sample) -> None:
        """Nothing is learned."""
