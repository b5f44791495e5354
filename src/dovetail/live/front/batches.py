"""Batches at the workers: how each is made of the values of its requests, and what its answer leaves behind.

The controller names items by number. Here they become blocks of shared memory, which a batch reads from when it is
sent until its answer has been taken, or its worker is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...control import RunBatch
from ..links.wire import Done, Failed, Run
from ..tensors.ref import Ref
from ..tensors.values import LiveRequest
from .checks import Asked, ResultChecks
from .memory import Memory

__all__ = ["Batches", "Running"]


class Running:
    """A batch that a worker was sent."""

    __slots__ = ("action", "counts", "items", "since_ns")

    def __init__(self, action: RunBatch, since_ns: int) -> None:
        self.action = action
        self.since_ns = since_ns if since_ns > action.earliest_ns else action.earliest_ns
        #: The request of each item, its graph, and its node.
        self.items: list[Asked] = []
        #: How many counts the worker has to report.
        self.counts = 0

    def fits(self, message: Done | Failed) -> bool:
        """Whether this can be its answer."""
        if type(message) is not Done:
            return True
        return len(message.results) == len(self.items) and len(message.counts) == self.counts

    def drop(self) -> None:
        """It reads no more."""
        for request, _, _ in self.items:
            request.drop()


class Batches:
    """What runs, by the number of the batch."""

    def __init__(self, memory: Memory, max_fan_out: int) -> None:
        self.running: dict[int, Running] = {}
        self._memory = memory
        self._checks = ResultChecks(memory.arenas, max_fan_out)

    def begin(self, action: RunBatch, requests: Mapping[int, LiveRequest], now_ns: int) -> Run:
        """The message that starts a batch; from here on it reads the blocks of its requests."""
        running = self.running[action.batch] = Running(action, now_ns)
        columns: list[list[Any]] = []
        counted: list[tuple[int, ...]] = []
        for ident, node_index, index in action.items:
            request = requests[ident]
            request.hold()
            assert request.state is not None
            graph = request.state.graph
            running.items.append(Asked(request, graph, node_index))
            compiled = graph.nodes[node_index]
            node = compiled.node
            if not columns:
                columns = [[] for _ in node.args]
            for column, source in zip(columns, node.args, strict=True):
                column.append(request.argument(node, source, index))
            counted.append(compiled.counted)
            if compiled.counted:
                running.counts += len(compiled.counted)
        return Run(action, columns, counted, self._memory.to_free(action.worker))

    def end(self, worker: int, message: Done | Failed) -> tuple[Running, Done | Failed] | None:
        """The batch that a worker has answered, and the answer; None if it was asked nothing of the kind.

        Results are the requests' from now on, unless they must not be used: then the batch has failed. Whoever has
        told of the end calls `drop`.
        """
        running = self.running.get(message.batch)
        if running is None or running.action.worker != worker or not running.fits(message):
            return None
        del self.running[message.batch]
        if type(message) is Done:
            if why := self._checks.why_not(running.items, message):
                for ref in message.results:
                    self._memory.keep(ref)
                    self._memory.free(ref)
                times = (message.begin_ns, message.end_ns)
                return running, Failed(message.batch, message.cause, *times, "error", why)
            self._keep(running, message.results)
        return running, message

    def _keep(self, running: Running, results: Sequence[Ref]) -> None:
        for (_, node, index), item, ref in zip(running.action.items, running.items, results, strict=True):
            self._memory.keep(ref)
            item.request.values[node, index] = ref

    def busy(self, worker: int) -> bool:
        """Whether a worker owes an answer."""
        return any(running.action.worker == worker for running in self.running.values())

    def works_at(self, worker: int) -> str:
        """The stage of the batch that a worker was sent first of those that it owes; empty if it owes none."""
        return next((r.action.stage for r in self.running.values() if r.action.worker == worker), "")

    def lose(self, worker: int) -> None:
        """Batches that ran there may be run again elsewhere, but this reader of their inputs is gone."""
        for batch in [b for b, running in self.running.items() if running.action.worker == worker]:
            self.running.pop(batch).drop()
