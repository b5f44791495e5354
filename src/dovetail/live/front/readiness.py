"""Whether every stage has a worker that can run it, and for how long one has had none.

A worker that died is back within a second or two, so requests wait for it. After a while new ones are refused, and
in the end those that wait are given up.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...control import Controller
from ...errors import Overloaded
from ...units import SECOND
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
        self._unready_since_ns = 1

    @property
    def complete(self) -> bool:
        """Whether every stage had a worker at the last look."""
        return not self._unready_since_ns

    def look(self, now_ns: int) -> None:
        """To be called whenever a model or a worker came or went."""
        if not self.missing():
            self._unready_since_ns = 0
        elif not self._unready_since_ns:
            self._unready_since_ns = now_ns

    def missing(self, graph: Graph | None = None) -> list[str]:
        """Stages that no worker holds: of one workflow, or of all."""
        names = self._stages if graph is None else sorted(s.name for s in graph.stages)
        return [s for s in names if not self._controller.holders[s]]

    def admit(self, graph: Graph, now_ns: int) -> None:
        """Raises `Overloaded` if a stage of a workflow has been without a worker for too long for a new request."""
        if self._unready_for(REFUSE_AFTER_NS, now_ns) and (missing := self.missing(graph)):
            raise Overloaded(f"no worker runs {', '.join(missing)} now", 1000)

    def hopeless(self, graph: Graph, now_ns: int) -> str:
        """Why an open request of a workflow is not waited for any longer; empty if it is."""
        if self._unready_for(GIVE_UP_AFTER_NS, now_ns) and (missing := self.missing(graph)):
            return f"no worker has run {', '.join(missing)} for {GIVE_UP_AFTER_NS // SECOND} s"
        return ""

    def _unready_for(self, limit_ns: int, now_ns: int) -> bool:
        since_ns = self._unready_since_ns
        return bool(since_ns) and now_ns - since_ns > limit_ns
