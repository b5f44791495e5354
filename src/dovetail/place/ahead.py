"""Copies of models ahead of need: memory that lies idle is of no use to anybody.

A model whose holders are all busy makes the next request wait, either for a holder or for a fetch. If some worker is
idle and has room, it is told to fetch the model now, while nobody waits for it. Rules of this file: a copy never takes
memory from anything (the worker fetches only into free bytes, and evicts nothing for a hint), and copies of one model
follow each other at a distance, so that many requests that arrive together do not fill the cluster with one model.
"""

from __future__ import annotations

from .index import WorkerIndex

__all__ = ["Ahead"]


class Ahead:
    """Decides on copies. One per controller."""

    def __init__(self, spares: int, every_ns: int) -> None:
        #: Holders of a model that should be free when a request has taken what it needs.
        self.spares = spares
        self.every_ns = every_ns
        #: Model -> when a copy was last asked for.
        self._last_ns: dict[str, int] = {}

    def copy_to(
        self, index: WorkerIndex, weights: str, size: int, taken: int, now_ns: int, spread: int
    ) -> int | None:
        """The worker that should fetch one more copy, if there is need, room and nobody asked lately.

        `taken` of the free holders will be used by the request at hand.
        """
        last_ns = self._last_ns.get(weights)
        if last_ns is not None and now_ns - last_ns < self.every_ns:
            return None
        if index.idle_holders(weights, now_ns) - taken >= self.spares:
            return None
        worker = index.idle_with_room(size, now_ns, spread, weights)
        if worker is not None:
            self._last_ns[weights] = now_ns
        return worker
