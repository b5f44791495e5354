"""Who ran beside whom: from begins and ends of single batches to batches with their neighbours.

Rules of this file
- When a batch has ended, it is not known yet when its neighbours that still run began and will end. So it waits until
  all that its worker had when it ended are through, and is told of then, with exact times.
- A neighbour that is gone without an end (failed, refused, lost) is not waited for.
- A fetch of a model is a neighbour like any other. Nothing is told of the fetch itself.
- Memory is bounded: beyond `MOST` waiting batches of a worker the oldest is told of as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Generic, TypeVar

from ..state import Worker
from .interference import Beside, Load

__all__ = ["MOST", "Companions", "running_on"]

T = TypeVar("T")
#: Batches of one worker that wait at most.
MOST: Final = 64
#: Stands for models that are on their way, among the batches that a worker runs.
_FETCHING: Final = -1


class _Ended(Generic[T]):
    __slots__ = ("begin_ns", "end_ns", "load", "waits", "what")

    def __init__(self, what: T | None, load: Load, begin_ns: int, end_ns: int, waits: list[int]) -> None:
        self.what = what
        self.load = load
        self.begin_ns = begin_ns
        self.end_ns = end_ns
        self.waits = waits


class _Worker(Generic[T]):
    def __init__(self) -> None:
        #: Batches that have ended and wait, and those before them that may have been beside somebody.
        self.waiting: list[_Ended[T]] = []
        self.past: list[_Ended[T]] = []


class Companions(Generic[T]):
    """The batches of all workers that have ended and whose neighbours are not all known."""

    def __init__(self) -> None:
        self._workers: dict[int, _Worker[T]] = {}

    def alone(self, worker: int, running: Collection[int]) -> bool:
        """Whether a batch that has just ended there had nobody beside it."""
        return not running and worker not in self._workers

    def ended(
        self, worker: int, what: T, load: Load, begin_ns: int, end_ns: int, running: Collection[int]
    ) -> list[tuple[T, list[Beside]]]:
        """A batch has ended and these still run there: what can be told now, the oldest first."""
        of = self._workers.get(worker)
        if of is None:
            of = self._workers[worker] = _Worker()
        own = _Ended(what, load, begin_ns, end_ns, list(running))
        of.past.append(own)
        of.waiting.append(own)
        return self._told(worker, of, running)

    def fetched(
        self, worker: int, load: Load, begin_ns: int, end_ns: int, running: Collection[int]
    ) -> list[tuple[T, list[Beside]]]:
        """A model has come to a worker: the same for those who ran there meanwhile."""
        of = self._workers.get(worker)
        if of is None:
            if not running:
                return []
            of = self._workers[worker] = _Worker()
        of.past.append(_Ended(None, load, begin_ns, end_ns, []))
        return self._told(worker, of, running)

    def _told(self, worker: int, of: _Worker[T], running: Collection[int]) -> list[tuple[T, list[Beside]]]:
        """Those of whom all neighbours are known now."""
        told = []
        while of.waiting:
            first = of.waiting[0]
            if len(of.waiting) <= MOST and any(batch in running for batch in first.waits):
                break
            of.waiting.pop(0)
            assert first.what is not None, "a fetch does not wait"
            told.append((first.what, _beside(first, of.past)))
        if not running and not of.waiting:
            del self._workers[worker]
        else:
            self._forget(of)
        return told

    @staticmethod
    def _forget(of: _Worker[T]) -> None:
        """Let go of what ended before anybody began who is still to be told of."""
        if of.waiting:
            since_ns = min(one.begin_ns for one in of.waiting)
            of.past = [one for one in of.past if one.end_ns > since_ns][-2 * MOST :]
        else:
            of.past = of.past[-MOST:]

    def lost(self, worker: int) -> None:
        """The worker is gone, and what it did is not told of."""
        self._workers.pop(worker, None)


def running_on(worker: Worker, before_ns: int) -> list[int]:
    """The batches of a worker that began before a time, as far as is known; those in slices may wait for tokens."""
    found = [i for i, b in worker.running.items() if not (b.waits or b.fetches) and b.begun_ns < before_ns]
    if worker.fetching or worker.loading:
        found.append(_FETCHING)
    return found


def _beside(own: _Ended[T], others: list[_Ended[T]]) -> list[Beside]:
    return [
        Beside(other.load, other.begin_ns - own.begin_ns, other.end_ns - own.begin_ns)
        for other in others
        if other is not own and other.begin_ns < own.end_ns and other.end_ns > own.begin_ns
    ]
