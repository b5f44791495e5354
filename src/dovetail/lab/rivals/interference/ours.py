"""Ours, seen as the rivals are: `predict.interference` behind the protocol of the comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ....predict.interference import Forecast, Interference, InterferenceState, Load, Piece, Work, ends_ns
from .common import Sample

__all__ = ["Ours"]


class Ours:
    """The predictor of the product."""

    def __init__(self, state: InterferenceState | None = None) -> None:
        self.model = Interference(state)
        self._said: tuple[Sample, Forecast] | None = None

    def fit(self, samples: Sequence[Sample]) -> None:
        """It learns as it would while serving."""
        for sample in samples:
            self.forecast(sample)
            self.observe(sample)

    def forecast(self, sample: Sample) -> Forecast:
        """What is said when the batch begins: those who run leave when their own work integral ends."""
        if self._said is not None and self._said[0] is sample:
            return self._said[1]
        works = [Work((Piece(b.load, b.end_ns),)) for b in (*sample.known, *sample.queued)]
        own = Work((Piece(sample.victim, sample.solo_ns),))
        ends = ends_ns([own, *works], self._slowdown(sample.kind), sample.slots)
        others = [b.load for b in sample.known]
        leave = [round(end) for end in ends[1 : 1 + len(others)]]
        forecast = self.model.predict(sample.kind, sample.victim, sample.solo_ns, others, leave)
        if sample.queued:
            forecast = msgspec.structs.replace(forecast, median_ns=max(sample.solo_ns, round(ends[0])))
        self._said = sample, forecast
        return forecast

    def _slowdown(self, kind: str) -> Callable[[Load, Sequence[Load]], float]:
        def slowdown(victim: Load, others: Sequence[Load]) -> float:
            return self.model.slowdown(kind, victim, others)

        return slowdown

    def predict(self, sample: Sample, *, came: bool = False) -> float:
        """At the begin: the median as corrected by past errors. As it came: the integral over who was there."""
        if not came:
            forecast = self.forecast(sample)
            return max(1.0, self.model.bound_ns(sample.kind, forecast, 0.5) / sample.solo_ns)
        return self.model.over(sample.kind, sample.victim, sample.solo_ns, sample.beside) / sample.solo_ns

    def bound(self, sample: Sample) -> float:
        """The bound of the product."""
        return self.model.bound_ns(sample.kind, self.forecast(sample), 0.95) / sample.solo_ns

    def observe(self, sample: Sample) -> None:
        """As while serving."""
        forecast = self.forecast(sample)
        self.model.observe(sample.kind, sample.victim, sample.solo_ns, sample.duration_ns, sample.beside, forecast)
        self._said = None
