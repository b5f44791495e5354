"""Workers, what runs on them, and all of them together as policies may read it."""

from __future__ import annotations

from typing import Final

from .queue import Queue
from .request import Item, Request
from .worker_spec import Config, WorkerSpec

__all__ = ["FULL_SHARE", "Batch", "Cluster", "Worker"]

#: Shares are whole per cents of a device.
FULL_SHARE: Final = 100
#: Free cores of a worker whose cores are not counted.
UNCOUNTED_CPUS: Final = 1 << 30


class Worker:
    """A worker that is here: what is free, what it runs and which models it holds."""

    __slots__ = (
        "ahead", "free_cpus", "free_pct", "id", "lending", "loading", "look_ns", "resident", "resident_bytes",
        "running", "spec", "swaps", "usd_per_cpu_ns", "usd_per_share_ns",
    )  # fmt: skip

    def __init__(self, ident: int, spec: WorkerSpec) -> None:
        self.id = ident
        self.spec = spec
        self.free_pct = FULL_SHARE
        self.free_cpus = spec.cores or UNCOUNTED_CPUS
        self.running: dict[int, Batch] = {}
        #: Those of them that were sent before there was room, in order: they wait at the worker (`control.ahead`).
        self.ahead: list[Batch] = []
        #: Why batches are sent to it before there is room, while they are.
        self.lending = ""
        #: When its batches will be looked at next because one is about to end; 0: no timer is set.
        self.look_ns = 0
        #: Models that it holds, with bytes, and those that were ordered and are on their way, by `StageSpec.weights`.
        self.resident: dict[str, int] = {}
        self.loading: dict[str, int] = {}
        #: Its models do not fit together: it brings what a batch needs, and decides by itself what goes.
        self.swaps = False
        #: Bytes of models that were ordered: here, or on their way.
        self.resident_bytes = 0
        self.usd_per_share_ns = spec.usd_per_hour / 3600e9 / FULL_SHARE
        self.usd_per_cpu_ns = spec.usd_per_core_hour / 3600e9

    def usd_per_ns(self, config: Config) -> float:
        """What a nanosecond of a batch in this configuration costs."""
        return config.share_pct * self.usd_per_share_ns + config.cpus * self.usd_per_cpu_ns


class Batch:
    """Items that run together."""

    __slots__ = (
        "ahead", "begun_ns", "config", "expected_ns", "got_cpus", "got_pct", "id", "items",
        "lenders", "lent", "queue", "routed", "sent_ns", "worker",
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
        routed: bool = False,
    ) -> None:
        self.id = ident
        self.queue = queue
        self.worker = worker
        self.config = config
        self.items = items
        self.sent_ns = sent_ns
        self.expected_ns = expected_ns
        #: When its worker could begin it.
        self.begun_ns = sent_ns
        #: It was sent ahead by a router: its worker's queue and share account are the worker's own business.
        self.routed = routed
        #: It was sent before there was room, and has got so much of it since.
        self.ahead = False
        self.got_pct = 0
        self.got_cpus = 0
        #: Whose room it was sent into, and how many others were sent into its own.
        self.lenders: tuple[Batch, ...] = ()
        self.lent = 0

    def priority(self) -> int:
        """The highest class in it; 1 is the highest of all."""
        return min(item.request.priority for item in self.items)


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
