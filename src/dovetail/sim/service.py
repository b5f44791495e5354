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

    __slots__ = ("_kind", "_rng", "_sigmas", "_table")

    def __init__(self, table: ProfileTable, kind: str, rng: random.Random | None = None) -> None:
        self._table = table
        self._kind = kind
        self._rng = rng
        #: Stage -> sigma of the logarithm of its run times.
        self._sigmas: dict[str, float] = {}

    def __call__(self, run: RunBatch) -> int:
        """How long the batch takes when it has its share of the device for itself."""
        stage, items = run.stage, len(run.items)
        mean = self._table.latency_ns(stage, self._kind, items, run.cpus, run.share_pct)
        if mean is None:
            return UNPROFILED_NS * items
        if self._rng is not None:
            sigma = self._sigmas.get(stage)
            if sigma is None:
                spread = self._table.entries[stage, self._kind].spread
                sigma = self._sigmas[stage] = math.sqrt(math.log1p(spread * spread))
            if sigma:
                mean = round(mean * math.exp(self._rng.gauss(-sigma * sigma / 2, sigma)))
        return mean if mean > 1 else 1
