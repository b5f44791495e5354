"""What front and worker say to each other over the doorbell: small messages, while tensors stay in arenas.

Rules of this file: a message is one packet of a doorbell, which is a pair that the worker inherits or a connection to
its socket. A worker's packets are trusted no further than their types: what they refer to is checked where it is read
(`codec`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ...device.tokens import QuotaMode
from ...profile.kernels import Cut
from ...profile.table import Entry
from ...state import RunBatch, WorkerRow, WorkerSpec
from ...workflow.graph import StageSpec
from ..tensors.ref import Ref


class Weighed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a worker with a strict budget has measured of one model."""

    #: `StageSpec.weights` of the stages that share it.
    weights: str
    #: Memory that it takes once it is loaded, and how much more while it is being loaded.
    nbytes: int
    transient_bytes: int
    load_ns: int


class Hello(msgspec.Struct, array_like=True, tag=True):
    """First packet to a worker: who it is. The front's arena comes with it as a descriptor."""

    worker: int
    spec: WorkerSpec
    #: module:attribute with the user's functions; empty if there are none to run.
    target: str
    #: Where the front looks for modules, so that the worker finds the user's in the same places.
    module_path: list[str]
    stages: list[StageSpec]
    #: Profile of an emulated device.
    entries: list[Entry]
    #: Cores that a batch is given: models are loaded for as many threads before they are needed.
    cpus: tuple[int, ...]
    #: Monotonic clock at the run's time 0; both sides count from it.
    origin_ns: int
    arena_bytes: int
    #: Socket at which other ingresses of this machine may join; empty is none.
    listen: str = ""
    #: `spec.memory_bytes` is a budget that must hold for all the process has: models are measured, and what batches
    #: take beside them is set aside.
    strict: bool = False
    #: What another worker of this kind has measured, so that this one need not.
    weighed: list[Weighed] = []
    #: Whether models are run kernel by kernel: always, never, or where a lower class could be in a higher one's way.
    kernels: Literal["auto", "always", "never"] = "auto"
    #: Stage -> the lowest class that its workflows declare; and the highest that any workflow declares.
    lowest: dict[str, int] = {}
    highest: int = 1
    #: File to which kernels that ran are added; empty is none.
    kernel_log: str = ""
    #: What is known of kernels, packed (`profile.kernelrows`), and where models were cut before.
    known: list[bytes] = []
    cuts: list[Cut] = []
    #: Where each of these was written, for workers that only read what was cut; empty: nowhere.
    cut_files: list[str] = []
    #: One kernel of a lower class may start per this time whatever is above it; 0: never.
    ageing_ns: int = 0
    #: Which ingress starts it; its arena is `arena_of(ingress)`.
    ingress: int = 0
    #: Whether a quota is also a limit.
    quotas: QuotaMode = "conserving"
    #: Directory of the copies of weights that all workers share; empty: each has its own.
    weights: str = ""


class Join(msgspec.Struct, array_like=True, tag=True):
    """First packet of another ingress, which shares the worker. Its arena comes with it as a descriptor."""

    ingress: int


class Attach(msgspec.Struct, array_like=True, tag=True):
    """Another worker's arena, whose descriptor comes with it."""

    arena: int


class Detach(msgspec.Struct, array_like=True, tag=True):
    """That arena holds nothing of use any more."""

    arena: int


class Load(msgspec.Struct, array_like=True, tag=True):
    """Load a stage's model: by order, to stay until `Evict`, or as a hint."""

    stage: str
    cause: int
    keep: bool = False


class Evict(msgspec.Struct, array_like=True, tag=True):
    """Let a stage's model go."""

    stage: str
    cause: int = 0
    reason: str = ""


class Argument(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One argument of one item: a value, a part or an element of it, or a list gathered from many values."""

    refs: tuple[Ref, ...]
    #: Which output of the value, or of each value, which part of that, and so on; empty is the whole of it.
    path: tuple[int, ...] = ()
    #: Which element of the list; -1 is the whole of it.
    element: int = -1
    #: The refs are the elements of a list.
    gather: bool = False


class Run(msgspec.Struct, array_like=True, tag=True):
    """Run a batch. `columns[argument][item]`; `counted[item]` are outputs whose count the controller wants."""

    #: All that was decided about it.
    batch: RunBatch
    columns: list[list[Argument]]
    counted: list[tuple[int, ...]]
    #: As in `Free`: blocks to free ride with the next batch, so that they cost no packet and wake nobody.
    free: list[int]


class Recut(msgspec.Struct, array_like=True, tag=True):
    """How models are to be cut that were whole so far."""

    cuts: list[Cut]
    #: Where each was written, for workers that only read; empty: nowhere.
    files: list[str]


class Watch(msgspec.Struct, array_like=True, tag=True):
    """Tell which kernels run from now on, or no more."""

    on: bool


class Standing(msgspec.Struct, array_like=True, tag=True):
    """A client moves from one worker to another.

    The front tells the old one. That one answers, when the client's last batch there has ended, with what the client
    asks for, has saved or owes, and is behind with. The front hands the answer on to the new one.
    """

    client: str
    #: Number of the worker that it moves to.
    to: int
    #: What it asks for; 0: it is not said yet.
    request_pct: int = 0
    limit_pct: int = 0
    saved_ns: int = 0
    behind_ns: int = 0


class Free(msgspec.Struct, array_like=True, tag=True):
    """Blocks of the worker's own arena that nobody reads any more."""

    offsets: list[int]


class Stop(msgspec.Struct, array_like=True, tag=True):
    """Finish and exit."""


class Ready(msgspec.Struct, array_like=True, tag=True):
    """First packet of a worker, with its own arena as a descriptor."""

    pid: int
    #: What it has measured, if its budget is strict, and how many bytes of models it may hold then.
    weighed: list[Weighed] = []
    usable_bytes: int = 0


class Welcome(msgspec.Struct, array_like=True, tag=True):
    """The answer to `Join`, with the worker's own arena as a descriptor."""

    worker: int
    spec: WorkerSpec
    #: Monotonic clock at the run's time 0, by which all ingresses of a worker count.
    origin_ns: int
    ready: Ready


class WantsCut(msgspec.Struct, array_like=True, tag=True):
    """A worker would run this stage's model kernel by kernel; shapes of one item, and the threads that run it."""

    stage: str
    item: tuple[tuple[int, ...], ...]
    threads: int


class Refused(msgspec.Struct, array_like=True, tag=True):
    """First and last packet of a worker that cannot start, and never will: the user's module raises, say."""

    detail: str


class Loaded(msgspec.Struct, array_like=True, tag=True):
    """A stage's model is loaded."""

    stage: str
    nbytes: int
    cause: int
    #: How long that took; 0 if it was there.
    load_ns: int = 0


class Loading(msgspec.Struct, array_like=True, tag=True):
    """A worker begins to load a model; `Loaded` or `LoadFailure` is to follow."""

    stage: str
    cause: int


class Evicted(msgspec.Struct, array_like=True, tag=True):
    """A worker has let a model go."""

    weights: str
    nbytes: int
    reason: str
    cause: int


class State(msgspec.Struct, array_like=True, tag=True):
    """What a worker says of itself, and its counts since it was started."""

    row: WorkerRow
    #: Batches that found their model here when the device was free for them, and the rest.
    hits: int
    misses: int
    loads: int
    evictions: int
    #: Bytes of models that are here or on their way, and how many bytes of models it may hold.
    held_bytes: int
    usable_bytes: int
    #: How many ingresses it serves, and bytes of results of all of them.
    ingresses: int = 1
    arena_bytes: int = 0


class Learned(msgspec.Struct, array_like=True, tag=True):
    """What a worker has seen of kernels since it last said so; packed, as others unpack it."""

    kernels: list[bytes]
    cuts: list[bytes]


class RanKernel(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One kernel of a batch that ran as several; a batch of another ingress has the number 0."""

    task: int
    stage: str
    kernel: int
    priority: int
    begin_ns: int
    end_ns: int
    #: `Grant.why`: "turn", "fill", "beside" or "aged".
    why: str


class Kernels(msgspec.Struct, array_like=True, tag=True):
    """What has run on a device that somebody watches."""

    ran: list[RanKernel]


class LoadFailure(msgspec.Struct, array_like=True, tag=True):
    """A stage's model could not be loaded."""

    stage: str
    detail: str
    cause: int


class Done(msgspec.Struct, array_like=True, tag=True):
    """A batch was run: one value per item in the worker's arena, and the counts that were asked for."""

    batch: int
    cause: int
    begin_ns: int
    end_ns: int
    results: list[Ref]
    counts: tuple[int, ...]
    #: How much of the time between was its own, if others had the device meanwhile; 0: all of it.
    busy_ns: int = 0


class Failed(msgspec.Struct, array_like=True, tag=True):
    """A batch was not run; reasons are those of `BatchFailed`."""

    batch: int
    cause: int
    begin_ns: int
    end_ns: int
    reason: str
    detail: str


ToWorker = Hello | Join | Attach | Detach | Load | Evict | Run | Recut | Watch | Standing | Free | Stop
FromWorker = (
    Ready
    | Welcome
    | Refused
    | Loading
    | Loaded
    | LoadFailure
    | Evicted
    | State
    | Learned
    | WantsCut
    | Kernels
    | Standing
    | Done
    | Failed
)

#: Workers and arenas that one ingress may have: numbers of another's begin beyond.
_MOST_WORKERS = 20
#: Ingresses that may join a worker, beside the one that has started it; they are numbered from 1.
MOST_INGRESSES = 15


def arena_of(ingress: int) -> int:
    """Number of an ingress's own arena; those of workers that it has started follow it."""
    return ingress << _MOST_WORKERS
