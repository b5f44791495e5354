"""What all predictors of interference are compared on: a sample, its features, and a bound from their own errors.

Rules of this file
- A sample is one batch: what was known when it began, who was beside it as it came, and how long it took.
- `predict(sample, came=False)` may read `known`, `queued` and `slots` only. With `came=True` it may read `beside` as
  well: that is what a predictor says that is asked again whenever the set changes.
- A static rival learns in `fit` and never again. Its bound is frozen with it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ....predict.interference import Beside, Load

__all__ = ["Errors", "Rival", "Sample", "coarse", "fine", "least_squares", "overlaps"]

Array = NDArray[np.float64]


class Sample(msgspec.Struct, frozen=True):
    """One batch."""

    kind: str
    victim: Load
    solo_ns: int
    duration_ns: int
    #: Who ran when it began, and when they would leave from then on, if nobody else comes.
    known: tuple[Beside, ...]
    #: Who ran beside it as it came.
    beside: tuple[Beside, ...]
    #: Who waited when it began, first come first, with times alone as ends; and how many run at once.
    queued: tuple[Beside, ...] = ()
    slots: int = 1 << 30

    @property
    def slowdown(self) -> float:
        """How many times as long it took as alone."""
        return self.duration_ns / self.solo_ns


class Rival(Protocol):
    """A predictor of interference."""

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn from these, beforehand."""
        ...

    def predict(self, sample: Sample, *, came: bool = False) -> float:
        """How many times as long it takes as alone."""
        ...

    def bound(self, sample: Sample) -> float:
        """What that stays below in 95 of 100 cases, said when the batch begins."""
        ...

    def observe(self, sample: Sample) -> None:
        """It ran."""
        ...


class Errors:
    """The last errors of a predictor, as logarithms, and their 95th percentile."""

    def __init__(self, window: int = 400) -> None:
        self._last: deque[float] = deque()
        self._sorted: list[float] = []
        self._window = window

    def add(self, predicted: float, seen: float) -> None:
        """One more."""
        error = math.log(seen / predicted)
        if len(self._last) == self._window:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]
        self._last.append(error)
        insort(self._sorted, error)

    def above(self) -> float:
        """The factor that 95 of 100 stay below."""
        if not self._sorted:
            return 1.0
        return math.exp(self._sorted[min(len(self._sorted) - 1, math.ceil(0.95 * (len(self._sorted) + 1)) - 1)])


def overlaps(sample: Sample, *, came: bool) -> list[tuple[Load, float]]:
    """(neighbour, part of the batch's time that it is there), as known at the begin or as it came."""
    if came:
        whole = sample.duration_ns
        spans = [(b.load, max(0, b.begin_ns), min(b.end_ns, whole)) for b in sample.beside]
        return [(load, (end - begin) / whole) for load, begin, end in spans if end > begin]
    return [(b.load, min(1.0, b.end_ns / sample.solo_ns)) for b in sample.known if b.end_ns > 0]


def coarse(sample: Sample) -> Array:
    """gpulets' features: use of cache and memory alone, own and the others', as they are when the batch begins."""
    return _features(sample.victim, [(b.load, 1.0) for b in sample.known])


def fine(sample: Sample, *, came: bool) -> Array:
    """The same weighted by the time that each is there, and shares and sizes beside them."""
    there = overlaps(sample, came=came)
    victim = sample.victim
    more = [
        sum(part for _, part in there),
        sum(part * load.share_pct / 100 for load, part in there),
        victim.share_pct / 100,
        math.log2(max(1, victim.items)),
        sum(part * math.log2(max(1, load.items)) for load, part in there),
    ]
    return np.concatenate([_features(victim, there), more])


def _features(victim: Load, others: Sequence[tuple[Load, float]]) -> Array:
    return np.array(
        [
            1.0,
            max(0.0, victim.cache),
            sum(part * max(0.0, load.cache) for load, part in others),
            max(0.0, victim.memory),
            sum(part * max(0.0, load.memory) for load, part in others),
        ]
    )


def least_squares(rows: Sequence[Array], values: Sequence[float], ridge: float = 1e-6) -> Array:
    """Weights of the least squares, with a little ridge so that columns of nought do no harm."""
    matrix = np.array(rows)
    gram = matrix.T @ matrix + ridge * len(rows) * np.eye(matrix.shape[1])
    weights: Array = np.linalg.solve(gram, matrix.T @ np.array(values))
    return weights
