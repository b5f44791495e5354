"""What a strict budget of memory is for: models, what loads and batches take at their peak, and some slack.

Rules of this file
- Half of it is set aside for loads and batches as long as it is not known what they take.
- Once batches have been measured, only as much is set aside as the largest of them takes, or a load, and both at once
  if all models fit beside that. The rest is for models: one that has to go is loaded again, which takes a core.
- Before a batch begins of which that is not known, because it is the first of its stage or its inputs are larger than
  any before, half is set aside again until it has run.
- Where every worker has weights of its own (`--weights own`), half stays set aside, and more if a batch takes more: a
  load takes up to twice its model then, and begins whenever somebody needs it.
- A model that takes so much more in kernels than whole that others would have to go for it stays whole: its kernels
  keep what is between them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection

from ...units import format_bytes
from .footprint import anonymous_bytes
from .working_memory import PART_PCT, WorkingMemory

__all__ = ["Budget"]

#: Half of a strict budget is set aside, so that a batch of which nothing is known yet finds room.
RUNS_PART = 2
#: What is left free of it: for buffers of the interpreter and stacks of threads, and for holes in the heap, of which
#: there are more in a larger one. With 3 MB of 80 MB one worker of eight was seen 1.6 MB above its budget.
SLACK_BYTES, SLACK_PART = 2 << 20, 20


class Budget:
    """The parts of one worker's memory."""

    def __init__(self, whole_bytes: int, models_bytes: Collection[int], load_bytes: int, *, shared: bool) -> None:
        """`models_bytes` is what each model takes, `load_bytes` what the heaviest load takes beside its model.

        `shared`: weights are read from a copy that others read, too.
        """
        self._shared = shared
        self.whole_bytes = whole_bytes
        self.load_bytes = load_bytes
        self._largest_bytes = max(models_bytes, default=0)
        self._slack_bytes = SLACK_BYTES + whole_bytes // SLACK_PART
        #: What is left if all models are there.
        self._ample_bytes = whole_bytes - sum(models_bytes) - self._slack_bytes
        runs_bytes = whole_bytes // RUNS_PART
        self._first_bytes = max(load_bytes, runs_bytes, min(load_bytes + runs_bytes, self._ample_bytes))
        self._reserve_bytes = self._first_bytes
        self.room = WorkingMemory(anonymous_bytes() + whole_bytes - self._slack_bytes, self._first_bytes)
        #: A batch is about to run, or runs, of which it is not known what it takes.
        self._awaited = False

    @property
    def usable_bytes(self) -> int:
        """What models may take of it."""
        return self.whole_bytes - min(self.whole_bytes, self._reserve_bytes + self._slack_bytes)

    def least_bytes(self, model_bytes: int) -> int:
        """What a budget has to be for a model of this size."""
        return max(model_bytes + self.load_bytes, model_bytes * RUNS_PART // (RUNS_PART - 1)) + 2 * self._slack_bytes

    def expect(self, way: str, input_bytes: int) -> tuple[int, str] | None:
        """A batch with such inputs is about to run: as `changed`."""
        if not self._shared or self.room.knows(way, input_bytes):
            return None
        self._awaited = True
        return self.changed(ended=False)

    def too_large(self, whole: str, kernels: str) -> bool:
        """Whether a stage takes too much memory in kernels; if so, it is not expected to run so any more."""
        fair_bytes = max(self._first_bytes * PART_PCT // 100, self._ample_bytes, self.room.needs(whole))
        if not self._shared or self.room.needs(kernels) <= fair_bytes:
            return False
        self.room.forget(kernels)
        return True

    def changed(self, *, ended: bool = True) -> tuple[int, str] | None:
        """What models may take from now on, and why, if something else is to be set aside than before.

        `ended`: a batch has ended or was stopped; otherwise one is about to begin.
        """
        room = self.room
        if ended and room.idle:  # also what was expected and did not come to its end
            self._awaited = False
        wanted = self._wanted_bytes()
        if wanted == self._reserve_bytes:
            return None
        self._reserve_bytes = room.reserve_bytes = wanted
        left = self.whole_bytes - wanted - self._slack_bytes
        if left < self._largest_bytes:
            enough = self._largest_bytes + wanted + self._slack_bytes
            print(
                f"dovetail: batches take up to {format_bytes(wanted)} beside their models; with the largest model "
                f"that is more than the budget of {format_bytes(self.whole_bytes)}, which may be passed. Give it at "
                f"least --memory {-(-enough // 10**6)}MB",
                file=sys.stderr,
                flush=True,
            )
        reason = f"room for batches, which take up to {format_bytes(wanted)} beside their models"
        if self._awaited:
            reason = f"room for a batch of which nothing is known yet: {format_bytes(wanted)} are set aside"
        return max(left, self._largest_bytes), reason

    def _wanted_bytes(self) -> int:
        """What is to be set aside."""
        known_bytes = self.room.known_bytes
        if not self._shared:
            return max(self._reserve_bytes, self.room.reserve_bytes)
        if self._awaited:
            return max(self._first_bytes, known_bytes)
        ample_bytes = min(self._ample_bytes, max(self._first_bytes, known_bytes + self.load_bytes))
        return max(self.load_bytes, known_bytes, ample_bytes)
