"""Offers for a stage with slices, declared or set by the scaler: each batch in one of them, and nowhere else.

A slice is there for its stage whether it is used or not, so offers in slices are compared by time alone: until the
batch would end, per item. The least wins, of equals the worker with the fewest batches, and then the slice that has
been idle for longest, whose quota is the most rested.

Rules of this file
- A slice that the scaler sets has one batch at a time, a declared one two (`state.slice`): all that waits, up to the
  largest batch that is in time in it, or as the planner says.
- Where its quota is a limit, a batch starts when the quota allows it. Until then it waits at the ingress, so that
  whoever comes meanwhile goes with it.
- Where it is not, a slice is what its stage has at the least. If nothing else runs on its worker, the batch has what
  the planner would give it without slices. Beside others it has its share. A share that was declared stays.
- Only workers that have the model count.
- Whose tokens last when is not known here. So the time of a batch is that in the company its stage has of late, and
  what the slice has been sent before it goes first.
- A scheduler that plans nothing and predicts nothing (`plain_slice_offers`) sends all that waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ..predict import Predictor
from ..state import Cluster, Config, Queue, Slice, Worker
from ..state.slice import slice_cpus
from ..state.worker import FULL_SHARE
from .protocol import Offer
from .ranked import Ranked

__all__ = ["IN_SLICE", "QUOTA", "WHOLE", "plain_slice_offers", "slice_offers"]

#: Why a batch is where it is, for the log.
IN_SLICE: Final = "in its slice"
WHOLE: Final = "nothing else runs there, so that it has more than its slice"
#: Why it is not yet.
QUOTA: Final = "the quota of its slice is used up until then"


def slice_offers(
    cluster: Cluster, queue: Queue, predictor: Predictor, planned: Sequence[Ranked], now_ns: int
) -> Sequence[Offer]:
    """One offer for each slice that has room, the best first; `planned` is what would be chosen without slices."""
    stage = queue.stage
    found: list[tuple[bool, float, int, int, int, Offer]] = []
    for piece in cluster.slices_with_room(stage.name):
        worker = cluster.workers[piece.worker]
        config, reason = _config(queue, piece, worker, planned)
        start_ns = max(now_ns, piece.ready_ns())
        items = min(config.batch, queue.size)
        run_ns = predictor.usual(stage, worker.spec.kind, items, config).mean_ns
        before_ns = sum([cluster.batches[ident].expected_ns for ident in piece.running])
        score = (start_ns - now_ns + before_ns + run_ns) / items
        if start_ns > now_ns:
            reason = QUOTA
        crowd = 0 if piece.limits else len(worker.running)
        offer = Offer(worker, config, start_ns, reason, run_ns=run_ns, score=score, slice=piece)
        found.append((start_ns > now_ns, score, crowd, piece.idle_ns, piece.id, offer))
    found.sort(key=lambda entry: entry[:5])
    return [entry[5] for entry in found]


def plain_slice_offers(cluster: Cluster, queue: Queue, now_ns: int) -> Sequence[Offer]:
    """All that waits on the worker with the fewest batches: for schedulers that plan nothing."""
    workers = cluster.workers
    pieces = cluster.slices_with_room(queue.stage.name)
    best = min(pieces, key=lambda p: (len(workers[p.worker].running), p.worker, p.id), default=None)
    if best is None:
        return ()
    worker = workers[best.worker]
    config, reason = _config(queue, best, worker, ())
    start_ns = max(now_ns, best.ready_ns())
    return (Offer(worker, config, start_ns, reason if start_ns == now_ns else QUOTA, slice=best),)


def _config(queue: Queue, piece: Slice, worker: Worker, planned: Sequence[Ranked]) -> tuple[Config, str]:
    """What a batch has in a slice, and why."""
    if not piece.limits:
        for ranked in planned:
            if piece.declared:
                return _sized(queue, piece, worker, ranked.config.batch), IN_SLICE
            whole = not worker.running
            if whole or ranked.config.share_pct <= piece.share_pct:
                more = ranked.config.share_pct > piece.share_pct
                sized = msgspec.structs.replace(ranked.config, quota_pct=piece.quota_pct)
                return sized, WHOLE if more else IN_SLICE
    most = min(queue.size, piece.batch)
    batch = max((size for size in queue.stage.batch if size <= most), default=queue.stage.batch[0])
    return _sized(queue, piece, worker, batch), IN_SLICE


def _sized(queue: Queue, piece: Slice, worker: Worker, batch: int) -> Config:
    """A batch in all of a slice; what a stage declares is rounded down, as the planner does it (`plan.space`)."""
    cores, share_pct = worker.spec.cores, piece.share_pct
    if not piece.declared:
        cpus = slice_cpus(cores, share_pct)
    elif queue.stage.on_host or not cores:
        cpus = 1
    else:
        cpus = max(1, cores * share_pct // FULL_SHARE)
    return Config(batch, cpus, share_pct, piece.quota_pct)
