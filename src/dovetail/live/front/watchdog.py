"""Which workers hang: they owe an answer or a model, and have ended nothing for too long.

A worker may keep a batch waiting for as long as others get done there; a model that it brings has a time limit of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...units import SECOND
from .batches import Running

__all__ = ["Watchdog"]

#: How many times longer than expected a batch may run before its worker is taken to hang, if that is above the
#: floor of `Settings.hang_ns`. The first run of a stage that nobody profiled is expected to take 10 ms.
HANG_FACTOR = 50
#: A batch that takes so long, and so many times longer than expected, keeps its worker from others: they get a worker
#: of their own meanwhile [our choice: the start of a process takes about a second].
STUCK_NS, STUCK_FACTOR = 2 * SECOND, 20
_KILLED = ", so its worker was killed"


class Watchdog:
    """Since when each worker has owed what it owes."""

    def __init__(self, hang_ns: int) -> None:
        #: (worker, stage) -> since when a worker has been loading its model.
        self.loading: dict[tuple[int, str], int] = {}
        self._hang_ns = hang_ns
        #: When each worker last ended something.
        self._progress_ns: dict[int, int] = {}

    def answered(self, worker: int, now_ns: int) -> None:
        """A worker is here, or a batch has come back from it."""
        self._progress_ns[worker] = now_ns

    def load_began(self, worker: int, stage: str, now_ns: int) -> None:
        """A worker has begun to bring a model, as it saw fit."""
        self.loading[worker, stage] = now_ns

    def load_ended(self, worker: int, stage: str, now_ns: int) -> None:
        """A model is there, or will not come."""
        self.loading.pop((worker, stage), None)
        self._progress_ns[worker] = now_ns

    def loads(self, worker: int) -> bool:
        """Whether it brings a model."""
        return any(busy == worker for busy, _ in self.loading)

    def lost(self, worker: int) -> None:
        """It owes nothing any more."""
        self._progress_ns.pop(worker, None)
        for key in [key for key in self.loading if key[0] == worker]:
            del self.loading[key]

    def hung(self, running: Iterable[Running], now_ns: int) -> list[tuple[int, str]]:
        """Workers that hang, with the reason; one may be named twice."""
        found = [(r.action.worker, why) for r in running if (why := self._overdue(r, now_ns))]
        for (worker, stage), since_ns in self.loading.items():
            if now_ns - since_ns > self._hang_ns:
                limit = f"{self._hang_ns / SECOND:g} s"
                found.append((worker, f"the model of stage {stage!r} was not loaded within {limit}{_KILLED}"))
        return found

    def stuck(self, running: Iterable[Running], now_ns: int) -> dict[int, str]:
        """Workers whose batch takes far longer than expected, though it may still end; and its stage."""
        found = {}
        for each in running:
            action = each.action
            limit_ns = max(STUCK_NS, STUCK_FACTOR * action.expected_ns)
            if (action.worker, action.stage) not in self.loading and self._waited_ns(each, now_ns) > limit_ns:
                found[action.worker] = action.stage
        return found

    def _waited_ns(self, running: Running, now_ns: int) -> int:
        """How long a batch has run, or its worker has ended nothing."""
        return now_ns - max(running.since_ns, self._progress_ns.get(running.action.worker, 0))

    def _overdue(self, running: Running, now_ns: int) -> str:
        """Why a batch will never end; empty if it may."""
        action = running.action
        if (action.worker, action.stage) in self.loading:
            return ""  # that has its own limit
        limit_ns = max(self._hang_ns, HANG_FACTOR * action.expected_ns)
        if self._waited_ns(running, now_ns) <= limit_ns:
            return ""
        return f"stage {action.stage!r} did not answer within {limit_ns / SECOND:g} s{_KILLED}"
