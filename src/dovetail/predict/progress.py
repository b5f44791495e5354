"""How far those are who run on a worker, and when each should end: looked at again whenever somebody comes or leaves.

Rules of this file
- Work that is left of a batch, as time alone, falls at the rate 1/slow-down of the set that it runs in.
- What is expected of a batch (`Batch.expected_ns`) is its time so far and what the work integral says of the rest,
  over those who run and those who wait in line at the worker.
- A model that is on its way to a worker (`Batch.fetches`) is a neighbour of those who run there, until it has come.
- What is said first is kept (`Batch.said_ns`). How far it was off is counted, and shown as coverage.
- The controller calls this; policies only read what it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..state import Batch, Worker
from .interference import Piece, Work, fetch
from .protocol import Predictor

__all__ = ["fetches_of", "left_ns", "look_again", "work_of"]

#: What has not ended although it should have: so much of it is left, and no less.
_LEAST_NS: Final = 1000.0


def left_ns(batch: Batch, now_ns: int) -> float:
    """Work alone that is left of a batch."""
    if batch.waits:
        return batch.left_ns
    return max(_LEAST_NS, batch.left_ns - (now_ns - max(batch.since_ns, batch.begun_ns)) / batch.slow)


def work_of(predictor: Predictor, batch: Batch, now_ns: int) -> Work:
    """A batch as the work integral takes it."""
    kind = batch.worker.spec.kind
    load = predictor.load_of(batch.queue.stage, kind, len(batch.items), batch.config)
    return Work((Piece(load, left_ns(batch, now_ns)),))


def fetches_of(predictor: Predictor, worker: Worker, now_ns: int) -> list[Work]:
    """The models that are on their way to a worker, as the work integral takes them."""
    found: dict[str, Work] = {}
    for batch in worker.running.values() if worker.fetching else ():
        stage = batch.queue.stage
        if batch.fetches and stage.weights not in found:
            takes_ns = predictor.load(stage.weights, stage.weights_bytes, worker.spec.kind).mean_ns
            left = max(_LEAST_NS, batch.sent_ns + takes_ns - now_ns)
            found[stage.weights] = Work((Piece(fetch(stage.weights, takes_ns), left),), steady=True)
    return list(found.values())


def look_again(predictor: Predictor, worker: Worker, now_ns: int) -> None:
    """Somebody has come to a worker, or has left it: say anew when each who is there should end."""
    kind = worker.spec.kind
    there = [b for b in worker.running.values() if not (b.waits or b.fetches or b.sliced)]
    batches: Iterable[Batch] = (*there, *worker.line) if worker.line else there
    works = [work_of(predictor, batch, now_ns) for batch in batches]
    fetches = fetches_of(predictor, worker, now_ns)
    loads = [work.pieces[0].load for work in (*works[: len(there)], *fetches)]
    ends = predictor.ends_ns(kind, [*fetches, *works])[len(fetches) :]
    for at, (batch, work, end_ns) in enumerate(zip(batches, works, ends, strict=True)):
        if batch.waits:
            continue
        batch.left_ns = work.pieces[0].alone_ns
        batch.since_ns = now_ns
        batch.slow = predictor.slowdown(kind, loads[at], loads[:at] + loads[at + 1 :])
        batch.expected_ns = max(1, round(now_ns + end_ns) - batch.begun_ns)
        if not batch.said_ns:
            batch.said_ns = batch.expected_ns
