"""Copies of models ahead of need: memory that lies idle is of no use to anybody.

A model whose holders are all busy makes the next request wait, either for a holder or for a fetch. If some worker is
idle and has room, it is told to fetch the model now, while nobody waits for it. Rules of this file: only workers with
free bytes for a copy are asked for one, and copies of one model follow each other at a distance, so that requests
that arrive together do not fill the cluster with one model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .fleet import KnownWorkers
from .outline import NodeOutline
from .route import Hint

__all__ = ["Replicas"]


class Replicas:
    """Decides on copies. One per controller."""

    def __init__(self, fleet: KnownWorkers, spares: int, every_ns: int) -> None:
        self._fleet = fleet
        self._spares = spares
        self._every_ns = every_ns
        #: Model -> when a copy was last asked for.
        self._last_ns: dict[str, int] = {}

    def copies(self, tasks: Sequence[NodeOutline], taken: Mapping[str, int], now_ns: int, spread: int) -> list[Hint]:
        """Who should fetch what, so that the models of these tasks have spare holders.

        `taken` says how many of a model's free holders the request at hand will use.
        """
        hints: list[Hint] = []
        asked = set()
        for task in tasks:
            weights = task.weights
            if not weights or weights in asked:
                continue
            asked.add(weights)
            last_ns = self._last_ns.get(weights)
            if last_ns is not None and now_ns - last_ns < self._every_ns:
                continue
            worker = self._fleet.room_for_copy(task, taken.get(weights, 0), self._spares, now_ns, spread)
            if worker is not None:
                self._last_ns[weights] = now_ns
                self._fleet.ask(worker, task, now_ns)
                hints.append(Hint(worker, task.stage.name))
        return hints
