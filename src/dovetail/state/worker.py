"""Workers, what runs on them, and all of them together as policies may read it.

A worker here is the ingress's view of it: exact where this ingress is the only one, and what it has sent itself where
there are others. A batch that was sent before there is room for it waits in line at the worker (`Worker.line`). One
that was sent to a worker without its model is fetched for (`Batch.fetches`), and others run there meanwhile.

Rules of this file
- What runs never takes more than the device; what waits in line has been promised no more than what runs has.
- Room that comes free goes to those in line, higher classes first, before anything else is sent.
- A batch that is fetched for takes no room. When its model is there it begins, or is in line behind what runs.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush
from typing import Final

from .queue import Queue, Waiting
from .request import Item, Request
from .run_batch import NEVER_NS
from .slice import Slice
from .worker_spec import Config, WorkerSpec

__all__ = ["FULL_SHARE", "Batch", "Cluster", "Worker"]

#: Shares are whole per cents of a device.
FULL_SHARE: Final = 100
#: Free cores of a worker whose cores are not counted.
UNCOUNTED_CPUS: Final = 1 << 30
#: The part of what is expected by which a batch may well end earlier: run times are not exact.
EARLIER: Final = 10


class Worker:
    """A worker that is here: what is free, what it runs and which models it holds."""

    __slots__ = (
        "closing", "fetching", "free_cpus", "free_pct", "id", "line", "loading", "memory_bytes", "resident",
        "resident_bytes", "running", "spec", "swaps", "usd_per_cpu_ns", "usd_per_share_ns",
    )  # fmt: skip

    def __init__(self, ident: int, spec: WorkerSpec) -> None:
        self.id = ident
        self.spec = spec
        self.free_pct = FULL_SHARE
        self.free_cpus = spec.cores or UNCOUNTED_CPUS
        self.running: dict[int, Batch] = {}
        #: Those of them that were sent before there was room: they wait at the worker, higher classes first.
        self.line: list[Batch] = []
        #: How many of them wait for a model that is on its way.
        self.fetching = 0
        #: Models that it holds, with bytes, and those that were ordered and are on their way, by `StageSpec.weights`.
        self.resident: dict[str, int] = {}
        self.loading: dict[str, int] = {}
        #: What models may take; 0: no limit is known.
        self.memory_bytes = spec.memory_bytes
        #: It brings the model that a batch needs, and decides by itself what goes.
        self.swaps = False
        #: It is sent nothing new, and goes when what it runs has ended.
        self.closing = False
        #: Bytes of models that were ordered: here, or on their way.
        self.resident_bytes = 0
        self.usd_per_share_ns = spec.usd_per_hour / 3600e9 / FULL_SHARE
        self.usd_per_cpu_ns = spec.usd_per_core_hour / 3600e9

    def usd_per_ns(self, config: Config) -> float:
        """What a nanosecond of a batch in this configuration costs."""
        return config.share_pct * self.usd_per_share_ns + config.cpus * self.usd_per_cpu_ns

    def fits(self, config: Config) -> bool:
        """Whether there is room for a batch in this configuration, now and before all others."""
        return self.free_pct >= config.share_pct and self.free_cpus >= config.cpus and not self.line

    # -- what runs --------------------------------------------------------------------------------------------

    def enter(self, batch: Batch) -> None:
        """A batch was sent here: it begins if there is room, and else it is in line, or waits for its model."""
        self.running[batch.id] = batch
        if batch.sliced:
            return  # it waits for tokens at the device, whose account it is
        if batch.fetches:
            self.fetching += 1
            return
        self._begin(batch, batch.sent_ns)

    def fetched(self, weights: str, now_ns: int) -> None:
        """A model has come: those that waited for it begin if there is room, and else they are in line."""
        if self.fetching:
            for batch in self.running.values():
                if batch.fetches and batch.queue.stage.weights == weights:
                    batch.fetches = False
                    self.fetching -= 1
                    batch.begun_ns = now_ns
                    self._begin(batch, now_ns)

    def _begin(self, batch: Batch, now_ns: int) -> None:
        config = batch.config
        share_pct, cpus = config.share_pct, config.cpus
        free_pct, free_cpus = self.free_pct - share_pct, self.free_cpus - cpus
        if free_pct >= 0 and free_cpus >= 0 and not self.line:
            self.free_pct, self.free_cpus = free_pct, free_cpus
            batch.got_pct, batch.got_cpus = share_pct, cpus
            return
        batch.waits = True
        insort(self.line, batch, key=_class_of)
        if self.free_pct or self.free_cpus:
            self._settle(now_ns)

    def leave(self, batch: Batch, now_ns: int) -> None:
        """A batch is gone from here: whatever it had of the worker goes to those in line, or is free."""
        del self.running[batch.id]
        if batch.waits:
            self.line.remove(batch)
            batch.waits = False
        if batch.fetches:
            batch.fetches = False
            self.fetching -= 1
        self.free_pct += batch.got_pct
        self.free_cpus += batch.got_cpus
        batch.got_pct = batch.got_cpus = 0
        if self.line:
            self._settle(now_ns)

    def _settle(self, now_ns: int) -> None:
        """Give free room to those in line, in their order, and let begin whoever has enough."""
        line = self.line
        while line:
            batch = line[0]
            share_pct = min(self.free_pct, batch.config.share_pct - batch.got_pct)
            cpus = min(self.free_cpus, batch.config.cpus - batch.got_cpus)
            batch.got_pct += share_pct
            batch.got_cpus += cpus
            self.free_pct -= share_pct
            self.free_cpus -= cpus
            if batch.got_pct < batch.config.share_pct or batch.got_cpus < batch.config.cpus:
                return
            batch.begun_ns = now_ns
            batch.waits = False
            del line[0]

    # -- when there is room -----------------------------------------------------------------------------------

    def room_at(self, config: Config, priority: int, now_ns: int, early_ns: int = 0) -> int:
        """When there should be room for a batch in this configuration, behind all that are in line before it.

        A worker that stops between two kernels lets a higher class in at once: what lower classes have counts as
        free. Batches may end earlier than expected, by a part of their time that is no longer than `early_ns`.
        `NEVER_NS` if those in line have been promised already what runs has.
        """
        share_pct, cpus = config.share_pct, config.cpus
        free_pct, free_cpus, line = self.free_pct, self.free_cpus, self.line
        if free_pct >= share_pct and free_cpus >= cpus and not line:
            return now_ns
        preempts = self.spec.preempts
        if not line and not preempts:
            return self._next_room(share_pct, cpus, now_ns, early_ns)
        before: list[Batch] = []
        ends: list[tuple[int, int, int, int]] = []
        held_pct = owed_pct = 0
        for batch in self.running.values():
            if batch.fetches:
                continue
            lower = preempts and batch.priority() > priority
            if lower:
                free_pct += batch.got_pct
                free_cpus += batch.got_cpus
            elif batch.waits:
                owed_pct += batch.config.share_pct - batch.got_pct
            else:
                spare_ns = min(batch.expected_ns // EARLIER, early_ns)
                # What has not ended yet may end any moment, but not before.
                end_ns = max(now_ns + 1, batch.begun_ns + batch.expected_ns - spare_ns)
                ends.append((end_ns, batch.id, batch.got_pct, batch.got_cpus))
            if not batch.waits:
                held_pct += batch.got_pct
        if line:
            before = [batch for batch in line if not (preempts and batch.priority() > priority)]
        if owed_pct + share_pct > held_pct + self.free_pct:
            return NEVER_NS
        heapify(ends)
        at_ns = now_ns
        for batch in before:
            need_pct = batch.config.share_pct - batch.got_pct
            need_cpus = batch.config.cpus - batch.got_cpus
            while free_pct < need_pct or free_cpus < need_cpus:
                if not ends:
                    return NEVER_NS
                at_ns, _, pct, cores = heappop(ends)
                free_pct += pct
                free_cpus += cores
            free_pct -= need_pct
            free_cpus -= need_cpus
            heappush(ends, (at_ns + batch.expected_ns, batch.id, batch.config.share_pct, batch.config.cpus))
        while free_pct < share_pct or free_cpus < cpus:
            if not ends:
                return NEVER_NS
            at_ns, _, pct, cores = heappop(ends)
            free_pct += pct
            free_cpus += cores
        return at_ns

    def _next_room(self, share_pct: int, cpus: int, now_ns: int, early_ns: int) -> int:
        """The same where nobody is in line and nobody is stopped: batches end one after the other."""
        ends: list[tuple[int, int, int, int]] = []
        for batch in self.running.values():
            if batch.fetches:
                continue
            expected_ns = batch.expected_ns
            spare_ns = expected_ns // EARLIER
            end_ns = batch.begun_ns + expected_ns - (spare_ns if spare_ns < early_ns else early_ns)
            ends.append((end_ns if end_ns > now_ns else now_ns + 1, batch.id, batch.got_pct, batch.got_cpus))
        ends.sort()
        free_pct, free_cpus = self.free_pct, self.free_cpus
        for end_ns, _, pct, cores in ends:
            free_pct += pct
            free_cpus += cores
            if free_pct >= share_pct and free_cpus >= cpus:
                return end_ns
        return NEVER_NS


class Batch:
    """Items that run together."""

    __slots__ = (
        "_class", "begun_ns", "config", "expected_ns", "fetches", "got_cpus", "got_pct", "id", "items", "left_ns",
        "queue", "said_ns", "sent_ns", "since_ns", "slice", "sliced", "slow", "waits", "way_ns", "worker",
    )  # fmt: skip

    def __init__(
        self,
        ident: int,
        queue: Queue,
        worker: Worker,
        config: Config,
        items: list[Item],
        sent_ns: int,
        expected_ns: int,
        fetches: bool = False,
        piece: Slice | None = None,
    ) -> None:
        self.id = ident
        #: The slice that it runs in, if its stage has slices. Then it waits for tokens at the device, whose account
        #: its share is.
        self.slice = piece
        self.sliced = piece is not None
        self.queue = queue
        self.worker = worker
        self.config = config
        self.items = items
        self.sent_ns = sent_ns
        self.expected_ns = expected_ns
        #: Work alone that was left of it at a time, and how many times as long that takes beside those who are there:
        #: kept where neighbours are known to cost something (`predict.progress`).
        self.left_ns: float = float(expected_ns)
        self.since_ns = sent_ns
        self.slow = 1.0
        #: How long it was said to take when it began beside others; 0: nothing was said.
        self.said_ns = 0
        #: When its worker could begin it, as far as is known here.
        self.begun_ns = sent_ns
        #: From its end until that was known here.
        self.way_ns = 0
        #: Its worker fetches its model; it has no room yet and is not in line.
        self.fetches = fetches
        #: It is in line at its worker, and has got so much of its room.
        self.waits = False
        self.got_pct = 0
        self.got_cpus = 0
        #: Its class, once somebody has asked.
        self._class = 0

    def priority(self) -> int:
        """The highest class in it; 1 is the highest of all."""
        if not self._class:
            self._class = min([item.request.priority for item in self.items])
        return self._class


def _class_of(batch: Batch) -> int:
    return batch.priority()


class Cluster:
    """Open requests, queues, workers and batches. The controller changes them; policies only look."""

    __slots__ = (
        "batches", "declared", "holders", "homes", "hosts", "kinds", "moves", "queues", "requests", "sliced",
        "slices", "starting", "waiting", "workers",
    )  # fmt: skip

    def __init__(self, queues: dict[str, Queue], stages: list[str]) -> None:
        self.queues = queues
        #: What waits in all of them together.
        self.waiting = Waiting()
        for queue in queues.values():
            queue.count_in(self.waiting)
        self.requests: dict[int, Request] = {}
        self.workers: dict[int, Worker] = {}
        #: How many of them are host processes.
        self.hosts = 0
        self.batches: dict[int, Batch] = {}
        #: Stage name -> workers that hold its model.
        self.holders: dict[str, dict[int, Worker]] = {name: {} for name in stages}
        #: The same by kind of device; a kind without any is left out.
        self.kinds: dict[str, dict[str, dict[int, Worker]]] = {name: {} for name in stages}
        #: How often that has changed.
        self.moves = 0
        #: Stage -> its slices, as far as they are the scaler's to set.
        self.slices: dict[str, dict[int, Slice]] = {}
        #: Stage that declares a quota -> worker -> its slice there, from when it first holds the model.
        self.declared: dict[str, dict[int, Slice]] = {}
        #: Stage that declares a quota -> the worker that its batches go to, where somebody said so.
        self.homes: dict[str, int] = {}
        #: Stages whose batches run in slices of either kind and nowhere else.
        self.sliced: frozenset[str] = frozenset()
        #: Workers that were asked for and are not there yet.
        self.starting = 0

    def join(self, worker: Worker) -> None:
        """A worker is here."""
        self.workers[worker.id] = worker
        self.hosts += worker.spec.on_host

    def leave(self, ident: int) -> Worker | None:
        """A worker is gone; None if it is not known."""
        worker = self.workers.pop(ident, None)
        if worker is not None:
            self.hosts -= worker.spec.on_host
            for pieces in self.declared.values():
                pieces.pop(ident, None)
        return worker

    def hold(self, stage: str, worker: Worker) -> None:
        """The worker holds the stage's model from now on."""
        self.holders[stage][worker.id] = worker
        self.kinds[stage].setdefault(worker.spec.kind, {})[worker.id] = worker
        self.moves += 1

    def slices_with_room(self, stage: str) -> list[Slice]:
        """Slices of a stage that could take a batch now, on workers that hold its model."""
        holders, declared = self.holders[stage], self.declared.get(stage)
        if declared is None:
            return [p for p in self.slices[stage].values() if p.worker in holders and p.has_room()]
        home = self.homes.get(stage, 0)
        if home in holders:
            return [p for p in (declared[home],) if p.has_room()]
        return [p for ident, p in declared.items() if ident in holders and p.has_room()]

    def let_go(self, stage: str, worker: int) -> None:
        """The worker does not hold it any more."""
        kind = self.holders[stage].pop(worker).spec.kind
        del self.kinds[stage][kind][worker]
        if not self.kinds[stage][kind]:
            del self.kinds[stage][kind]
        self.moves += 1
