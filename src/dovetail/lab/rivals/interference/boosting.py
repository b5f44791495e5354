"""Gradient boosting on fine features and on who is there, fitted again after every so many batches (as llm-d does).

It needs scikit-learn (the extra `lab`). The last 2,000 batches count.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from .common import Array, Errors, Sample, fine, overlaps

__all__ = ["Boosting"]

_WINDOW, _EVERY = 2_000, 100


class Boosting:
    """Trees that are grown anew now and then."""

    def __init__(self) -> None:
        self._last: deque[Sample] = deque(maxlen=_WINDOW)
        self._models: dict[str, int] = {}
        self._trees: Any = None
        self._width = 0
        self._new = 0
        #: The last answer: it takes milliseconds, and is asked for several times.
        self._said: tuple[Sample, bool, float] | None = None
        self._errors = Errors()

    def fit(self, samples: Sequence[Sample]) -> None:
        """Grow from these."""
        self._last.extend(samples)
        self._grow()
        for sample in samples[-400:]:
            self._errors.add(self.predict(sample), sample.slowdown)

    def _grow(self) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        for sample in self._last:
            for load in (sample.victim, *(b.load for b in (*sample.known, *sample.beside))):
                self._models.setdefault(load.model, len(self._models))
        self._width = len(self._models)
        rows = np.array([self._row(sample, came=True) for sample in self._last])
        values = np.log([sample.slowdown for sample in self._last])
        self._trees = HistGradientBoostingRegressor(max_iter=100, random_state=0, early_stopping=False)
        # Threads that wait for each other on a busy machine take a hundred times as long as one.
        with threadpool_limits(1, user_api="openmp"):
            self._trees.fit(rows, values)
        self._new = 0
        self._said = None

    def _row(self, sample: Sample, *, came: bool) -> Array:
        there = np.zeros(self._width)
        for load, part in overlaps(sample, came=came):
            number = self._models.get(load.model, self._width)
            if number < self._width:
                there[number] += part
        victim = float(self._models.get(sample.victim.model, -1))
        return np.concatenate([fine(sample, came=came), [victim, sample.victim.solo_q], there])

    def predict(self, sample: Sample, *, came: bool = False) -> float:
        """Never less than one."""
        if self._trees is None:
            return 1.0
        from threadpoolctl import threadpool_limits

        if self._said is None or self._said[0] is not sample or self._said[1] is not came:
            with threadpool_limits(1, user_api="openmp"):
                value = float(self._trees.predict(self._row(sample, came=came)[None])[0])
            self._said = sample, came, max(1.0, math.exp(value))
        return self._said[2]

    def bound(self, sample: Sample) -> float:
        """Times the 95th percentile of its last errors."""
        return self.predict(sample) * self._errors.above()

    def observe(self, sample: Sample) -> None:
        """Kept until it is time to grow anew."""
        self._errors.add(self.predict(sample), sample.slowdown)
        self._last.append(sample)
        self._new += 1
        if self._new >= _EVERY:
            self._grow()
