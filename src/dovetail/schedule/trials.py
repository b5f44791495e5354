"""Workflows that seem too slow for their objective: now and then a request is let in to see whether that is still so.

What a workflow takes is learned from those who run. If what was learned says that all would be late, all are refused,
and nothing more is learned: a machine that was slow for a moment would refuse that workflow for ever.

Rules of this file
- One request of a workflow is tried at a time. It is not given up on the way, so that all its stages show what they
  take, and what was learned of them before counts for little from then on (`Predictor.doubt`).
- The next trial comes after `PAUSE` times as long as the workflow takes. A trial that was late doubles the pause, up
  to `MOST_PAUSE_NS`: an objective that nobody can meet costs next to nothing.
"""

from __future__ import annotations

from typing import Final

from ..units import SECOND

__all__ = ["Trials"]

#: Least pause between two trials, in times that the workflow takes: one in five of one device at most. [our choice]
PAUSE: Final = 4
MOST_PAUSE_NS: Final = 30 * SECOND


class Trials:
    """Requests that were let in to see, and when the next may be."""

    __slots__ = ("_next", "_open")

    def __init__(self) -> None:
        #: Request that is tried -> its workflow, and how long the pause after it is at least.
        self._open: dict[int, tuple[str, int]] = {}
        #: Workflow -> when its next trial may be, and the pause before that if the last one was late.
        self._next: dict[str, tuple[int, int]] = {}

    def __contains__(self, request: int) -> bool:
        return request in self._open

    def due(self, workflow: str, now_ns: int) -> bool:
        """Whether one may be tried now."""
        if workflow not in self._next:
            return True
        return self._next[workflow][0] <= now_ns and all(name != workflow for name, _ in self._open.values())

    def begin(self, request: int, workflow: str, takes_ns: int) -> None:
        """This one is tried; its workflow is taken to need so long."""
        self._open[request] = workflow, takes_ns * PAUSE
        self._next.setdefault(workflow, (0, 0))

    def ended(self, request: int, in_time: bool, now_ns: int) -> None:
        """A request has ended, tried or not."""
        found = self._open.pop(request, None)
        if found is None:
            return
        workflow, pause_ns = found
        if not in_time:
            pause_ns = min(MOST_PAUSE_NS, max(pause_ns, 2 * self._next[workflow][1]))
        self._next[workflow] = now_ns + pause_ns, 0 if in_time else pause_ns
