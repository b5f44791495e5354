"""How long batches really take on a simulated device: the hidden truth, which predictors have to learn.

Rule of this file: nothing outside the simulated world reads it. A stage without a profile takes `UNPROFILED_NS` for
each item; that is a property of this world, not an estimate.
"""

from __future__ import annotations

import math
import random

from ..profile.table import ProfileTable
from ..state import RunBatch
from ..units import MS

__all__ = ["UNPROFILED_NS", "ProfiledService"]

#: Run time of a stage without a profile, per item. Python stages of a catalogue workflow that nobody measured.
UNPROFILED_NS = 1 * MS


class ProfiledService:
    """The profile's time, scattered log-normally by the profile's spread if there is an `rng`."""

    __slots__ = ("_kind", "_means", "_rng", "_sigmas", "_table")

    def __init__(self, table: ProfileTable, kind: str, rng: random.Random | None = None) -> None:
        self._table = table
        self._kind = kind
        self._rng = rng
        #: What was asked for, and its mean time.
        self._means: dict[tuple[str, int, int, int], int] = {}
        #: Stage -> sigma of the logarithm of its run times.
        self._sigmas: dict[str, float] = {}

    def run_ns(self, run: RunBatch) -> int:
        """How long the batch takes when it has its share of the device for itself."""
        key = run.stage, len(run.items), run.cpus, run.share_pct
        try:
            mean = self._means[key]
        except KeyError:
            mean = self._means[key] = self._mean(*key)
        return mean if self._rng is None else self._scattered(run.stage, mean, self._rng)

    def _mean(self, stage: str, items: int, cpus: int, share_pct: int) -> int:
        mean = self._table.latency_ns(stage, self._kind, items, cpus, share_pct)
        return UNPROFILED_NS * items if mean is None else max(1, mean)

    def _scattered(self, stage: str, mean: int, rng: random.Random) -> int:
        sigma = self._sigmas.get(stage)
        if sigma is None:
            entry = self._table.entries.get((stage, self._kind))
            spread = 0.0 if entry is None else entry.spread
            sigma = self._sigmas[stage] = math.sqrt(math.log1p(spread * spread))
        return max(1, round(mean * math.exp(rng.gauss(-sigma * sigma / 2, sigma)))) if sigma else mean
