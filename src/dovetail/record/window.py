"""The last steps of a run that goes on: bounded, followed from some moment on, and read again for a story.

Rules of this file: steps that leave the window are followed by a second follower, so that what was there when the
window begins is always known. Nothing here decides anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..workflow.graph import Graph
from .follow import Change, Follower, Present
from .log import Step
from .story import Story, story

__all__ = ["Window"]

#: Steps that are kept, and for how long [our choice: some 20 MB, and what a person looks back on].
MOST_STEPS = 40_000
MOST_NS = 120_000_000_000


class Window:
    """Fed with every step after the moment that `present` tells of."""

    def __init__(
        self, graphs: Sequence[Graph], present: Present, *, most_steps: int = MOST_STEPS, most_ns: int = MOST_NS
    ) -> None:
        self.graphs = tuple(graphs)
        #: As of the last step.
        self.now = Follower(graphs, present)
        self._before = Follower(graphs, present)
        self._steps: deque[Step] = deque()
        self._most_steps, self._most_ns = most_steps, most_ns

    def add(self, step: Step) -> Change:
        """Take the next step; what it changed."""
        steps = self._steps
        steps.append(step)
        change = self.now.step(step.event, step.actions)
        while len(steps) > self._most_steps or steps[0].event.at_ns < step.event.at_ns - self._most_ns:
            old = steps.popleft()
            self._before.step(old.event, old.actions)
        return change

    @property
    def begin(self) -> Present:
        """What there was when the window begins."""
        return self._before.present()

    def steps(self) -> list[Step]:
        """All of it."""
        return list(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def story(self, request: int | str) -> Story:
        """The story of a request that arrived within the window."""
        return story(self._steps, request, self.graphs, self.begin)
