"""No interference: a batch takes as long as alone."""

from __future__ import annotations

from collections.abc import Sequence

from .common import Errors, Sample

__all__ = ["Nothing"]


class Nothing:
    """Says one."""

    def __init__(self) -> None:
        self._errors = Errors()

    def fit(self, samples: Sequence[Sample]) -> None:
        """Only the bound is learned."""
        for sample in samples:
            self._errors.add(1.0, sample.slowdown)

    def predict(self, sample: Sample, *, came: bool = False) -> float:
        """One."""
        return 1.0

    def bound(self, sample: Sample) -> float:
        """The 95th percentile of what was seen beforehand."""
        return self._errors.above()

    def observe(self, sample: Sample) -> None:
        """Nothing is learned."""
