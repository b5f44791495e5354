"""Who is let in: whoever should be in time, and nobody else.

What a request needs is the time of its own path, and the wait behind whatever goes first (`backlog`). The wait is
what is not known well: batches may be smaller than thought, others of a higher class may still come, and the server
itself takes time. So the wait is multiplied by a margin, and the margin is learned, for each workflow and class, from
those that were let in though they had to wait: whoever was late raises it, and whoever was in time moves it a little
towards the wait that it had.

Rules of this file
- A margin is raised once for all that were let in before it was raised: they were let in by the old one.
- Who was in time because it had plenty of it says nothing about the wait. Its wait does: otherwise margins fall while
  there is little to do, and the first second of an overload is let in by margins that are too small.
- The margin is on the wait alone: on an idle cluster nobody is refused who can be in time.
- Who is refused teaches nothing, so margins fall with time as well.
"""

from __future__ import annotations

from typing import Final

from ..units import SECOND, format_ns
from .protocol import Refusal

__all__ = ["Admission", "Waits"]

#: A late answer raises the margin by this factor, an answer in time moves it by this much: if waits are shorter than
#: was said, it stays as it is with one in fifty late. [our choice]
RAISE: Final = 1.1
MOVE: Final = 0.002
#: A margin falls by this part of what it is above one in a second in which nobody was let in with a wait.
FORGET: Final = 0.1
LEAST, MOST = 0.7, 8.0
#: Whoever waits for less than one in so many parts of the time it has teaches nothing about waits.
MATTERS: Final = 4

#: Workflow and class.
Key = tuple[str, int]


class Waits:
    """What is known of one workflow and class: its margin, and when it was raised."""

    __slots__ = ("changed_ns", "margin", "raised_ns")

    def __init__(self) -> None:
        self.margin = 1.0
        self.raised_ns = -1
        self.changed_ns = 0


class Admission:
    """Margins, and the requests that may teach them."""

    __slots__ = ("_margins", "_open")

    def __init__(self) -> None:
        self._margins: dict[Key, Waits] = {}
        #: Request that was let in with a wait -> when that was, its path, its wait as expected without a margin, and
        #: whose margin it teaches.
        self._open: dict[int, tuple[int, int, int, Waits]] = {}

    def margin(self, workflow: str, priority: int) -> float:
        """By what waits of such requests are multiplied."""
        known = self._margins.get((workflow, priority))
        return 1.0 if known is None else known.margin

    def judge(
        self, workflow: str, priority: int, path_ns: int, wait_ns: int, left_ns: int, now_ns: int
    ) -> Refusal | None:
        """Refuse a request that would be late: its path and its wait take more than is left."""
        if not wait_ns:
            return None
        known = self._known(workflow, priority, now_ns)
        excess_ns = path_ns + int(wait_ns * known.margin) - left_ns
        if excess_ns <= 0:
            return None
        return Refusal(
            f"it would wait for about {format_ns(int(wait_ns * known.margin))} behind others and be late by "
            f"{format_ns(excess_ns)}",
            # What runs leaves the backlog when it ends, not bit by bit: another path's time until there is room.
            excess_ns + path_ns,
        )

    def let_in(
        self, request: int, workflow: str, priority: int, path_ns: int, wait_ns: int, left_ns: int, now_ns: int
    ) -> None:
        """A request was let in with such a wait before it; without its path it has so much left."""
        if wait_ns * MATTERS > left_ns:
            self._open[request] = now_ns, path_ns, wait_ns, self._known(workflow, priority, now_ns)

    def ended(self, request: int, in_time: bool, now_ns: int) -> None:
        """A request has ended by itself: answered, or given up because it would have been late."""
        found = self._open.pop(request, None)
        if found is None:
            return
        since_ns, path_ns, wait_ns, known = found
        known.changed_ns = now_ns
        if in_time:
            shorter = now_ns - since_ns - path_ns < wait_ns * known.margin
            known.margin = max(LEAST, known.margin - MOVE) if shorter else min(MOST, known.margin + MOVE)
        elif since_ns > known.raised_ns:
            known.margin = min(MOST, known.margin * RAISE)
            known.raised_ns = now_ns

    def forget(self, request: int) -> None:
        """A request has ended for another reason."""
        self._open.pop(request, None)

    def _known(self, workflow: str, priority: int, now_ns: int) -> Waits:
        key = workflow, priority
        known = self._margins.get(key)
        if known is None:
            known = self._margins[key] = Waits()
            known.changed_ns = now_ns
        quiet_ns = now_ns - known.changed_ns
        if quiet_ns > SECOND:
            known.changed_ns = now_ns
            if known.margin > 1.0:
                known.margin = 1.0 + (known.margin - 1.0) * (1.0 - FORGET) ** (quiet_ns / SECOND)
        return known
