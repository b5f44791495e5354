"""Whether there is room for one more request: memory for what it will leave in the workers' arenas until it ends.

How long it will take and whether it should be served is the controller's business. This is about bytes, which the
controller does not know: a request whose results find no room has cost its time and helps nobody, so it is better
refused before it begins. How much a request of a workflow takes is learned from those that have ended, and the
largest of late counts: the largest so far, fading by a thousandth with each that ends. A part of the room is kept for
the highest class, so that it is not shut out by what is less urgent.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import Overloaded
from ...state import WorkerSpec
from ...units import format_bytes

__all__ = ["MemoryAdmission"]

#: Share of the arenas that admitted requests are expected to fill; the rest is for those that take more.
FILL = 0.75
#: Part of that which lower classes leave to class 1.
FOR_THE_HIGHEST = 0.2
#: Open requests of a workflow of which none has ended yet, so that nothing is known.
UNKNOWN_OPEN = 128
#: What fraction of an estimate is forgotten with each request that takes less.
FADING = 1024
RETRY_AFTER_MS = 1000


class MemoryAdmission:
    """Counts the bytes that open requests are expected to take, by kind of worker."""

    def __init__(self, workflows: int, workers: Sequence[WorkerSpec], arena_bytes: int) -> None:
        self._room_bytes: dict[str, int] = {}
        for spec in workers:
            self._room_bytes[spec.kind] = self._room_bytes.get(spec.kind, 0) + int(arena_bytes * FILL)
        self._open = [0] * workflows
        #: Per workflow, kind of worker -> bytes that a request takes there.
        self._needs: list[dict[str, int]] = [{} for _ in range(workflows)]

    def enter(self, workflow: int, priority: int) -> None:
        """One more request; raises `Overloaded` if there is no room for one of its class."""
        if not self._needs[workflow] and self._open[workflow] >= UNKNOWN_OPEN:
            raise Overloaded("so many requests at once before the first of them has ended", RETRY_AFTER_MS)
        for kind, needed in self._needs[workflow].items():
            taken = 0
            for index, count in enumerate(self._open):
                if count:
                    taken += count * self._needs[index].get(kind, 0)
            room = self._room_bytes[kind]
            if priority > 1:
                room -= int(room * FOR_THE_HIGHEST)
            # A lone request always may: how it fares is told by those who run it.
            if taken and taken + needed > room:
                raise Overloaded(
                    f"the {sum(self._open)} open requests are expected to take {format_bytes(taken)} of the "
                    f"{format_bytes(room)} for results of {kind!r} workers",
                    RETRY_AFTER_MS,
                )
        self._open[workflow] += 1

    def leave(self, workflow: int, taken_bytes: dict[str, int]) -> None:
        """A request has ended; this much of each kind of worker's memory was its results'."""
        self._open[workflow] -= 1
        needs = self._needs[workflow]
        for kind, taken in taken_bytes.items():
            known = needs.get(kind, 0)
            needs[kind] = max(taken, known - known // FADING)
