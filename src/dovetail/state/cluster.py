"""Everything that is going on, as policies may read it."""

from __future__ import annotations

from .queue import Queue
from .request import Request
from .worker import Batch, Worker

__all__ = ["Cluster"]


class Cluster:
    """Open requests, queues, workers and batches. The controller changes them; policies only look."""

    __slots__ = ("batches", "holders", "moves", "queues", "requests", "workers")

    def __init__(self, queues: dict[str, Queue], stages: list[str]) -> None:
        self.queues = queues
        self.requests: dict[int, Request] = {}
        self.workers: dict[int, Worker] = {}
        self.batches: dict[int, Batch] = {}
        #: Stage name -> workers that hold its model.
        self.holders: dict[str, dict[int, Worker]] = {name: {} for name in stages}
        #: How often that has changed.
        self.moves = 0

    def hold(self, stage: str, worker: Worker) -> None:
        """The worker holds the stage's model from now on."""
        self.holders[stage][worker.id] = worker
        self.moves += 1

    def let_go(self, stage: str, worker: int) -> None:
        """The worker does not hold it any more."""
        del self.holders[stage][worker]
        self.moves += 1
