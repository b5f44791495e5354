"""Online: stochastic gradient descent on coarse features, begun with gpulets' fit.

The step is divided by the squared length of the features, so that none is too long [our choice: 0.05 of it].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import Array, Errors, Sample, coarse, least_squares

__all__ = ["Sgd"]

_STEP = 0.05


class Sgd:
    """A linear model on coarse features that takes a step after each batch."""

    def __init__(self) -> None:
        self._weights: Array = np.array([1.0, 0, 0, 0, 0])
        self._errors = Errors()

    def fit(self, samples: Sequence[Sample]) -> None:
        """Least squares."""
        beside = [sample for sample in samples if sample.known] or list(samples)
        self._weights = least_squares([coarse(s) for s in beside], [s.slowdown for s in beside])
        for sample in samples:
            self._errors.add(self.predict(sample), sample.slowdown)

    def predict(self, sample: Sample, *, came: bool = False) -> float:
        """One without neighbours, and never less."""
        return max(1.0, float(self._weights @ coarse(sample))) if sample.known else 1.0

    def bound(self, sample: Sample) -> float:
        """Times the 95th percentile of its last errors."""
        return self.predict(sample) * self._errors.above()

    def observe(self, sample: Sample) -> None:
        """One step."""
        self._errors.add(self.predict(sample), sample.slowdown)
        if sample.known:
            x = coarse(sample)
            self._weights += _STEP * (sample.slowdown - float(self._weights @ x)) * x / float(x @ x)
