"""An admission rule for rivals that have none, so that they can be compared with policies that refuse.

ESG and INFless take everything, and above capacity everybody is late. This is the plainest rule that helps: a request
is let in if the work that waits in queues, shared by all devices, and its own fastest way fit into the time that it
has; and who waits with less time left than its fastest way is given up. Work is counted in the leanest
configurations, by profile. Nothing is learned. Rivals serve first come, first served, so classes do not count.

Rules of this file: it wraps a planner, which decides everything else as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec

from ...control import Policy
from ...plan import Refusal
from ...state import Cluster, CompiledGraph, Item, Request
from ...state.worker import FULL_SHARE
from ...units import format_ns
from ...workflow.graph import StageSpec
from .common import Rival

__all__ = ["Refusing", "refusing"]


class Refusing:
    """A rival's planner that refuses early what should be late."""

    def __init__(self, planner: Rival) -> None:
        self._planner = planner
        #: (when its chance goes, number, item)
        self._last: list[tuple[int, int, Item]] = []
        self._noted = 0
        self._known: dict[str, tuple[int, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._planner, name)

    def bind(self, cluster: Cluster) -> None:
        """Both look at it."""
        self._cluster = cluster
        self._planner.bind(cluster)

    def _times(self, stage: StageSpec) -> tuple[int, int]:
        """Of a stage: the fastest time of one item, and the least work of one in share times nanoseconds."""
        known = self._known.get(stage.name)
        if known is None:
            market = self._planner.market
            rows = [(c, market.time_ns(stage, c)) for c in market.configs(stage)]
            fastest_ns = min(ns for c, ns in rows if c.batch == stage.batch[0])
            work = 0 if stage.on_host else min(ns * c.share_pct // c.batch for c, ns in rows)
            known = self._known[stage.name] = fastest_ns, work
        return known

    def _rest_ns(self, graph: CompiledGraph, node: int) -> int:
        """From a node on, the fastest way."""
        after = graph.nodes[node].whole_next + graph.nodes[node].each_next
        return self._times(graph.nodes[node].stage)[0] + max((self._rest_ns(graph, j) for j in after), default=0)

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """The rival's own answer, and whether there is time."""
        refusal = self._planner.admit(graph, priority, objective_ns, now_ns)
        if refusal is not None or not self._planner._ready():
            return refusal
        devices = sum(not w.spec.on_host for w in self._cluster.workers.values())
        queued = sum(q.size * self._times(q.stage)[1] for q in self._cluster.queues.values() if q.size)
        wait_ns = queued // (max(1, devices) * FULL_SHARE)
        path_ns = max(self._rest_ns(graph, node.index) for node in graph.entries)
        if wait_ns + path_ns <= objective_ns - now_ns:
            return None
        return Refusal(
            f"work for {format_ns(wait_ns)} goes before it, and its fastest way takes {format_ns(path_ns)}"
        )

    def note(self, item: Item, now_ns: int) -> None:
        """An item waits."""
        self._planner.note(item, now_ns)
        request = item.request
        if not self._planner._ready():
            return
        self._noted += 1
        heappush(self._last, (request.objective_ns - self._rest_ns(request.graph, item.node), self._noted, item))

    def hopeless(self, now_ns: int) -> Sequence[tuple[Request, Refusal]]:
        """Who waits and has less time left than its fastest way."""
        found: dict[int, tuple[Request, Refusal]] = {}
        while self._last and self._last[0][0] < now_ns:
            item = heappop(self._last)[2]
            if item.waits and not item.request.outcome:
                found[item.request.id] = (item.request, Refusal("it waits and cannot be in time any more"))
        return list(found.values())


def refusing(policy: Policy) -> Policy:
    """A rival's policy with this rule added."""
    assert isinstance(policy.planner, Rival)
    planner = Refusing(policy.planner)
    return msgspec.structs.replace(policy, planner=planner, dropper=planner)
