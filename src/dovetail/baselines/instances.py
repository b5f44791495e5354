"""Instances of functions on workers, for the rivals that scale them (INFless, FaST-GShare).

Rules of this file
- An instance is a reservation: one configuration on one worker for one function. It runs one batch at a time.
- Whether an instance is busy is not remembered but read from the workers, so a batch that failed or a worker that was
  lost cannot leave an instance busy for ever. Instances of a function with the same worker and configuration are
  interchangeable.
- Starting an instance takes no time: models are resident everywhere in the worlds these rivals run in. That favours
  them; in their own papers an instance has a cold start.
- A function that has no instance (none could be placed yet) is served anywhere in its smallest configurations, so
  nothing waits for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from ..plan import Hold
from ..state import Batch, Cluster, Config, Item, Queue, Worker
from ..units import SECOND
from .common import BestFitPlacer, Market, Rival

__all__ = ["Fleet", "FleetPlacer", "Instance", "InstancePlanner"]

_Group = tuple[str, int, Config]


class Instance(msgspec.Struct, eq=False):
    """One configuration reserved on one worker for one function."""

    worker: int
    config: Config
    #: Requests per second that it can serve, and the least that fill its batches in time.
    max_rps: float
    min_rps: float = 0.0
    #: How long the first item may wait for the batch to fill.
    timeout_ns: int = 0
    #: Part of the time in which it may run.
    quota: float = 1.0


class Fleet:
    """All instances, by queue."""

    def __init__(self) -> None:
        self._by_queue: dict[str, list[Instance]] = {}
        #: (queue, worker, configuration) -> when instances that used up their quota may run again.
        self._resting: dict[_Group, list[int]] = {}
        self.cluster: Cluster | None = None

    def of(self, key: str) -> list[Instance]:
        """Instances of a function on workers that are still there."""
        assert self.cluster is not None, "bind comes first"
        workers = self.cluster.workers
        alive = [i for i in self._by_queue.get(key, ()) if i.worker in workers]
        self._by_queue[key] = alive
        return alive

    def add(self, key: str, instance: Instance) -> None:
        """Reserve."""
        self._by_queue.setdefault(key, []).append(instance)

    def remove(self, key: str, instance: Instance) -> None:
        """Give back; a batch that it runs runs on."""
        self._by_queue[key] = [i for i in self._by_queue[key] if i is not instance]

    def reserved(self) -> dict[int, tuple[float, int]]:
        """Worker -> (share times quota in per cent, cores) that its instances hold."""
        held: dict[int, tuple[float, int]] = {}
        for key in list(self._by_queue):
            for i in self.of(key):
                area, cpus = held.get(i.worker, (0.0, 0))
                held[i.worker] = (area + i.config.share_pct * i.quota, cpus + i.config.cpus)
        return held

    def free(self, queue: Queue, now_ns: int) -> list[Instance]:
        """Instances that could start a batch now: idle, within their quota, and with room on their worker."""
        assert self.cluster is not None, "bind comes first"
        workers = self.cluster.workers
        taken: Counter[_Group] = Counter()
        counted: set[int] = set()
        found = []
        for instance in self.of(queue.key):
            worker, config = workers[instance.worker], instance.config
            if worker.id not in counted:
                counted.add(worker.id)
                for batch in worker.running.values():
                    if batch.queue is queue:
                        taken[queue.key, worker.id, batch.config] += 1
            group = (queue.key, worker.id, config)
            if group in self._resting:
                taken[group] += self._still_resting(group, now_ns) if group not in counted_rest(found, group) else 0
            if taken[group]:
                taken[group] -= 1
            elif worker.free_pct >= config.share_pct and worker.free_cpus >= config.cpus:
                found.append(instance)
        return found
