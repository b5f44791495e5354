"""One request on its way through a graph, and its items: what is batched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .graph import CompiledGraph
    from .queue import Queue

__all__ = ["OUTCOMES", "Item", "Request"]

#: How a request can end, and each ends in exactly one way. `ok`: answered within its objective; `late`: answered
#: after it; `shed`: refused, when it came or when it could not be in time any more; `expired`: its hard deadline
#: passed first; `failed`: a stage could not do it; `cancelled`: the client gave up.
OUTCOMES = ("ok", "late", "shed", "expired", "failed", "cancelled")


class Request:
    """State of an admitted request. Fields below `missing` exist for graphs with fan-out or conditions only."""

    __slots__ = (
        "arrived_ns", "cost_usd", "counts", "deadline_ns", "graph", "id", "items_missing", "left", "missing",
        "nodes_left", "objective_ns", "outcome", "priority", "sheddable", "sizes", "timer", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        ident: int,
        graph: CompiledGraph,
        priority: int,
        arrived_ns: int,
        objective_ns: int,
        deadline_ns: int,
        sheddable: bool = True,
    ) -> None:
        self.id = ident
        self.graph = graph
        #: 1 is the highest class.
        self.priority = priority
        self.arrived_ns = arrived_ns
        #: When it should be answered.
        self.objective_ns = objective_ns
        #: When an answer is of no use any more; 0 is never.
        self.deadline_ns = deadline_ns
        #: Whether it may be given up because it would be late.
        self.sheddable = sheddable
        #: Empty while it is open.
        self.outcome = ""
        #: Per node, how many whole sources have not finished.
        self.missing = graph.missing[:]
        self.nodes_left = len(graph.nodes)
        #: Queue -> how many items of this request wait in it.
        self.waiting: dict[Queue, int] = {}
        self.cost_usd = 0.0
        self.timer = 0
        #: (node, output) -> count, for sources that are mapped over or tested.
        self.counts: dict[tuple[int, int], int] = {}
        #: Mapped node -> number of its items, once known.
        self.sizes: dict[int, int] = {}
        #: Mapped node -> items not yet finished.
        self.left: dict[int, int] = {}
        #: Mapped node -> per item, how many element-wise sources have not finished.
        self.items_missing: dict[int, list[int]] = {}


class Item:
    """One element of one node of one request."""

    __slots__ = ("alone", "attempts", "index", "node", "origin", "queued_ns", "refused", "request", "waits")

    def __init__(
        self, request: Request, node: int, index: int, queued_ns: int, origin: int = 0, alone: bool = False
    ) -> None:
        self.request = request
        self.node = node
        self.index = index
        self.queued_ns = queued_ns
        #: Worker that made its last input: where its data is. 0 at the start.
        self.origin = origin
        #: Batches it was part of that failed.
        self.attempts = 0
        #: Must not share a batch, because a batch with it raised.
        self.alone = alone
        #: Workers that refused it because they could not start it in its window.
        self.refused = 0
        #: It is in a queue of the ingress.
        self.waits = False
