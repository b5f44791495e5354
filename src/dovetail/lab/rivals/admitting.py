"""Any planner behind our admission: what is let in and given up is decided by us, how it is run by the other.

So a comparison shows what planning is worth, and not what refusing is worth.

Rules of this file
- Admission is not copied: a planner of ours that decides nothing is told all that happens, and asked who is let in
  and who is given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ...control import Policy
from ...plan import Hold, Planner, Refusal
from ...plan.space import Space
from ...schedule import DovetailPlanner, PlannerSettings
from ...state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request
from ...workflow.graph import Graph, Node

__all__ = ["Admitting", "admitting"]


class Admitting:
    """A planner that decides how, and ours that decides who."""

    def __init__(self, inner: Planner, ours: DovetailPlanner) -> None:
        self._inner = inner
        self._ours = ours
        self.restless = inner.restless

    def queue_key(self, graph: Graph, node: Node) -> str:
        """The other's queues."""
        self._ours.queue_key(graph, node)
        return self._inner.queue_key(graph, node)

    def bind(self, cluster: Cluster) -> None:
        """Both look at the same cluster."""
        self._ours.bind(cluster)
        self._inner.bind(cluster)

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """As we would; what the other would refuse is refused as well."""
        refusal = self._ours.admit(graph, priority, objective_ns, now_ns)
        return refusal or self._inner.admit(graph, priority, objective_ns, now_ns)

    def order(self, request: Request, node: int) -> int:
        """The other's order."""
        return self._inner.order(request, node)

    def choose(self, queue: Queue, now_ns: int) -> Iterable[Config] | Hold:
        """The other's choice."""
        return self._inner.choose(queue, now_ns)

    def note(self, item: Item, now_ns: int) -> None:
        """Both learn."""
        self._ours.note(item, now_ns)
        self._inner.note(item, now_ns)

    def started(self, batch: Batch) -> None:
        """Both learn."""
        self._ours.started(batch)
        self._inner.started(batch)

    def finished(self, batch: Batch) -> None:
        """Both learn."""
        self._ours.finished(batch)
        self._inner.finished(batch)

    def closed(self, request: Request) -> None:
        """Both forget it."""
        self._ours.closed(request)
        self._inner.closed(request)

    def hopeless(self, now_ns: int) -> Sequence[tuple[Request, Refusal]]:
        """As we would."""
        return self._ours.hopeless(now_ns)


def admitting(policy: Policy, space: Space) -> Policy:
    """The same policy behind our admission; `space` is what a configuration may be chosen from."""
    ours = DovetailPlanner(policy.predictor, PlannerSettings(space=space))
    planner = Admitting(policy.planner, ours)
    return msgspec.structs.replace(policy, planner=planner, dropper=planner)
