"""Memory beyond the models: what loads take while they load and batches while they run.

Rules of this file
- Loads wait for loads and batches for batches, each for their own part of the reserve; so neither delays the other.
- A batch with larger inputs than any of its stage before runs with nothing beside it, and is measured. From then on
  it is known what the stage takes.
- Freed memory stays in the heap until it is in the way: whoever begins looks at what the process really has, and
  gives the rest back if it might pass the limit with what it is going to take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from .footprint import Peak, quick_bytes, trim

__all__ = ["Room", "Use"]

#: What is added to a measured batch: the heap is not always in the same state. Unmeasured.
MARGIN_PCT = 10


class _Known(msgspec.Struct):
    """What batches of a stage take, with inputs of up to this size."""

    input_bytes: int
    nbytes: int


class Use:
    """One batch at work; set `done` if it really ran, so that what was measured counts."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False


class Room:
    """Used by the loaders and lanes of one process, from any thread."""

    def __init__(
        self,
        limit_bytes: int,
        loads_bytes: int,
        runs_bytes: int,
        *,
        resident: Callable[[], int] = quick_bytes,
        give_back: Callable[[], None] = trim,
        peak: Callable[[], Peak] = Peak,
    ) -> None:
        """The process should never have more than `limit_bytes`; the others are the two parts of the reserve."""
        self.loads_bytes = loads_bytes
        #: Grows when batches turn out to take more.
        self.runs_bytes = runs_bytes
        self.trims = 0
        self._limit_bytes = limit_bytes
        self._resident, self._give_back, self._peak = resident, give_back, peak
        self._known: dict[str, _Known] = {}
        self._changed = threading.Condition()
        self._loading: list[int] = []
        self._running: list[int] = []
        #: A batch runs alone, or waits for it.
        self._alone = False

    @contextmanager
    def load(self, transient_bytes: int) -> Iterator[None]:
        """While a model is loaded that takes so much more than it keeps."""
        with self._changed:
            while self._alone or (self._loading and sum(self._loading) + transient_bytes > self.loads_bytes):
                self._changed.wait()
            self._loading.append(transient_bytes)
        try:
            self._give_back()  # a load takes hundreds of times as long
            yield
        finally:
            self._leave(self._loading, transient_bytes)

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
            while self._alone or (self._running and sum(self._running) + need_bytes > self.runs_bytes):
                self._changed.wait()
            self._running.append(need_bytes)
            taken = sum(self._running) + sum(self._loading)
        try:
            if self._resident() + taken > self._limit_bytes:
                self.trims += 1
                self._give_back()
            yield Use()
        finally:
            self._leave(self._running, need_bytes)

    @contextmanager
    def _run_alone(self, stage: str, input_bytes: int) -> Iterator[Use]:
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._alone = True
            while self._loading or self._running:
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
            self.runs_bytes = max(self.runs_bytes, known.nbytes)
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()

    def _leave(self, taken: list[int], nbytes: int) -> None:
        with self._changed:
            taken.remove(nbytes)
            self._changed.notify_all()
