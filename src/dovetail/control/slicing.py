"""Slices that somebody changes while the system runs: resized, or moved to a worker.

Rules of this file
- Only a slice that was declared can be changed: the others are the scaler's.
- A change counts from the next batch on, which tells its device what its client asks for now (`RunBatch.share_pct`,
  `quota_pct`). What the client used, owes and is behind with stays in the device's account.
- A slice is moved by sending its next batches elsewhere. What is at the old worker is answered there, so that nothing
  is lost. It lapses there half a second after its last batch (`device.tokens`).
- A worker that is lost is nobody's home any more.
"""

from __future__ import annotations

import msgspec

from ..state import Cluster
from ..workflow.graph import StageSpec
from .events import SliceChanged
from .launch import Launcher

__all__ = ["Slicing"]


class Slicing:
    """Changes the slices of one controller."""

    def __init__(self, cluster: Cluster, stages: dict[str, StageSpec], launcher: Launcher) -> None:
        self._cluster = cluster
        self._stages = stages
        self._launcher = launcher

    def changed(self, event: SliceChanged) -> None:
        """Let all stages of a client have this slice."""
        found = [s for s in self._stages.values() if s.sliced and (s.client or s.name) == event.client]
        if not found:
            raise ValueError(f"no stage with a quota is charged to client {event.client!r}")
        if event.worker and event.worker not in self._cluster.workers:
            return  # it was lost on the way
        for stage in found:
            sized = msgspec.structs.replace(stage, share_pct=event.share_pct, quota_pct=event.quota_pct)
            self._stages[stage.name] = sized
            for queue in self._cluster.queues.values():
                if queue.stage.name == stage.name:
                    queue.stage = sized
                    self._launcher.touched[queue] = None
            for piece in self._cluster.declared[stage.name].values():
                piece.share_pct, piece.quota_pct = event.share_pct, event.quota_pct
            self._cluster.homes[stage.name] = event.worker

    def lost(self, worker: int) -> None:
        """A worker is gone."""
        homes = self._cluster.homes
        for stage in [name for name, home in homes.items() if home == worker]:
            del homes[stage]
