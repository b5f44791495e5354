"""Weights of features, learned by recursive least squares that forgets only what it sees anew.

Rules of this file
- Plain forgetting grows doubt everywhere, so a regime that does not occur for an hour is lost. Here an observation
  makes its own direction more certain, but never more certain than `memory` observations would; all other directions
  stay as they are. A direction that is seen all the time is thus a mean over the last `memory` observations.
- A shorter memory takes effect at once: the direction that is seen becomes less certain again. But nothing becomes
  less certain than it was before anything was seen. Where times scatter widely, weights would wander otherwise.
- Noise comes with the observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Vector", "Weights"]

Vector = NDArray[np.float64]


class Weights:
    """Means and covariance of the weights of one kind of device."""

    __slots__ = ("_both", "_first", "_outer", "_step", "covariance", "mean")

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        count = len(mean)
        #: The covariance, and the means as one more row: one product moves both.
        self._both = np.zeros((count + 1, count))
        self.covariance: NDArray[np.float64] = self._both[:count]
        self.mean: Vector = self._both[count]
        #: Variances before anything was seen.
        self._first: Vector = np.square(np.array(deviation, np.float64))
        self.set(mean, np.diag(self._first))
        #: Room to calculate in.
        self._outer = np.empty_like(self._both)
        self._step = np.empty((count + 1, 1))

    def set(self, mean: Sequence[float] | Vector, covariance: NDArray[np.float64]) -> None:
        """Begin with these."""
        self.mean[:] = mean
        self.covariance[:] = covariance

    def doubt(self, direction: Vector) -> tuple[Vector, float]:
        """The covariance with this direction, and the variance along it."""
        along: Any = self.covariance.dot(direction)
        return along, float(direction.dot(along))

    def learn(
        self, direction: Vector, along: Vector, variance: float, error: float, total: float, floor: float
    ) -> None:
        """Take an error along a direction whose `doubt` was this; `total` is all variance, noise included.

        The variance along the direction does not fall below `floor`.
        """
        if variance <= 0:
            return
        grows = floor > variance
        if grows:
            floor = min(floor, float(np.square(direction).dot(self._first)))
        target = max(variance * (1 - variance / total), floor)
        step = self._step
        np.multiply(along, (target - variance) / (variance * variance), out=step[:-1, 0])
        step[-1, 0] = error / total
        self._both += np.multiply(step, along, out=self._outer)
        if grows:
            # Shrinking rows and columns alike leaves a covariance a covariance.
            most = np.sqrt(self._first / np.maximum(self._first, self.covariance.diagonal()))
            self.covariance *= most
            self.covariance *= most[:, None]
