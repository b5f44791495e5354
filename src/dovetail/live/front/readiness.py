"""Whether every stage has a worker that can run it, and for how long one has had none.

A worker that died is back within a second or two, so requests wait for it. After a while new ones are refused, and
in the end those that wait are given up. A stage that sleeps, because the scaler has let the last worker go, is well:
its next request wakes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...control import Controller
from ...control.controller import DRAIN_RETRY_NS
from ...errors import Overloaded
from ...scale import LoadScaler
from ...units import MS, SECOND
from ...workflow.graph import Graph

__all__ = ["Readiness"]

#: For how long a stage may be without a worker before new requests for it are refused, and before those that wait
#: are given up.
REFUSE_AFTER_NS = 5 * SECOND
GIVE_UP_AFTER_NS = 30 * SECOND


class Readiness:
    """Stages without a worker."""

    def __init__(self, graphs: Sequence[Graph], controller: Controller) -> None:
        self._stages = sorted({s.name for g in graphs for s in g.stages})
        self._controller = controller
        #: Since when some stage has had no worker; 0 is all are well.
        self.unready_since_ns = 1
        #: It was asleep until then.
        self._wakes = False

    @property
    def complete(self) -> bool:
        """Whether every stage had a worker at the last look, or sleeps or wakes."""
        return not self.unready_since_ns or self._wakes

    def look(self, now_ns: int) -> None:
        """To be called whenever a model or a worker came or went."""
        if not self.missing():
            self.unready_since_ns, self._wakes = 0, False
        elif self._asleep() and self.complete:
            self.unready_since_ns, self._wakes = 0, True
        elif not self.unready_since_ns:
            self.unready_since_ns = now_ns

    def _asleep(self) -> bool:
        """Whether the scaler has let the last worker go and has not asked for another."""
        cluster, scale = self._controller.cluster, self._controller.policy.scaler
        least = scale.settings.least if isinstance(scale, LoadScaler) else 1
        return not least and not cluster.starting and len(cluster.workers) == cluster.hosts

    def missing(self, graph: Graph | None = None) -> list[str]:
        """Stages that no worker holds: of one workflow, or of all."""
        names = self._stages if graph is None else sorted(s.name for s in graph.stages)
        return [s for s in names if not self._controller.holders[s]]

    def admit(self, graph: Graph, now_ns: int) -> None:
        """Raises `Overloaded` while it drains, or if a stage has been without a worker for too long."""
        if self._controller.draining:
            raise Overloaded("the server is draining", DRAIN_RETRY_NS // MS)
        if self._unready_for(REFUSE_AFTER_NS, now_ns) and (missing := self.missing(graph)):
            raise Overloaded(f"no worker runs {', '.join(missing)} now", 1000)

    def hopeless(self, graph: Graph, now_ns: int) -> str:
        """Why an open request of a workflow is not waited for any longer; empty if it is."""
        if self._unready_for(GIVE_UP_AFTER_NS, now_ns) and (missing := self.missing(graph)):
            return f"no worker has run {', '.join(missing)} for {GIVE_UP_AFTER_NS // SECOND} s"
        return ""

    def _unready_for(self, limit_ns: int, now_ns: int) -> bool:
        since_ns = self.unready_since_ns
        return bool(since_ns) and now_ns - since_ns > limit_ns
