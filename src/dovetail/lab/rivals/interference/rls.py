"""Online: recursive least squares with plain forgetting on coarse features (forgetting 0.995 [our choice])."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import Array, Errors, Sample, coarse

__all__ = ["CoarseRls"]

_FORGETTING = 0.995


class CoarseRls:
    """A linear model on coarse features, re-fitted with every batch."""

    def __init__(self) -> None:
        self._weights: Array = np.array([1.0, 0, 0, 0, 0])
        self._inverse: Array = 100.0 * np.eye(5)
        self._errors = Errors()

    def fit(self, samples: Sequence[Sample]) -> None:
        """One after the other."""
        for sample in samples:
            self.observe(sample)

    def predict(self, sample: Sample, *, came: bool = False) -> float:
        """One without neighbours, and never less."""
        return max(1.0, float(self._weights @ coarse(sample))) if sample.known else 1.0

    def bound(self, sample: Sample) -> float:
        """Times the 95th percentile of its last errors."""
        return self.predict(sample) * self._errors.above()

    def observe(self, sample: Sample) -> None:
        """The usual recursion."""
        self._errors.add(self.predict(sample), sample.slowdown)
        if not sample.known:
            return
        x = coarse(sample)
        along = self._inverse @ x
        gain = along / (_FORGETTING + float(x @ along))
        self._weights += gain * (sample.slowdown - float(self._weights @ x))
        self._inverse = (self._inverse - np.outer(gain, along)) / _FORGETTING
