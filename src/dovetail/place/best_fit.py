"""Best fit: the worker that has room, holds the model, and has the least share left over.

Rules of this file
- Packing tightly keeps whole devices free for large configurations; spreading out would strand them.
- Where models do not all fit (`Worker.swaps`), a worker that holds the model goes before one that would have to fetch
  it. If all who hold it are busy, the batch waits for the first of them, or goes to be fetched, whichever is sooner.
- What was sent to a worker that did not hold the model counts as held there: it is being fetched.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..predict import Predictor
from ..state import Config, Queue, Worker

__all__ = ["BestFitPlacer"]


class BestFitPlacer:
    """The tightest worker that has room, in order of joining among equals."""

    def __init__(self, predictor: Predictor | None = None) -> None:
        """Without a predictor nobody looks at what workers hold."""
        self._predictor = predictor

    def choose(self, queue: Queue, config: Config, holders: Mapping[int, Worker], now_ns: int) -> Worker | None:
        """The tightest fit, or None."""
        fits = [w for w in holders.values() if w.free_pct >= config.share_pct and w.free_cpus >= config.cpus]
        stage = queue.stage
        if self._predictor is not None and stage.weights_bytes and any(w.swaps for w in fits):
            here = [w for w in fits if _has(w, stage.weights)]
            if here:
                fits = here
            elif fits:
                load_ns = self._predictor.load(stage.weights, stage.weights_bytes, fits[0].spec.kind).mean_ns
                busy = (w for w in holders.values() if _has(w, stage.weights))
                if min((_free_ns(w, now_ns) for w in busy), default=load_ns) < load_ns:
                    return None
        return min(fits, key=lambda w: w.free_pct, default=None)


def _has(worker: Worker, weights: str) -> bool:
    """Whether a worker holds a model, or something runs there that has it fetched."""
    if not worker.swaps or weights in worker.resident:
        return True
    return any(batch.queue.stage.weights == weights for batch in worker.running.values())


def _free_ns(worker: Worker, now_ns: int) -> int:
    """How long it is until something that runs on a worker should have ended."""
    ends = (batch.begun_ns + batch.expected_ns for batch in worker.running.values())
    return max(0, min(ends, default=now_ns) - now_ns)
