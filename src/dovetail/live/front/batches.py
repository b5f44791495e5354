"""Batches at the workers: how each is made of the values of its requests, and what its answer leaves behind.

The controller names items by number. Here they become blocks of shared memory, which a batch reads from when it is
sent until its answer has been taken, or its worker is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...control import RunBatch
from ..links.wire import Done, Failed, Run
from ..tensors.codec import Ref
from ..tensors.values import LiveRequest
from .memory import Memory

__all__ = ["Batches", "Running"]


@dataclass(slots=True, eq=False)
class Running:
    """A batch that a worker was sent."""

    action: RunBatch
    since_ns: int
    #: The request of each item.
    readers: list[LiveRequest] = field(default_factory=list)
    #: How many counts the worker has to report.
    counts: int = 0

    def __post_init__(self) -> None:
        self.since_ns = max(self.since_ns, self.action.earliest_ns)

    def fits(self, message: Done | Failed) -> bool:
        """Whether this can be its answer."""
        if isinstance(message, Failed):
            return True
        return len(message.results) == len(self.readers) and len(message.counts) == self.counts

    def drop(self) -> None:
        """It reads no more."""
        for request in self.readers:
            request.drop()


class Batches:
    """What runs, by the number of the batch."""

    def __init__(self, memory: Memory) -> None:
        self.running: dict[int, Running] = {}
        self._memory = memory

    def begin(self, action: RunBatch, requests: Mapping[int, LiveRequest], now_ns: int) -> Run:
        """The message that starts a batch; from here on it reads the blocks of its requests."""
        running = self.running[action.batch] = Running(action, now_ns)
        columns: list[list[Any]] = []
        counted: list[tuple[int, ...]] = []
        for ident, node_index, index in action.items:
            request = requests[ident]
            request.hold()
            running.readers.append(request)
            assert request.state is not None
            compiled = request.state.graph.nodes[node_index]
            node = compiled.node
            if not columns:
                columns = [[] for _ in node.args]
            for column, source in zip(columns, node.args, strict=True):
                column.append(request.argument(node, source, index))
            counted.append(compiled.counted)
            running.counts += len(compiled.counted)
        return Run(action, columns, counted, self._memory.to_free(action.worker))

    def end(self, worker: int, message: Done | Failed) -> Running | None:
        """The batch that a worker has answered; None if this cannot be the answer to anything it was asked.

        Results are the requests' from now on. Whoever has told of the end calls `drop`.
        """
        running = self.running.get(message.batch)
        if running is None or running.action.worker != worker or not running.fits(message):
            return None
        del self.running[message.batch]
        if isinstance(message, Done):
            self._keep(running, message.results)
        return running

    def _keep(self, running: Running, results: Sequence[Ref]) -> None:
        for (_, node, index), request, ref in zip(running.action.items, running.readers, results, strict=True):
            self._memory.keep(ref)
            request.values[node, index] = ref

    def lose(self, worker: int) -> None:
        """Batches that ran there may be run again elsewhere, but this reader of their inputs is gone."""
        for batch in [b for b, running in self.running.items() if running.action.worker == worker]:
            self.running.pop(batch).drop()
