"""Admission of the old `dovetail`: the demand that is due by a deadline against what the devices can do until then.

Work is a share of a device times time, each item counted at its cheapest. A set of requests can be in time only if,
for every deadline D, the work due by D is at most what all devices can do until D (the demand bound of real-time
scheduling: Baruah, Rosier and Howell, 1990, for one processor; here all devices count as one large one).

Rules of this file: integers only; deadlines in steps, rounded down; memory is that of the open requests.
"""

from __future__ import annotations

from ...units import MS

__all__ = ["Demand"]

#: Deadlines are counted in steps of this. [as it was]
STEP_NS = 5 * MS


class Demand:
    """Work of open requests by class and deadline."""

    def __init__(self) -> None:
        #: Class -> step of the deadline -> share times nanoseconds due by then.
        self._due: dict[int, dict[int, int]] = {}
        #: Request -> class, step, work that is left.
        self._open: dict[int, list[int]] = {}

    def __contains__(self, request: int) -> bool:
        return request in self._open

    def add(self, request: int, priority: int, deadline_ns: int, work: int) -> None:
        """A request was admitted."""
        step = deadline_ns // STEP_NS
        self._open[request] = [priority, step, work]
        due = self._due.setdefault(priority, {})
        due[step] = due.get(step, 0) + work

    def done(self, request: int, work: int) -> None:
        """Some of its work is done."""
        entry = self._open.get(request)
        if entry is not None:
            self._take(entry, min(work, entry[2]))

    def remove(self, request: int) -> None:
        """The request has ended."""
        entry = self._open.pop(request, None)
        if entry is not None:
            self._take(entry, entry[2])

    def _take(self, entry: list[int], work: int) -> None:
        priority, step, _ = entry
        entry[2] -= work
        due = self._due[priority]
        due[step] = due.get(step, 0) - work
        if not due[step]:
            del due[step]

    def due_by(self, deadline_ns: int, priority: int) -> int:
        """Work of this class and higher ones that is due by a deadline, overdue work included."""
        last = deadline_ns // STEP_NS
        classes = [due for level, due in self._due.items() if level <= priority]
        return sum(work for due in classes for step, work in due.items() if step <= last)
