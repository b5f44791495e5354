"""Any scheduler behind our admission: what is let in and given up is decided by us, how it is run by the other.

So a comparison shows what planning is worth, and not what refusing is worth.

Rules of this file
- Admission is not copied: a planner of ours that decides nothing is told all that happens, and asked who is let in
  and who is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ...control import Policy
from ...plan.space import Space
from ...schedule import DovetailPlanner, PlannerSettings, Refusal, Scheduler
from ...state import Batch, Cluster, CompiledGraph, Item, Request
from ...workflow.graph import Graph, Node

__all__ = ["Admitting", "admitting"]


class Admitting:
    """A scheduler that decides how and where, and ours that decides who; what is not here is the other's answer."""

    def __init__(self, inner: Scheduler, ours: DovetailPlanner) -> None:
        self._inner = inner
        self._ours = ours

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

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
        refusal = self._ours.judge(graph, priority, objective_ns, now_ns)
        return refusal or self._inner.admit(graph, priority, objective_ns, now_ns)

    def note(self, item: Item, now_ns: int) -> None:
        """Both learn."""
        self._ours.note(item, now_ns)
        self._inner.note(item, now_ns)

    def started(self, batch: Batch, now_ns: int) -> None:
        """Both learn."""
        self._ours.began(batch)
        self._inner.started(batch, now_ns)

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """Both learn."""
        self._ours.returned(batch)
        if done:
            self._ours.finished(batch, now_ns)
        self._inner.ended(batch, now_ns, done)

    def closed(self, request: Request) -> None:
        """Both forget it."""
        self._ours.closed(request)
        self._inner.closed(request)

    def idle(self, now_ns: int) -> None:
        """Both have time."""
        self._ours.idle(now_ns)
        self._inner.idle(now_ns)

    def hopeless(self, now_ns: int) -> Sequence[tuple[Request, Refusal]]:
        """As we would."""
        return self._ours.hopeless(now_ns)


def admitting(policy: Policy, space: Space) -> Policy:
    """The same policy behind our admission; `space` is what a configuration may be chosen from."""
    ours = DovetailPlanner(policy.predictor, PlannerSettings(space=space))
    return msgspec.structs.replace(policy, scheduler=cast(Scheduler, Admitting(policy.scheduler, ours)))
