"""First come, first served, in a fixed configuration: what a plain server does, and the floor for every comparison.

A stage runs in its largest declared batch, or as much of it as waits, on the share it was given; never waits for a
batch to fill (work conserving); and a request that arrived earlier goes first at every stage. Classes are not looked
at unless `by_class` is set: then a higher class goes first, and first come first served holds inside each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import DeclarationError
from ..place.fit import first_fit, reason_of, soonest
from ..state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request, Worker, WorkerRow
from ..state.worker import FULL_SHARE
from ..units import MS
from ..workflow.graph import Graph, Node
from .in_slices import plain_slice_offers
from .protocol import Hint, Hold, Offer, Refusal

__all__ = ["FirstCome"]

#: Order keys of classes must not overlap: more requests than a run can have.
_CLASS_STEP = 1 << 48


class FirstCome:
    """One fixed configuration per stage, work taken in order of arrival, on the first worker that has room."""

    restless = False

    def __init__(
        self,
        *,
        cores: int = 1,
        share_pct: int = FULL_SHARE,
        batch: Mapping[str, int] | None = None,
        max_open: int = 10_000,
        by_class: bool = False,
        bind_ns: int = 0,
    ) -> None:
        if not 0 < share_pct <= FULL_SHARE:
            raise DeclarationError(f"share_pct={share_pct} must be from 1 to {FULL_SHARE}")
        self.bind_ns = bind_ns
        self._share_pct = share_pct
        self._cores = cores
        self._batch = batch or {}
        self._max_open = max_open
        self._by_class = by_class
        #: Stage -> its configuration, and who holds its model.
        self._fixed: dict[str, tuple[Config, Mapping[int, Worker]]] = {}
        #: Whether batches are ever sent before there is room.
        self._early = bind_ns > 0

    def queue_key(self, graph: Graph, node: Node) -> str:
        """One queue per stage: requests of all workflows batch together."""
        return node.stage

    def bind(self, cluster: Cluster) -> None:
        """The number of open requests is looked at, who holds what, and slices."""
        self._cluster = cluster
        self._requests = cluster.requests
        self._holders = cluster.holders

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """Everything, until more is open than memory was set aside for."""
        open_requests = len(self._requests)
        if open_requests < self._max_open:
            return None
        return Refusal(f"{open_requests} requests are open already", retry_after_ns=1000 * MS, firm=True)

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """Nothing is fetched ahead."""
        return ()

    def hopeless(self, now_ns: int) -> Sequence[tuple[Request, Refusal]]:
        """Nobody is given up."""
        return ()

    def order(self, request: Request, node: int) -> int:
        """Order of arrival; with `by_class`, higher classes first."""
        return request.priority * _CLASS_STEP + request.id if self._by_class else request.id

    def full(self, on_host: bool) -> bool:
        """Not known without a look at each worker."""
        return False

    def sleeps(self, queue: Queue) -> bool:
        """Every queue is asked."""
        return False

    def closed_to(self, queue: Queue) -> bool:
        """None sleeps."""
        return False

    def woken(self) -> Sequence[str]:
        """None was asleep."""
        return ()

    def offers(self, queue: Queue, now_ns: int) -> Sequence[Offer] | Hold:
        """The stage's fixed configuration on the first worker that has room, or will have it first; or its slices."""
        stage = queue.stage
        if stage.name in self._cluster.sliced:
            return plain_slice_offers(self._cluster, queue, now_ns)
        fixed = self._fixed.get(stage.name)
        if fixed is None:
            largest = self._batch.get(stage.name, stage.batch[-1])
            # Ordinary Python holds an interpreter, so it takes the whole of its host process.
            share = FULL_SHARE if stage.on_host else stage.share_pct or self._share_pct
            cpus = max(1, self._cores * share // FULL_SHARE)
            config = Config(largest, 1 if stage.on_host else cpus, share)
            fixed = self._fixed[stage.name] = config, self._holders[stage.name]
        config, held_by = fixed
        holders = held_by.values()
        worker = first_fit(holders, config)
        if worker is not None:
            return (Offer(worker, config, now_ns),)
        if not self._early or stage.on_host:
            return ()
        head = queue.head()
        assert head is not None, "the controller asks for queues with work"
        found = soonest(holders, config, head.request.priority, now_ns, self.bind_ns)
        if found is None:
            return ()
        worker, start_ns = found
        return (Offer(worker, config, start_ns, reason_of(worker, config, start_ns, now_ns)),)

    def note(self, item: Item, now_ns: int) -> None:
        """Nothing is learned."""

    def started(self, batch: Batch, now_ns: int) -> None:
        """Nothing is learned."""

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """Nothing is learned."""

    def closed(self, request: Request) -> None:
        """Nothing is kept."""

    def idle(self, now_ns: int) -> None:
        """Nothing is worked out ahead."""

    def joined(self, worker: Worker) -> None:
        """One that stops between kernels is sent batches of a higher class at any time."""
        self._early = self._early or worker.spec.preempts

    def lost(self, worker: Worker) -> None:
        """The cluster knows."""

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:
        """The cluster knows."""

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """What a worker has from others is its own business: it keeps the queue."""
