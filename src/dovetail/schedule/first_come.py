"""First come, first served, in a fixed configuration: what a plain server does, and the floor for every comparison.

A stage runs in its largest declared batch, or as much of it as waits, on the share it was given; never waits for a
batch to fill (work conserving); and a request that arrived earlier goes first at every stage. Classes are not looked
at unless `by_class` is set: then a higher class goes first, and first come first served holds inside each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import DeclarationError
from ..plan import Hold, Refusal
from ..scale import Adjustment
from ..state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request, Worker
from ..state.worker import FULL_SHARE
from ..units import MS
from ..workflow.graph import Graph, Node, StageSpec

__all__ = ["FirstComePlanner", "FirstFitPlacer", "LoadEverything"]

#: Order keys of classes must not overlap: more requests than a run can have.
_CLASS_STEP = 1 << 48


class FirstComePlanner:
    """One fixed configuration per stage, work taken in order of arrival."""

    restless = False

    def __init__(
        self,
        *,
        cores: int = 1,
        share_pct: int = FULL_SHARE,
        batch: Mapping[str, int] | None = None,
        max_open: int = 10_000,
        by_class: bool = False,
    ) -> None:
        if not 0 < share_pct <= FULL_SHARE:
            raise DeclarationError(f"share_pct={share_pct} must be from 1 to {FULL_SHARE}")
        self._share_pct = share_pct
        self._cpus = max(1, cores * share_pct // FULL_SHARE)
        self._batch = batch or {}
        self._max_open = max_open
        self._by_class = by_class
        self._fixed: dict[str, tuple[Config, ...]] = {}

    def queue_key(self, graph: Graph, node: Node) -> str:
        """One queue per stage: requests of all workflows batch together."""
        return node.stage

    def bind(self, cluster: Cluster) -> None:
        """Only the number of open requests is looked at."""
        self._requests = cluster.requests

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """Everything, until more is open than memory was set aside for."""
        open_requests = len(self._requests)
        if open_requests < self._max_open:
            return None
        return Refusal(f"{open_requests} requests are open already", retry_after_ns=1000 * MS)

    def order(self, request: Request, node: int) -> int:
        """Order of arrival; with `by_class`, higher classes first."""
        return request.priority * _CLASS_STEP + request.id if self._by_class else request.id

    def choose(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """The stage's fixed configuration, now."""
        fixed = self._fixed.get(queue.stage.name)
        if fixed is None:
            stage = queue.stage
            largest = self._batch.get(stage.name, stage.batch[-1])
            # Ordinary Python holds an interpreter, so it takes the whole of its host process.
            share = FULL_SHARE if stage.on_host else self._share_pct
            fixed = self._fixed[stage.name] = (Config(largest, 1 if stage.on_host else self._cpus, share),)
        return fixed

    def note(self, item: Item, now_ns: int) -> None:
        """Nothing is learned."""

    def started(self, batch: Batch) -> None:
        """Nothing is learned."""

    def finished(self, batch: Batch) -> None:
        """Nothing is learned."""

    def closed(self, request: Request) -> None:
        """Nothing is kept."""


class FirstFitPlacer:
    """The first worker that has room, in order of joining."""

    def choose(self, queue: Queue, config: Config, holders: Mapping[int, Worker], now_ns: int) -> Worker | None:
        """Least loaded would be kinder; first fit is what first come means."""
        share = config.share_pct
        for worker in holders.values():
            if worker.free_pct >= share and worker.free_cpus >= config.cpus:
                return worker
        return None


class LoadEverything:
    """Every worker holds every model it can run, from the start; a model larger than its memory is left to others."""

    adjusts = False

    def adjust(self, cluster: Cluster, starved: Sequence[Queue], now_ns: int) -> Adjustment:
        """Nothing changes."""
        return Adjustment()

    def residents(self, worker: Worker, stages: Sequence[StageSpec]) -> Sequence[StageSpec]:
        """All stages of the worker's kinds. If they do not fit all at once (0: no limit), the worker swaps them."""
        room = worker.spec.memory_bytes
        return [s for s in stages if s.kind in worker.spec.runs and (not room or s.weights_bytes <= room)]
