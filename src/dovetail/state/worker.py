"""Workers and what runs on them."""

from __future__ import annotations

from typing import Final

import msgspec

from .item import Item
from .queue import Queue
from .run_batch import FULL_QUOTA

__all__ = ["FULL_SHARE", "Batch", "Config", "Worker", "WorkerSpec"]

#: Shares are whole per cents of a device.
FULL_SHARE: Final = 100
#: Free cores of a worker whose cores are not counted.
UNCOUNTED_CPUS: Final = 1 << 30


class Config(msgspec.Struct, frozen=True, gc=False):
    """How a stage is run: largest batch, processor cores, share of the device and of its time in per cent."""

    batch: int
    cpus: int
    share_pct: int
    #: Part of the device's time.
    quota_pct: int = FULL_QUOTA


class WorkerSpec(msgspec.Struct, frozen=True):
    """A worker as it introduces itself when it joins."""

    name: str
    #: What kind of device it is; profiles are kept by kind: "cpu", "host", "v100"...
    kind: str
    #: Kinds of stages it can run: "onnx", "python", "model".
    runs: tuple[str, ...]
    #: Processor cores that batches on it share; 0 if they are not counted.
    cores: int = 0
    memory_bytes: int = 0
    #: Price of the whole device; a batch pays for its share of it.
    usd_per_hour: float = 0.0
    #: What holds a share of this device: "none", "cooperative", "mps", "mig", "simulated".
    enforcement: str = "none"
    #: Price of one core beside the device; a batch pays for the cores it takes.
    usd_per_core_hour: float = 0.0
    #: It may stop a batch between two kernels: one of a higher class takes the device from a lower one.
    preempts: bool = False

    @property
    def on_host(self) -> bool:
        """Whether it runs ordinary Python instead of models."""
        return "python" in self.runs


class Worker:
    """A worker that is here: what is free, what it runs and which models it holds."""

    __slots__ = (
        "ahead",
        "free_cpus",
        "free_pct",
        "id",
        "lending",
        "loading",
        "look_ns",
        "resident",
        "resident_bytes",
        "running",
        "spec",
        "swaps",
        "usd_per_cpu_ns",
        "usd_per_share_ns",
    )

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
        "ahead",
        "begun_ns",
        "config",
        "expected_ns",
        "expected_spread",
        "got_cpus",
        "got_pct",
        "id",
        "items",
        "lenders",
        "lent",
        "queue",
        "routed",
        "sent_ns",
        "worker",
    )

    def __init__(
        self,
        ident: int,
        queue: Queue,
        worker: Worker,
        config: Config,
        items: list[Item],
        sent_ns: int,
        expected_ns: int,
        expected_spread: float = 0.0,
    ) -> None:
        self.id = ident
        self.queue = queue
        self.worker = worker
        self.config = config
        self.items = items
        self.sent_ns = sent_ns
        self.expected_ns = expected_ns
        #: Standard deviation over mean of the expected run time.
        self.expected_spread = expected_spread
        #: When its worker could begin it.
        self.begun_ns = sent_ns
        #: It was sent ahead by a router: its worker's queue and share account are the worker's own business.
        self.routed = False
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
