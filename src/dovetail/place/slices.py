"""Stages with a quota: their batches wait for tokens at the device, whatever else is there.

Rules of this file
- Of each such stage a worker has two batches at once: one that runs and one that waits for its turn. What they take
  of the device is the device's account, not the ingress's.
- They go to the worker that has the fewest batches, the largest batch that is at hand.
- A stage whose slices the scaler sets has as many batches at once as slices, each in its own (`schedule.in_slices`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ..state import Config, Queue, Worker
from ..state.worker import FULL_SHARE
from ..workflow.graph import StageSpec

__all__ = ["MOST_SLICED", "sliced_config", "sliced_room", "sliced_worker"]

#: Batches of a stage with a quota that a worker has at once: one that runs and one that waits [our choice].
MOST_SLICED: Final = 2


def sliced_room(worker: Worker, stage: StageSpec) -> bool:
    """Whether one more batch of a stage with a quota may go to this worker."""
    return sum(batch.queue.stage.name == stage.name for batch in worker.running.values()) < MOST_SLICED


def sliced_worker(holders: Mapping[int, Worker], stage: StageSpec, home: int = 0) -> Worker | None:
    """The worker with the fewest batches that may have one more; its home and no other, if that has the model."""
    workers: Iterable[Worker] = (holders[home],) if home in holders else holders.values()
    return min((w for w in workers if sliced_room(w, stage)), key=lambda w: (len(w.running), w.id), default=None)


def sliced_config(queue: Queue, worker: Worker) -> Config:
    """The largest batch that is at hand in the slice that the stage declares: a share is as much of the cores."""
    stage = queue.stage
    batch = max((size for size in stage.batch if size <= queue.size), default=stage.batch[0])
    cores = worker.spec.cores
    cpus = max(1, cores * stage.share_pct // FULL_SHARE) if cores and not stage.on_host else 1
    return Config(batch, cpus, stage.share_pct, stage.quota_pct)
