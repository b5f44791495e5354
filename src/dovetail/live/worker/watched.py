"""Kernels that run, told to the ingresses that watch. Nothing is told of batches that ran as one piece.

Rules of this file
- Nobody waits for it: what is kept is bounded, and what does not go out is forgotten with the ingress.
- Safe to use from any thread.
"""

from __future__ import annotations

import threading

from ...record.kernels import KernelLog, KernelRecord
from ...state.run_batch import cause_of
from ..links.wire import Kernels, RanKernel
from .executor import Answer

__all__ = ["WatchedKernels"]

#: Kernels that are kept until they are told together; a message has to fit into one packet.
MOST_KEPT = 200


class WatchedKernels:
    """Takes the place of a worker's kernel log while somebody watches; the log goes on getting its records."""

    def __init__(self, log: KernelLog | None, answer: Answer) -> None:
        self._log = log
        self._answer = answer
        self._watching: set[int] = set()
        self._kept: list[RanKernel] = []
        self._lock = threading.Lock()

    def watch(self, ingress: int, on: bool) -> bool:
        """An ingress watches from now on, or no more; whether any does."""
        with self._lock:
            (self._watching.add if on else self._watching.discard)(ingress)
            return bool(self._watching)

    def add(self, record: KernelRecord, divided: bool = True) -> None:
        """A kernel ran."""
        if self._log is not None:
            self._log.add(record, divided)
        if not divided:
            return
        with self._lock:
            ran = RanKernel(
                record.task, record.name, record.kernel, record.priority, record.begin_ns, record.end_ns, record.why
            )
            self._kept.append(ran)
            many = len(self._kept) >= MOST_KEPT
        if many:
            self._tell()

    def flush(self) -> None:
        """Tell what was kept: nothing is to be done for a while."""
        if self._log is not None:
            self._log.flush()
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, []
            watching = tuple(self._watching)
        for ingress in watching if kept else ():
            own = [(cause_of(ran.task, ingress), *_rest(ran)) for ran in kept]
            self._answer(ingress, Kernels([RanKernel(*each) for each in own]))


def _rest(ran: RanKernel) -> tuple[str, int, int, int, int, str]:
    return ran.stage, ran.kernel, ran.priority, ran.begin_ns, ran.end_ns, ran.why
