"""Python stages that are kept apart from those of other workflows, because they have hung or have ended a process.

Rules of this file
- A stage is at fault if its process hung or crashed at its work, not if somebody else ended it, and also if it keeps
  a process from others for far longer than expected.
- It gets a process of its own, in which it harms nobody but itself, and no process that is started from then on runs
  it beside others. So every process is lost at most once to each such stage.
- A stage all of whose neighbours are of the same workflows harms nobody else, and stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...state import WorkerSpec
from ...workflow.graph import Graph

__all__ = ["Isolation"]

#: Stages that are kept apart at most [our choice: each is a process of some 50 MB].
MOST_APART = 4


class Isolation:
    """Which stages are kept apart, and what that means for a process that is about to be started."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self._graphs = [(graph, {stage.name for stage in graph.stages if stage.on_host}) for graph in graphs]
        self._all = set().union(*(names for _, names in self._graphs))
        self._apart: set[str] = set()

    def part(self, stage: str) -> bool:
        """A stage is at fault; whether it is kept apart now, and was not until now."""
        if stage in self._apart or len(self._apart) == MOST_APART or not self._harms(stage):
            return False
        self._apart.add(stage)
        return True

    def _harms(self, stage: str) -> bool:
        """Whether a workflow that does without the stage has others that it would share a process with."""
        return any(stage not in names and names - self._apart for _, names in self._graphs)

    def shared(self, spec: WorkerSpec) -> WorkerSpec:
        """A process as it is started now: without the stages that are kept apart, unless it is that of one."""
        if not spec.on_host or not self._apart or self.alone(spec):
            return spec
        return msgspec.structs.replace(spec, stages=tuple(sorted(self._all - self._apart)))

    def own(self, spec: WorkerSpec, stage: str) -> WorkerSpec:
        """The process of a stage that is kept apart."""
        return msgspec.structs.replace(spec, name=f"{spec.kind}-{stage}", stages=(stage,))

    def alone(self, spec: WorkerSpec) -> bool:
        """Whether a process is that of a stage that is kept apart: nobody else waits for it."""
        return len(spec.stages) == 1 and spec.stages[0] in self._apart
