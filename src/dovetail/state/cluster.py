"""Everything that is going on, as policies may read it."""

from __future__ import annotations

from .queue import Queue
from .request import Request
from .worker import Batch, Worker

__all__ = ["Cluster"]


class Cluster:
    """Open requests, queues, workers and batches. The controller changes them; policies only look."""

    __slots__ = ("batches", "holders", "queues", "requests", "workers")

    def __init__(self, queues: dict[str, Queue], stages: list[str]) -> None:
        self.queues = queues
        self.requests: dict[int, Request] = {}
        self.workers: dict[int, Worker] = {}
        self.batches: dict[int, Batch] = {}
        #: Stage name -> workers that hold its model.
        self.holders: dict[str, dict[int, Worker]] = {name: {} for name in stages}
