"""Batches at the workers: how each is made of the values of its requests, and what its answer leaves behind.

The controller names items by number. Here they become blocks of shared memory, which a batch reads from when it is
sent until its answer has been taken, or its worker is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...control import RunBatch
from ...state import Request
from ..links.wire import Done, Failed, Run
from ..tensors.codec import Ref
from ..tensors.values import LiveRequest
from .memory import Memory

__all__ = ["Batches", "Running"]


class Running:
    """A batch that a worker was sent."""

    __slots__ = ("action", "counts", "readers", "since_ns")

    def __init__(self, action: RunBatch, since_ns: int) -> None:
        self.action = action
        self.since_ns = max(since_ns, action.earliest_ns)
        #: The request of each item.
        self.readers: list[LiveRequest] = []
        #: How many counts the worker has to report.
        self.counts = 0

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

    def begin(self, action: RunBatch, requests: Mapping[int, LiveRequest], preempts: bool, now_ns: int) -> Run:
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
        states = [request.state for request in running.readers] if preempts else []
        return Run(
            action.batch,
            action.cause,
            action.stage,
            action.cpus,
            action.share_pct,
            action.earliest_ns,
            action.latest_ns,
            columns,
            counted,
            self._memory.to_free(action.worker),
            action.order,
            action.expected_ns,
            action.accept_ns,
            *_urgency(action, states),
        )

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


def _urgency(action: RunBatch, states: Sequence[Request | None]) -> tuple[int, int, bool]:
    """A batch's class, when the most urgent request of that should be answered, and whether a model of it follows.

    One follows if it waits only for this batch. What comes after a Python stage is too far away to be waited for.
    """
    ours = [(state, node) for state, (_, node, _) in zip(states, action.items, strict=False) if state is not None]
    if not ours:
        return 1, 0, False
    priority = min(state.priority for state, _ in ours)
    ours = [(state, node) for state, node in ours if state.priority == priority]
    objective_ns = min((state.objective_ns for state, _ in ours if state.objective_ns), default=0)

    def follows(state: Request, node: int) -> bool:
        nodes, compiled = state.graph.nodes, state.graph.nodes[node]
        ready = [j for j in compiled.whole_next if state.missing[j] <= 1 and not compiled.node.mapped]
        return any(not nodes[j].stage.on_host for j in (*ready, *compiled.each_next))

    return priority, objective_ns, any(follows(state, node) for state, node in ours)
