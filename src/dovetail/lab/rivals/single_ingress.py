"""The state table of an ingress that shares its workers with nobody: its own books.

Routers of several ingresses know workers by what the state table says. Where there is one ingress there is no table,
and none is needed: all that a worker has was sent from here, and it tells only this controller what it holds.
`SingleIngress` writes the rows from that, so the same router serves one ingress and many.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...place import Hint, Route
from ...state import Batch, Item, Request, Worker, WorkerRow
from .routed import Router

__all__ = ["SingleIngress"]


class SingleIngress:
    """A router that is told at once what its controller does and hears."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self._workers: dict[int, Worker] = {}
        #: Expected run times of what each worker has and has not finished; and of what others have sent there.
        self._wait_ns: dict[int, int] = {}
        self._others_ns: dict[int, int] = {}

    def joined(self, worker: Worker) -> None:
        """Idle so far, and empty."""
        self._workers[worker.id] = worker
        self._wait_ns[worker.id] = self._others_ns[worker.id] = 0
        self.router.joined(worker)

    def lost(self, worker: Worker) -> None:
        """Nothing more is known of it."""
        del self._workers[worker.id], self._wait_ns[worker.id], self._others_ns[worker.id]
        self.router.lost(worker)

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """Others have come: what a worker says of itself beyond what was sent from here is theirs."""
        for row in rows:
            if row.worker in self._wait_ns:
                self._others_ns[row.worker] = max(0, row.wait_ns - self._wait_ns[row.worker])
        self.router.heard(rows, now_ns)

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:
        """A model has come or gone."""
        self.router.holds(worker, weights, here, now_ns)
        self._write(worker.id, now_ns)

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """As the router plans."""
        return self.router.hints(request, now_ns)

    def route(self, item: Item, now_ns: int) -> Route | None:
        """As the router says."""
        return self.router.route(item, now_ns)

    def started(self, batch: Batch, now_ns: int) -> None:
        """The worker has one more."""
        self._wait_ns[batch.worker.id] += batch.expected_ns
        self.router.started(batch, now_ns)
        self._write(batch.worker.id, now_ns)

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """The worker has one less."""
        if batch.worker.id in self._wait_ns:
            self._wait_ns[batch.worker.id] -= batch.expected_ns
        self.router.ended(batch, now_ns, done)
        self._write(batch.worker.id, now_ns)

    def closed(self, request: Request) -> None:
        """The router forgets it."""
        self.router.closed(request)

    def _write(self, ident: int, now_ns: int) -> None:
        worker = self._workers.get(ident)
        if worker is None:
            return
        resident = tuple(worker.resident)
        budget = worker.spec.memory_bytes
        free_bytes = max(0, budget - sum(worker.resident.values())) if budget else 1 << 62
        wait_ns = self._wait_ns[ident] + self._others_ns[ident]
        self.router.heard([WorkerRow(ident, now_ns, wait_ns, now_ns + wait_ns, resident, free_bytes)], now_ns)
