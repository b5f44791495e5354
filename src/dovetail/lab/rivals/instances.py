"""Instances of functions on workers, for the rivals that scale them (INFless, FaST-GShare).

Rules of this file
- An instance is a reservation: one configuration on one worker for one function. It runs one batch at a time.
- Whether an instance is busy is not remembered but read from the workers, so neither a failed batch nor a lost worker
  can leave it busy for ever. A function's instances of one configuration on one worker are interchangeable.
- Starting an instance takes no time: models are resident everywhere in the worlds these rivals run in. That favours
  them; their own papers spend pages on cold starts.
- A function without an instance (none could be placed) is served anywhere in its spare configurations, so nothing
  waits for ever.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from ...place.fit import best_fit
from ...schedule import Hold
from ...state import Cluster, Config, Item, Queue, Worker
from ...units import SECOND
from .common import MAX_OPEN, Market, Rival

__all__ = ["Fleet", "Instance", "InstancePlanner"]

#: Ticks without an arrival after which a function is looked at all the same.
IDLE_TICKS = 5
#: (worker, configuration)
_Slot = tuple[int, Config]


class Instance(msgspec.Struct, frozen=True):
    """One configuration reserved on one worker for one function."""

    worker: int
    config: Config
    #: Requests per second that it can serve, and the least that fill its batches in time.
    max_rps: float
    min_rps: float = 0.0
    #: How long the first item may wait for the batch to fill.
    timeout_ns: int = 0
    #: Part of the time that is reserved for it.
    quota: float = 1.0


class Fleet:
    """All instances, by queue, worker and configuration."""

    def __init__(self) -> None:
        self.cluster: Cluster
        self._slots: dict[str, dict[_Slot, list[Instance]]] = {}

    def of(self, key: str) -> list[Instance]:
        """Instances of a function."""
        return [i for members in self._living(key).values() for i in members]

    def add(self, key: str, instance: Instance) -> None:
        """Reserve."""
        slots = self._slots.setdefault(key, {})
        slots.setdefault((instance.worker, instance.config), []).append(instance)

    def remove(self, key: str, instance: Instance) -> None:
        """Give back; a batch that runs on it runs on."""
        slot = (instance.worker, instance.config)
        members = self._slots[key][slot]
        members.remove(instance)
        if not members:
            del self._slots[key][slot]

    def by_worker(self) -> dict[int, list[Instance]]:
        """Instances of all functions on each worker that is there."""
        held: dict[int, list[Instance]] = {worker: [] for worker in self.cluster.workers}
        for key in self._slots:
            for slot, members in self._living(key).items():
                held[slot[0]].extend(members)
        return held

    def free(self, queue: Queue) -> list[Instance]:
        """One instance of each slot that could start a batch now: idle, and with room on its worker."""
        found = []
        for slot, members in self._living(queue.key).items():
            worker, config = self.cluster.workers[slot[0]], slot[1]
            if worker.free_pct < config.share_pct or worker.free_cpus < config.cpus:
                continue
            if len(members) > sum(b.queue is queue and b.config == config for b in worker.running.values()):
                found.append(members[0])
        return found

    def _living(self, key: str) -> dict[_Slot, list[Instance]]:
        """Slots on workers that are still there."""
        slots = self._slots.get(key, {})
        workers = self.cluster.workers
        if any(slot[0] not in workers for slot in slots):
            slots = self._slots[key] = {s: members for s, members in slots.items() if s[0] in workers}
        return slots


class InstancePlanner(Rival):
    """Measures each function's arrival rate and lets the rival rescale its instances, once per `tick_ns` at most.

    A function is rescaled when one of its items arrives, so that a new instance is offered to its queue in that very
    step; nothing would ask for another queue's work. Functions that nothing arrives for can only shrink.
    """

    def __init__(self, market: Market, *, tick_ns: int, rate_weight: float, max_open: int = MAX_OPEN) -> None:
        super().__init__(market, max_open=max_open)
        self.fleet = Fleet()
        #: Queue -> requests per second, an exponentially weighted mean over ticks.
        self.rps: dict[str, float] = {}
        self._tick_ns = tick_ns
        self._rate_weight = rate_weight
        self._arrived: dict[str, int] = {}
        self._ticked_ns: dict[str, int] = {}

    def bind(self, cluster: Cluster) -> None:
        """The fleet looks at the workers."""
        self.fleet.cluster = cluster
        super().bind(cluster)

    def place(self, queue: Queue, config: Config, holders: Mapping[int, Worker]) -> Worker | None:
        """A free instance of that configuration; if the function has none at all, where it fits best."""
        if not self.fleet.of(queue.key):
            return best_fit(holders.values(), config)
        for instance in self.fleet.free(queue):
            if instance.config == config and instance.worker in holders:
                return holders[instance.worker]
        return None

    def count(self, item: Item, now_ns: int) -> None:
        """Count an arrival, and rescale its function if it is time."""
        key = item.request.graph.nodes[item.node].queue.key
        if key not in self._ticked_ns:
            self._ticked_ns[key], self._arrived[key] = now_ns, 0
        self._arrived[key] += 1
        if now_ns - self._ticked_ns[key] >= self._tick_ns:
            idle = [k for k, ticked_ns in self._ticked_ns.items() if now_ns - ticked_ns >= IDLE_TICKS * self._tick_ns]
            for due in dict.fromkeys([key, *idle]):
                self._tick(self.cluster.queues[due], now_ns)

    def _tick(self, queue: Queue, now_ns: int) -> None:
        key = queue.key
        seen = self._arrived[key] * SECOND / (now_ns - self._ticked_ns[key])
        self._arrived[key], self._ticked_ns[key] = 0, now_ns
        before = self.rps.get(key, seen)
        self.rps[key] = before + self._rate_weight * (seen - before)
        self.rescale(queue, self.rps[key])

    @abstractmethod
    def rescale(self, queue: Queue, rps: float) -> None:
        """Add or remove instances of a function for a measured rate."""

    @abstractmethod
    def spare(self, queue: Queue) -> Sequence[Config]:
        """What a function runs in anywhere while it has no instance."""

    def decide(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """The largest batch that can be filled on a free instance; or a part of one whose time is up; or a hold."""
        if not self.fleet.of(queue.key):
            return self.spare(queue)
        free = self.fleet.free(queue)
        if not free:
            return ()  # all are busy, or their workers are full: the end of a batch asks again
        full = [i.config for i in free if i.config.batch <= queue.size]
        if full:
            return sorted(full, key=lambda c: -c.batch)
        head = queue.head()
        assert head is not None, "the controller asks for queues with work"
        due_ns = min(head.queued_ns + i.timeout_ns for i in free)
        if due_ns > now_ns:
            return Hold(due_ns, "waits for a batch to fill")
        due = [i.config for i in free if head.queued_ns + i.timeout_ns <= now_ns]
        return sorted(due, key=lambda c: c.batch)
