"""Offers for a stage whose slices the scaler sets: each batch in one of them, and nowhere else.

A slice is there for its stage whether it is used or not, so offers in slices are compared by time alone: until the
batch would end, per item. The least wins, and of equals the slice that has been idle for longest, whose quota is the
most rested.

Rules of this file
- A slice runs one batch at a time: all that waits, up to the largest batch that is in time in it.
- Where its quota is a limit, a batch starts when the quota allows it. Until then it waits at the ingress, so that
  whoever comes meanwhile goes with it.
- Where it is not, a slice is what its stage has at the least. If nothing else runs on its worker, the batch has what
  the planner would give it without slices. Beside others it has its share.
- Only workers that have the model count.
- Whose tokens last when is not known here. So the time of a batch is that in the company its stage has of late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ..predict import Predictor
from ..state import Cluster, Config, Queue, Slice, Worker
from ..state.slice import slice_cpus
from .protocol import Offer
from .ranked import Ranked

__all__ = ["IN_SLICE", "QUOTA", "WHOLE", "slice_offers"]

#: Why a batch is where it is, for the log.
IN_SLICE: Final = "in its slice"
WHOLE: Final = "nothing else runs there, so that it has more than its slice"
#: Why it is not yet.
QUOTA: Final = "the quota of its slice is used up until then"


def slice_offers(
    cluster: Cluster, queue: Queue, predictor: Predictor, planned: Sequence[Ranked], now_ns: int
) -> Sequence[Offer]:
    """One offer for each slice that is idle, the best first; `planned` is what would be chosen without slices."""
    stage = queue.stage
    found: list[tuple[bool, float, int, int, Offer]] = []
    for piece in _idle(cluster.slices[stage.name].values(), cluster.holders[stage.name]):
        worker = cluster.workers[piece.worker]
        config, reason = _config(queue, piece, worker, planned)
        start_ns = max(now_ns, piece.ready_ns())
        items = min(config.batch, queue.size)
        run_ns = predictor.usual(stage, worker.spec.kind, items, config).mean_ns
        score = (start_ns - now_ns + run_ns) / items
        if start_ns > now_ns:
            reason = QUOTA
        offer = Offer(worker, config, start_ns, reason, run_ns=run_ns, score=score, slice=piece)
        found.append((start_ns > now_ns, score, piece.idle_ns, piece.id, offer))
    found.sort(key=lambda entry: entry[:4])
    return [entry[4] for entry in found]


def _idle(pieces: Iterable[Slice], holders: dict[int, Worker]) -> list[Slice]:
    return [piece for piece in pieces if piece.worker in holders and piece.idle()]


def _config(queue: Queue, piece: Slice, worker: Worker, planned: Sequence[Ranked]) -> tuple[Config, str]:
    """What a batch has in a slice, and why."""
    if not piece.limits:
        for ranked in planned:
            whole = not worker.running
            if whole or ranked.config.share_pct <= piece.share_pct:
                more = ranked.config.share_pct > piece.share_pct
                sized = msgspec.structs.replace(ranked.config, quota_pct=piece.quota_pct)
                return sized, WHOLE if more else IN_SLICE
    most = min(queue.size, piece.batch)
    batch = max((size for size in queue.stage.batch if size <= most), default=queue.stage.batch[0])
    return Config(batch, slice_cpus(worker.spec.cores, piece.share_pct), piece.share_pct, piece.quota_pct), IN_SLICE
