"""The simplest honest predictor: the profile's time; without a profile, the running mean of what was seen."""

from __future__ import annotations

from ..profile.table import ProfileTable
from ..state import Batch, Config, Worker
from ..units import MS
from ..workflow.graph import StageSpec

__all__ = ["ProfiledPredictor"]

#: Expected duration of a stage that was never profiled and never run. Only a start: the first run replaces it.
UNKNOWN_NS = 10 * MS


class ProfiledPredictor:
    """Answers how long, from a table that does not learn; unprofiled stages are learned by their running mean."""

    def __init__(self, table: ProfileTable) -> None:
        self.table = table
        self._seen: dict[tuple[str, str, int], tuple[int, int]] = {}

    def duration_ns(self, stage: StageSpec, items: int, config: Config, worker: Worker) -> int:
        """Expected run time; the worker's other load does not matter to this predictor."""
        kind = worker.spec.kind
        known = self.table.latency_ns(stage.name, kind, items, config.cpus, config.share_pct)
        if known is not None:
            return known
        seen = self._seen.get((stage.name, kind, items))
        return UNKNOWN_NS if seen is None else seen[0]

    def observe(self, batch: Batch, duration_ns: int) -> None:
        """Keep the running mean of stages that have no profile."""
        stage, kind = batch.queue.stage.name, batch.worker.spec.kind
        if (stage, kind) in self.table.entries:
            return
        key = (stage, kind, len(batch.items))
        mean, count = self._seen.get(key, (0, 0))
        count = min(count + 1, 64)  # a window: old machines' moods fade
        self._seen[key] = (mean + (duration_ns - mean) // count, count)
