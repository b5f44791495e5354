"""Who watches a live system: every step and every kernel goes there, while somebody does.

Rules of this file
- While nobody watches, a step costs one look at an attribute, and workers tell nothing.
- Who watches is trusted to return at once and to raise nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...control import Action, Event
from ..links.wire import Kernels, Watch
from .link import WorkerLink

__all__ = ["TakeKernels", "TakeStep", "Tap"]

#: Is told the event, its actions, and the client's own id of a request that has one.
TakeStep = Callable[[Event, list[Action], str], None]
#: Is told the worker, and the kernels that ran there.
TakeKernels = Callable[[int, Kernels], None]


class Tap:
    """Closed until `open` is called."""

    def __init__(self) -> None:
        self.step: TakeStep | None = None
        self._kernels: TakeKernels | None = None

    def open(self, workers: Iterable[WorkerLink], step: TakeStep, kernels: TakeKernels) -> None:
        """From now on everything is told."""
        self.step, self._kernels = step, kernels
        for worker in workers:
            self.joined(worker)

    def close(self, workers: Iterable[WorkerLink]) -> None:
        """Nobody watches any more."""
        self.step = self._kernels = None
        for worker in workers:
            worker.send(Watch(on=False))

    def joined(self, worker: WorkerLink) -> None:
        """A worker that is here has to know whether to tell."""
        if self._kernels is not None and not worker.spec.on_host:
            worker.send(Watch(on=True))

    def kernels(self, worker: int, told: Kernels) -> None:
        """A worker tells what ran on it; it may be late with it."""
        if self._kernels is not None:
            self._kernels(worker, told)
