"""Fixed replicas: which worker holds which model, decided once. For servers that do not swap models by themselves.

Triton loads the models of its repository, Ray Serve starts a fixed number of replicas; where models do not all fit,
an operator says what goes where. `place_replicas` is such an operator, who knows the sizes, the work of each model
and how often it is called:
- Every model gets one replica, the largest first. Then the model whose replicas are busiest gets another one, as long
  as one fits. A replica goes to the worker with the least work that has room and not that model yet.
- A model that fits nowhere beside the others is left to all workers, which then swap.

Rules of this file: plain numbers in, plain numbers out; ties go to the first model and to the first worker.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...state import Cluster, Worker
from ...workflow.graph import Graph, StageSpec
from .common import Market

__all__ = ["Replicas", "place_replicas"]

#: Memory of a worker that does not count it.
_UNCOUNTED = 1 << 62


def place_replicas(
    sizes: Mapping[str, int], work: Mapping[str, float], room: Mapping[int, int]
) -> dict[str, tuple[int, ...]]:
    """Model -> workers that hold it. `sizes`: its bytes; `work`: what all its calls need; `room`: worker -> bytes."""
    free = dict(room)
    placed: dict[str, list[int]] = {model: [] for model in sizes}

    def least_loaded(model: str) -> int | None:
        load = dict.fromkeys(free, 0.0)
        for other, workers in placed.items():
            for worker in workers:
                load[worker] += work[other] / len(workers)
        able = [w for w in free if free[w] >= sizes[model] and w not in placed[model]]
        return min(able, key=lambda w: (load[w], -free[w]), default=None)

    def add(model: str) -> bool:
        worker = least_loaded(model)
        if worker is None:
            return False
        placed[model].append(worker)
        free[worker] -= sizes[model]
        return True

    for model in sorted(sizes, key=lambda m: -sizes[m]):
        add(model)
    growing = [model for model in sizes if placed[model]]
    while growing:
        busiest = max(growing, key=lambda m: work[m] / len(placed[m]))
        if not add(busiest):
            growing.remove(busiest)
    return {model: tuple(workers) or tuple(room) for model, workers in placed.items()}


class Replicas:
    """The replicas of all models on the workers that are there; placed again only when workers come or go."""

    def __init__(self, market: Market, share_pct: int, demand: Mapping[str, float] | None = None) -> None:
        """`demand`: workflow -> how often it is called, in any unit; without it all are called equally often."""
        self._market = market
        self._share_pct = share_pct
        self._demand = demand or {}
        self._placed: dict[str, tuple[int, ...]] = {}
        self._for: tuple[int, ...] = ()
        #: Stage -> workers, of the last placement.
        self._workers: dict[str, tuple[Worker, ...]] = {}

    def of(self, stage: StageSpec, cluster: Cluster, graphs: Mapping[str, Graph]) -> tuple[Worker, ...]:
        """The workers that hold a stage's model."""
        here = tuple(cluster.workers)
        if here != self._for:
            self._for = here
            self._workers.clear()
            self._place(cluster, graphs)
        found = self._workers.get(stage.name)
        if found is None:
            able = cluster.holders[stage.name]
            chosen = [able[w] for w in self._placed.get(stage.weights, ()) if w in able]
            found = tuple(chosen) or tuple(able.values())
            if chosen or not stage.weights_bytes:
                self._workers[stage.name] = found
        return found

    def _place(self, cluster: Cluster, graphs: Mapping[str, Graph]) -> None:
        sizes: dict[str, int] = {}
        work: dict[str, float] = {}
        for graph in graphs.values():
            for index in range(len(graph.nodes)):
                stage = graph.stage_of(index)
                if not stage.weights_bytes:
                    continue
                sizes[stage.weights] = stage.weights_bytes
                calls = self._demand.get(graph.name, 1.0)
                work[stage.weights] = work.get(stage.weights, 0.0) + calls * self._item_ns(stage)
        devices = [w for w in cluster.workers.values() if not w.spec.on_host]
        self._placed = place_replicas(sizes, work, {w.id: w.spec.memory_bytes or _UNCOUNTED for w in devices})

    def _item_ns(self, stage: StageSpec) -> float:
        """Time of an item in a full batch, on the share that instances have."""
        full = [c for c in self._market.configs(stage) if c.batch == stage.batch[-1]]
        config = min(full, key=lambda c: abs(c.share_pct - self._share_pct))
        return self._market.time_ns(stage, config) / config.batch
