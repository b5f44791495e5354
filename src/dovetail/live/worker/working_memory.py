"""Memory beyond the models: what loads take while they load and batches while they run.

Rules of this file
- Both take from one reserve, which is at least as large as the largest of them. Batches go first; a load that several
  have overtaken goes before the next one.
- A batch with larger inputs than any of its stage before runs with nothing beside it, and is measured. From then on
  it is known what the stage takes, and if that is more than the reserve, the reserve grows.
- The reserve does not grow for the number of items: a batch that would take more is run in parts (`at_once`). Models
  would have to go for it, and to load them again takes longer than parts do. Of a stage that is not known yet, items
  run one by one.
- A batch that was stopped between two kernels keeps what it has. Nobody waits for it, since it may itself wait for
  whoever does: if what is stopped leaves too little, the reserve grows.
- Freed memory stays in the heap until it is in the way: whoever begins looks at what the process really has, and
  gives the rest back if it might pass the limit with what it is going to take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from .footprint import Peak, quick_bytes, trim

__all__ = ["Use", "WorkingMemory"]

#: What is added to a measured batch: the heap is not always in the same state. Unmeasured.
MARGIN_PCT = 10
#: Batches that may go before a load that waits; unmeasured.
OVERTAKES = 4
#: What items that run together may take of the reserve, by what fewer of them took: that is a straight line through
#: one measurement, and 1.3 times as much was seen.
PART_PCT = 70


class _Known(msgspec.Struct):
    """What batches of a stage take, with inputs of up to this size."""

    input_bytes: int
    nbytes: int


@dataclass(slots=True, eq=False)
class Use:
    """One batch from its first kernel to its last, or until it fails."""

    #: It ran to its end, so that what was measured counts for others of its stage.
    done: bool = False
    #: It has not ended, and goes on later.
    stopped: bool = False
    #: What it has while it is stopped, and the most that it was seen with.
    held_bytes: int = 0
    most_bytes: int = 0


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
        #: Grows when batches turn out to take more; `Budget` makes it smaller when it is known what they take.
        self.reserve_bytes = reserve_bytes
        self._first_bytes = reserve_bytes
        self._limit_bytes = limit_bytes
        self._resident, self._give_back, self._peak = resident, give_back, peak
        self._known: dict[str, _Known] = {}
        self._changed = threading.Condition()
        #: What those at work take, and what those have that were stopped.
        self._taken: list[int] = []
        self._held: list[int] = []
        self._most_held = 0
        self._forgets = False
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
            self._take(transient_bytes)
        try:
            self._give_back()  # a load takes hundreds of times as long
            yield
        finally:
            self._leave(transient_bytes)

    @contextmanager
    def run(self, stage: str, input_bytes: int, use: Use | None = None) -> Iterator[Use]:
        """While a batch runs. `use` is what it was given before, if it was stopped. Who leaves says how it ends."""
        use = use or Use()
        use.stopped = False
        known = self._known.get(stage)
        if known is None or input_bytes > known.input_bytes:
            with self._run_alone(stage, input_bytes, use):
                yield use
            return
        need_bytes = known.nbytes
        with self._changed:
            self._batches_waiting += 1
            while (
                self._alone
                or (self._loads_waiting and self._overtaken >= OVERTAKES)
                or not self._fits(need_bytes - use.held_bytes)
            ):
                self._changed.wait()
            self._batches_waiting -= 1
            self._overtaken += bool(self._loads_waiting)
            self._go_on(use)
            taken = self._take(need_bytes)
        try:
            if self._resident() + taken > self._limit_bytes:
                self._give_back()
            yield use
        finally:
            self._leave(need_bytes, use)

    def knows(self, way: str, input_bytes: int) -> bool:
        """Whether it was measured with inputs of this size."""
        known = self._known.get(way)
        return known is not None and input_bytes <= known.input_bytes

    @property
    def known_bytes(self) -> int:
        """What the largest batch takes that was measured, and the most that those had that were stopped."""
        return max([known.nbytes for known in self._known.values()], default=0) + self._most_held

    def needs(self, way: str) -> int:
        """What batches take that run in this way; 0 if that is not known."""
        known = self._known.get(way)
        return 0 if known is None else known.nbytes

    @property
    def idle(self) -> bool:
        """Whether nothing is at work, and nothing was stopped that goes on."""
        return not self._taken and not self._alone and not self._held

    def forget(self, way: str) -> None:
        """Nothing runs in this way any more, but what was stopped: what that has counts until it has ended."""
        with self._changed:
            self._known.pop(way, None)
            self._forgets = True
            self._let_go()

    def _let_go(self) -> None:
        """Forget what stopped batches had once none is left, if that is to be forgotten."""
        if self._forgets and not self._held:
            self._forgets, self._most_held = False, 0

    def at_once(self, stage: str, item_bytes: int) -> int:
        """How many items of a batch may run together: as many as the reserve was made for, and at least one."""
        known = self._known.get(stage)
        if known is None:
            return 1
        part_bytes = self._first_bytes * PART_PCT // 100
        most_bytes = max(known.input_bytes, part_bytes * known.input_bytes // max(1, known.nbytes))
        return max(1, most_bytes // max(1, item_bytes))

    def _fits(self, nbytes: int) -> bool:
        return not self._taken or sum(self._taken) + sum(self._held) + nbytes <= self.reserve_bytes

    def _take(self, nbytes: int) -> int:
        """One more is at work; what all have together."""
        self._taken.append(nbytes)
        taken = sum(self._taken) + sum(self._held)
        self.reserve_bytes = max(self.reserve_bytes, taken)
        return taken

    def _go_on(self, use: Use) -> None:
        if use.held_bytes:
            self._held.remove(use.held_bytes)
            use.held_bytes = 0
            self._let_go()

    @contextmanager
    def _run_alone(self, stage: str, input_bytes: int, use: Use) -> Iterator[None]:
        """Measure a batch with nothing beside it but what is stopped; of one that is stopped, as far as it comes."""
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._alone = True
            while self._taken:
                self._changed.wait()
            kept = use.held_bytes
            self._go_on(use)
        try:
            self._give_back()
            peak = self._peak()
            yield
            use.most_bytes = max(use.most_bytes, kept + peak.above_bytes() * (100 + MARGIN_PCT) // 100)
            kept += peak.kept_bytes()
            if use.done:
                known = self._known.setdefault(stage, _Known(0, 0))
                known.input_bytes = max(known.input_bytes, input_bytes)
                known.nbytes = max(known.nbytes, use.most_bytes)
        finally:
            with self._changed:
                if use.done or use.stopped:
                    self.reserve_bytes = max(self.reserve_bytes, use.most_bytes + sum(self._held))
                self._alone = False
                self._stop(use, kept)
                self._changed.notify_all()

    def _stop(self, use: Use, nbytes: int) -> None:
        if use.stopped and nbytes:
            use.held_bytes = nbytes
            self._held.append(nbytes)
            self._most_held = max(self._most_held, sum(self._held))

    def _leave(self, nbytes: int, use: Use | None = None) -> None:
        with self._changed:
            self._taken.remove(nbytes)
            if use is not None:
                self._stop(use, nbytes)
            self._changed.notify_all()
