"""What front and worker say to each other over the doorbell: small messages, while tensors stay in arenas.

Rules of this file: messages are msgpack of tagged records, one per packet of a SOCK_SEQPACKET pair that the worker
inherits; file descriptors travel beside them. Nothing is pickled. A worker's packets are trusted no further than
their types: what they refer to is checked where it is read (`codec`).
"""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from ..profile.table import Entry
from ..state import WorkerSpec
from ..workflow.graph import StageSpec
from .codec import Ref

__all__ = [
    "Argument",
    "Attach",
    "Detach",
    "Done",
    "Evict",
    "Failed",
    "Free",
    "FromWorker",
    "Hello",
    "Load",
    "LoadFailure",
    "Loaded",
    "Ready",
    "Run",
    "Stop",
    "ToWorker",
    "pair",
    "receive",
    "send",
]

#: Largest packet: a batch of a thousand items with several arguments each is far below.
MAX_PACKET_BYTES = 4 << 20


class Hello(msgspec.Struct, array_like=True, tag=True):
    """First packet to a worker: who it is. The front's arena comes with it as a descriptor."""

    worker: int
    spec: WorkerSpec
    #: module:attribute with the user's functions; empty if there are none to run.
    target: str
    stages: list[StageSpec]
    #: Profile of an emulated device.
    entries: list[Entry]
    #: Monotonic clock at the run's time 0; both sides count from it.
    origin_ns: int
    arena_bytes: int
    seed: int


class Attach(msgspec.Struct, array_like=True, tag=True):
    """Another worker's arena, whose descriptor comes with it."""

    arena: int


class Detach(msgspec.Struct, array_like=True, tag=True):
    """That arena holds nothing of use any more."""

    arena: int


class Load(msgspec.Struct, array_like=True, tag=True):
    """Load a stage's model."""

    stage: str
    cause: int


class Evict(msgspec.Struct, array_like=True, tag=True):
    """Let a stage's model go."""

    stage: str


class Argument(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One argument of one item: a value, one of its outputs, one element of it, or a list gathered from many."""

    refs: tuple[Ref, ...]
    #: Which output of the value; -1 is the whole of it.
    output: int = -1
    #: Which element of the list; -1 is the whole of it.
    element: int = -1
    #: The refs are the elements of a list.
    gather: bool = False


class Run(msgspec.Struct, array_like=True, tag=True):
    """Run a batch. `columns[argument][item]`; `counted[item]` are outputs whose count the controller wants."""

    batch: int
    cause: int
    stage: str
    cpus: int
    share_pct: int
    earliest_ns: int
    latest_ns: int
    columns: list[list[Argument]]
    counted: list[tuple[int, ...]]


class Free(msgspec.Struct, array_like=True, tag=True):
    """Blocks of the worker's own arena that nobody reads any more."""

    offsets: list[int]


class Stop(msgspec.Struct, array_like=True, tag=True):
    """Finish and exit."""


class Ready(msgspec.Struct, array_like=True, tag=True):
    """First packet of a worker, with its own arena as a descriptor."""

    pid: int


class Loaded(msgspec.Struct, array_like=True, tag=True):
    """A stage's model is loaded."""

    stage: str
    nbytes: int
    cause: int


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


class Failed(msgspec.Struct, array_like=True, tag=True):
    """A batch was not run; reasons are those of `BatchFailed`."""

    batch: int
    cause: int
    begin_ns: int
    end_ns: int
    reason: str
    detail: str


ToWorker = Hello | Attach | Detach | Load | Evict | Run | Free | Stop
FromWorker = Ready | Loaded | LoadFailure | Done | Failed

_encode = msgspec.msgpack.Encoder().encode


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a doorbell."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PACKET_BYTES)
    return ends


def send(sock: socket.socket, message: ToWorker | FromWorker, fds: list[int] | None = None) -> None:
    """One packet; raises BlockingIOError on a non-blocking socket whose other end does not keep up."""
    if fds:
        socket.send_fds(sock, [_encode(message)], fds)
    else:
        sock.send(_encode(message))


def receive(sock: socket.socket, decoder: msgspec.msgpack.Decoder[Any]) -> tuple[Any, list[int]] | None:
    """One packet and its descriptors; None when the other end is gone."""
    data, fds, _, _ = socket.recv_fds(sock, MAX_PACKET_BYTES, 1)
    if not data:
        return None
    return decoder.decode(data), fds
