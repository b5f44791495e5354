"""Scalers that decide once, when a worker joins: hold everything from the start, or bring what is needed."""

from __future__ import annotations

from collections.abc import Sequence

from ..state import Cluster, Queue, Worker
from ..workflow.graph import StageSpec
from .protocol import Adjustment

__all__ = ["FetchOnDemand", "LoadEverything"]


class _Static:
    """Nothing changes after a worker has joined."""

    adjusts = False
    dry = False

    def manages(self, stage: StageSpec) -> bool:
        """Stages have no slices but those that they declare."""
        return False

    def adjust(self, cluster: Cluster, starved: Sequence[Queue], now_ns: int) -> Adjustment:
        """Nothing changes."""
        return Adjustment()


class LoadEverything(_Static):
    """Every worker holds every model it can run, from the start; a model larger than its memory is left to others."""

    def residents(self, worker: Worker, stages: Sequence[StageSpec]) -> Sequence[StageSpec] | None:
        """All stages that it could run; if they do not fit all at once, it swaps them."""
        return stages


class FetchOnDemand(_Static):
    """Devices hold what their batches need, and nothing is ordered; host processes hold everything."""

    def residents(self, worker: Worker, stages: Sequence[StageSpec]) -> Sequence[StageSpec] | None:
        """It brings them by itself."""
        return stages if worker.spec.on_host else None
