"""Memory beyond the models: what loads take while they load and batches while they run.

Rules of this file
- Both take from one reserve, which is at least as large as the largest of them. Batches go first; a load that several
  have overtaken goes before the next one.
- A batch with larger inputs than any of its stage before runs with nothing beside it, and is measured. From then on
  it is known what the stage takes, and if that is more than the reserve, the reserve grows.
- Freed memory stays in the heap until it is in the way: whoever begins looks at what the process really has, and
  gives the rest back if it might pass the limit with what it is going to take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from .footprint import Peak, quick_bytes, trim

__all__ = ["Use", "WorkingMemory"]

#: What is added to a measured batch: the heap is not always in the same state. Unmeasured.
MARGIN_PCT = 10
#: Batches that may go before a load that waits; unmeasured.
OVERTAKES = 4


class _Known(msgspec.Struct):
    """What batches of a stage take, with inputs of up to this size."""

    input_bytes: int
    nbytes: int


class Use:
    """One batch at work; set `done` if it really ran, so that what was measured counts."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False


class WorkingMemory:
    """Used by the loaders and lanes of one process, from any thread."""

    def __init__(
        self,
        limit_bytes: int,
        reserve_bytes: int,
        *,
        resident: Callable[[], int] = quick_bytes,
        give_back: Callable[[], None] = trim,
        peak: Callable[[], Peak] = Peak,
    ) -> None:
        """The process should never have more than `limit_bytes`."""
        #: Grows when batches turn out to take more.
        self.reserve_bytes = reserve_bytes
        self._limit_bytes = limit_bytes
        self._resident, self._give_back, self._peak = resident, give_back, peak
        self._known: dict[str, _Known] = {}
        self._changed = threading.Condition()
        #: What those at work take.
        self._taken: list[int] = []
        #: A batch runs alone, or is about to.
        self._alone = False
        self._batches_waiting = 0
        self._loads_waiting = 0
        #: Batches that went before the loads that wait.
        self._overtaken = 0

    @contextmanager
    def load(self, transient_bytes: int) -> Iterator[None]:
        """While a model is loaded that takes so much more than it keeps."""
        with self._changed:
            self._loads_waiting += 1
            while (
                self._alone
                or (self._batches_waiting and self._overtaken < OVERTAKES)
                or not self._fits(transient_bytes)
            ):
                self._changed.wait()
            self._loads_waiting -= 1
            self._overtaken = 0
            self._taken.append(transient_bytes)
        try:
            self._give_back()  # a load takes hundreds of times as long
            yield
        finally:
            self._leave(transient_bytes)

    @contextmanager
    def run(self, stage: str, input_bytes: int) -> Iterator[Use]:
        """While a batch runs."""
        known = self._known.get(stage)
        if known is None or input_bytes > known.input_bytes:
            with self._run_alone(stage, input_bytes) as use:
                yield use
            return
        need_bytes = known.nbytes
        with self._changed:
            self._batches_waiting += 1
            while self._alone or (self._loads_waiting and self._overtaken >= OVERTAKES) or not self._fits(need_bytes):
                self._changed.wait()
            self._batches_waiting -= 1
            self._overtaken += bool(self._loads_waiting)
            self._taken.append(need_bytes)
            taken = sum(self._taken)
        try:
            if self._resident() + taken > self._limit_bytes:
                self._give_back()
            yield Use()
        finally:
            self._leave(need_bytes)

    def _fits(self, nbytes: int) -> bool:
        return not self._taken or sum(self._taken) + nbytes <= self.reserve_bytes

    @contextmanager
    def _run_alone(self, stage: str, input_bytes: int) -> Iterator[Use]:
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._alone = True
            while self._taken:
                self._changed.wait()
        try:
            self._give_back()
            peak, use = self._peak(), Use()
            yield use
            if not use.done:
                return
            above = peak.above_bytes() * (100 + MARGIN_PCT) // 100
            known = self._known.setdefault(stage, _Known(0, 0))
            known.input_bytes, known.nbytes = max(known.input_bytes, input_bytes), max(known.nbytes, above)
            self.reserve_bytes = max(self.reserve_bytes, known.nbytes)
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()

    def _leave(self, nbytes: int) -> None:
        with self._changed:
            self._taken.remove(nbytes)
            self._changed.notify_all()
