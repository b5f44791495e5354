"""What front and worker say to each other over the doorbell: small messages, while tensors stay in arenas.

Rules of this file: messages are msgpack of tagged records, one per packet of a SOCK_SEQPACKET pair that the worker
inherits, or of a connection to its socket; file descriptors travel beside them. Nothing is pickled. A worker's
packets are trusted no further than their types: what they refer to is checked where it is read (`codec`).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from ...profile.kernels import Cut
from ...profile.table import Entry
from ...state import RunBatch, WorkerRow, WorkerSpec
from ...workflow.graph import StageSpec
from ..tensors.codec import Ref

__all__ = [
    "MOST_INGRESSES",
    "Argument",
    "Attach",
    "Detach",
    "Done",
    "Doorbell",
    "Evict",
    "Evicted",
    "Failed",
    "Free",
    "FromWorker",
    "Hello",
    "Join",
    "Learned",
    "Load",
    "LoadFailure",
    "Loaded",
    "Loading",
    "Ready",
    "Recut",
    "Refused",
    "Run",
    "State",
    "Stop",
    "ToWorker",
    "WantsCut",
    "Weighed",
    "Welcome",
    "arena_of",
    "pair",
    "widen",
]

#: Largest packet. Linux takes packets up to twice `net.core.wmem_max`, which is 208 KiB unless somebody raised it.
#: What is larger (a thousand elements gathered from a thousand blocks) goes through a file in memory.
MAX_PACKET_BYTES = 128 << 10
#: Stands for a message that lies in the first descriptor beside it; no msgpack begins with this byte.
_IN_FILE = b"\xc1"
_MAX_FDS = 4
#: A socket option that `socket` has no name for.
SO_TIMESTAMPNS = 35
# Made once: combining flags of an enumeration takes as long as the system call.
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * _MAX_FDS) + socket.CMSG_SPACE(16)  # descriptors, and a stamp
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


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
    #: One kernel of a lower class may start per this time whatever is above it; 0: never.
    ageing_ns: int = 0
    #: Which ingress starts it; its arena is `arena_of(ingress)`.
    ingress: int = 0


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
    #: Which output of the value, which part of that, and so on; empty is the whole of it.
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


ToWorker = Hello | Join | Attach | Detach | Load | Evict | Run | Recut | Free | Stop
FromWorker = (
    Ready | Welcome | Refused | Loading | Loaded | LoadFailure | Evicted | State | Learned | WantsCut | Done | Failed
)

#: Workers and arenas that one ingress may have: numbers of another's begin beyond.
_MOST_WORKERS = 20
#: Ingresses that may join a worker, beside the one that has started it; they are numbered from 1.
MOST_INGRESSES = 15


def arena_of(ingress: int) -> int:
    """Number of an ingress's own arena; those of workers that it has started follow it."""
    return ingress << _MOST_WORKERS


Incoming = TypeVar("Incoming")
_encode = msgspec.msgpack.Encoder().encode


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a doorbell."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        widen(end)
    return ends


def widen(sock: socket.socket) -> None:
    """Room for many packets; the kernel gives what it allows."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * MAX_PACKET_BYTES)


class Doorbell(Generic[Incoming]):
    """One end: whole messages in and out, in order. Blocks or raises BlockingIOError as its socket does."""

    def __init__(self, sock: socket.socket, incoming: Any) -> None:
        self._sock = sock
        self._decode = msgspec.msgpack.Decoder(incoming).decode
        self._buffer = bytearray(MAX_PACKET_BYTES)
        self._view = memoryview(self._buffer)
        #: When the last packet was put here, as the kernel writes it; for ends that ask for it.
        self._stamp = b""

    def fileno(self) -> int:
        """Descriptor to wait on."""
        return self._sock.fileno()

    def setblocking(self, blocking: bool) -> None:
        """Whether `send` and `receive` wait."""
        self._sock.setblocking(blocking)

    def send(self, message: ToWorker | FromWorker, fds: Sequence[int] = ()) -> None:
        """One message; its descriptors stay the caller's. Raises OSError when the other end is gone."""
        data = _encode(message)
        if len(data) <= MAX_PACKET_BYTES:
            if fds:
                socket.send_fds(self._sock, [data], list(fds))
            else:
                self._sock.send(data)
            return
        file = os.memfd_create("dovetail-message", os.MFD_CLOEXEC)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
            socket.send_fds(self._sock, [_IN_FILE], [file, *fds])
        finally:
            os.close(file)

    def receive(self) -> tuple[Incoming, list[int]] | None:
        """One message and its descriptors, which are the caller's now; None when the other end is gone."""
        nbytes, ancillary, flags, _ = self._sock.recvmsg_into([self._buffer], _ANCILLARY_BYTES)
        fds: list[int] = []
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.extend(memoryview(data[: len(data) // 4 * 4]).cast("i"))
            elif level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                self._stamp = data
        if not nbytes:
            return None
        try:
            if flags & _CUT:
                raise msgspec.DecodeError("a packet was cut")
            if nbytes == 1 and self._buffer[0] == _IN_FILE[0]:
                file = fds.pop(0)
                with open(file, "rb") as reader:
                    return self._decode(os.pread(reader.fileno(), os.fstat(file).st_size, 0)), fds
            return self._decode(self._view[:nbytes]), fds
        except BaseException:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)
            raise

    def close(self) -> None:
        """Close this end."""
        self._view.release()
        self._sock.close()
