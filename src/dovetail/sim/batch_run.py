"""A batch on a simulated device: its kernels, and the grant that it has."""

from __future__ import annotations

from itertools import pairwise

from ..control import RunBatch
from .fluid import Flow

__all__ = ["BatchRun"]


class BatchRun(Flow):
    """A batch that was taken and is not answered yet."""

    #: Work up to the end of each of its kernels; () while that is not known.
    ends_ns: tuple[int, ...] = ()
    #: Kernels of its grant: the first, and the first that is not to run.
    first = 0
    stop = 1
    #: When it first began; -1 before.
    first_ns = -1
    #: How long it had the device, if it was stopped in between.
    busy_ns = 0

    def __init__(self, task: int, action: RunBatch, counts: tuple[int, ...]) -> None:
        self.task = task
        self.action = action
        #: How many elements its results have, where that counts.
        self.counts = counts

    def spans(self, now_ns: int) -> tuple[tuple[int, int], ...]:
        """When each kernel of the grant that ends now ran, at an even rate."""
        before_ns = self.ends_ns[self.first - 1] if self.first else 0
        work_ns = self.ends_ns[self.stop - 1] - before_ns
        took_ns = now_ns - self.begin_ns
        ends = (
            self.begin_ns + (end_ns - before_ns) * took_ns // max(1, work_ns)
            for end_ns in self.ends_ns[self.first : self.stop]
        )
        return tuple(pairwise((self.begin_ns, *ends)))
