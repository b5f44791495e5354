"""What the controller asks a planner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

import msgspec

from ..state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request
from ..workflow.graph import Graph, Node

__all__ = ["Dropper", "Hold", "Planner", "Refusal"]


@final
class Hold(msgspec.Struct, frozen=True, gc=False):
    """Start nothing from this queue before `until_ns` unless it changes; the reason is declared and logged."""

    until_ns: int
    reason: str


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A request that is better refused now, and when it could be tried again (0: never)."""

    reason: str
    retry_after_ns: int = 0


class Planner(Protocol):
    """Answers how."""

    #: Whether what `choose` says of a queue changes by itself: with time, or with what starts elsewhere. Then queues
    #: that found no room are asked in every step, not only when they or the room have changed.
    restless: bool

    def queue_key(self, graph: Graph, node: Node) -> str:
        """Nodes of one stage with the same key share a queue, and so batches."""
        ...

    def bind(self, cluster: Cluster) -> None:
        """Called once, before anything else: what the planner may look at from then on."""
        ...

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """None admits the request."""
        ...

    def order(self, request: Request, node: int) -> int:
        """Smaller is served first; ties are first come, first served."""
        ...

    def choose(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """Configurations for the queue's next batch in order of preference. The first that can be placed runs.

        Asked again in the same state it says the same, and what it says later does not depend on being asked again.
        """
        ...

    def note(self, item: Item, now_ns: int) -> None:
        """An item has joined its queue (arrival rates are learned here)."""
        ...

    def started(self, batch: Batch) -> None:
        """What `choose` said was placed and is on its way."""
        ...

    def finished(self, batch: Batch) -> None:
        """A batch was run; its items are done."""
        ...

    def closed(self, request: Request) -> None:
        """An admitted request has ended, in whatever way."""
        ...


class Dropper(Protocol):
    """Answers which admitted requests are given up."""

    def hopeless(self, now_ns: int) -> Sequence[tuple[Request, Refusal]]:
        """Requests that wait, cannot be in time any more and are in the way of others that can."""
        ...
