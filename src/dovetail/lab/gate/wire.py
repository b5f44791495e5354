"""What clients and a gated device say to each other: small messages, while tensors stay in memory that both map.

Rules of this file: as in `live.links.wire`. A client is one end of a socket pair; its other end being closed, for
whatever reason, is the end of all its tasks. Numbers of tasks and programs are the client's own. A message counts
from when it is in the device's socket, by the kernel's stamp: earlier nobody could know of it, and later, when it is
read, a kernel may have ended meanwhile.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec
import numpy as np

from ...live.links.doorbell import SO_TIMESTAMPNS, Doorbell, Incoming
from ...live.links.wire import ToWorker
from ...live.tensors.arena import ALIGN_BYTES
from ...profile.kernels import KernelStats
from ...record.kernels import KernelRecord
from ...units import SECOND
from .source import Source

__all__ = [
    "MAX_DETAIL_CHARS",
    "Begin",
    "Cancel",
    "Close",
    "Ended",
    "Finished",
    "FromDevice",
    "GateHello",
    "GatePolicy",
    "Join",
    "Launch",
    "Line",
    "Open",
    "OpenFailed",
    "Opened",
    "Report",
    "Reported",
    "Tensor",
    "ToDevice",
    "layout",
    "stamp_arrivals",
    "views",
]

Shape = tuple[int, ...]
#: What goes wrong is told in so many characters at most.
MAX_DETAIL_CHARS = 2000
_STAMP = struct.Struct("qq")
#: Readings of two clocks that took longer do not tell how far they are apart.
CLOCKS_NS = 5_000


class GatePolicy(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Which arbiter decides, see `arbiters`. As a message: from now on; tasks that are there are given up."""

    name: Literal["fifo", "slices", "tasks", "fikit", "ours"]
    #: One kernel of a lower class may start per this time, whatever the gap; 0: never.
    ageing_ns: int = 0
    #: Whether durations and gaps are learned while running.
    learn: bool = False


class GateHello(msgspec.Struct, array_like=True, tag=True):
    """First packet to a device: what it is."""

    #: The core that kernels run on; -1: any.
    core: int
    policy: GatePolicy
    #: What is known of kernels already.
    stats: list[KernelStats]
    #: A kernel that runs longer ends the process: native code cannot be interrupted otherwise.
    kernel_bound_ns: int
    #: A task that holds the device and launches nothing for so long is given up, and its client with it.
    patience_ns: int
    #: In a gap the device looks for launches all the time for so long before it sleeps.
    spin_ns: int
    module_path: list[str]


class Join(msgspec.Struct, array_like=True, tag=True):
    """A new client, whose socket comes with it."""

    client: int


class Report(msgspec.Struct, array_like=True, tag=True):
    """Tell what ran since the last report, and what is known of kernels."""


class Open(msgspec.Struct, array_like=True, tag=True):
    """Make a model's kernels ready for inputs of these shapes."""

    program: int
    #: Task key: statistics are kept by it, so clients with other gaps need another.
    name: str
    source: Source
    shapes: dict[str, Shape]


class Close(msgspec.Struct, array_like=True, tag=True):
    """Let a program and its memory go."""

    program: int


class Begin(msgspec.Struct, array_like=True, tag=True):
    """A task: one run of a program, whose inputs are written. The first `launch` kernels may start."""

    task: int
    program: int
    #: 1 is the highest class.
    priority: int
    launch: int
    #: When its host asked for it (monotonic clock, which all processes of a machine share). It counts from when it
    #: came, not from this: it may be on its way for as long as the host's process is kept from its core.
    at_ns: int
    #: A task of the same client; if that is not over yet this one begins at its end, however it ends. 0: none.
    after: int = 0


class Launch(msgspec.Struct, array_like=True, tag=True):
    """All kernels of a task before this position may start."""

    task: int
    upto: int
    #: As in `Begin`.
    at_ns: int


class Cancel(msgspec.Struct, array_like=True, tag=True):
    """Give a task up; a kernel that runs runs out."""

    task: int


class Tensor(msgspec.Struct, array_like=True, frozen=True):
    """Where a tensor lies in a program's memory."""

    name: str
    dtype: str
    shape: Shape
    offset: int


class Opened(msgspec.Struct, array_like=True, tag=True):
    """A program is ready; its memory comes with it as a descriptor."""

    program: int
    kernels: list[str]
    inputs: list[Tensor]
    outputs: list[Tensor]


class OpenFailed(msgspec.Struct, array_like=True, tag=True):
    """A program could not be made."""

    program: int
    detail: str


class Finished(msgspec.Struct, array_like=True, tag=True):
    """All that was launched of a task has run; times are those of its last kernel (monotonic clock)."""

    task: int
    kernel: int
    begin_ns: int
    end_ns: int


class Ended(msgspec.Struct, array_like=True, tag=True):
    """A task is over before its time: "error", "cancelled" or "dropped"."""

    task: int
    reason: str
    detail: str


class Reported(msgspec.Struct, array_like=True, tag=True):
    """Kernels in the order of their end, and all statistics."""

    records: list[KernelRecord]
    stats: list[KernelStats]
    #: Tasks that are there.
    tasks: int


ToDevice = GateHello | GatePolicy | Join | Report | Open | Close | Begin | Launch | Cancel
FromDevice = Opened | OpenFailed | Finished | Ended | Reported


class Line(Doorbell[Incoming]):
    """A doorbell for these messages."""

    def arrived_ns(self, sent_ns: int) -> int:
        """When the packet that was read last was put here (monotonic clock); its socket has to `stamp_arrivals`.

        Stamps are by the clock of the day, which may have been set since: no packet came before it was sent, as its
        sender says, or after now.
        """
        seconds, ns = _STAMP.unpack(self._stamp)
        while True:
            before_ns = time.monotonic_ns()
            day_ns = time.time_ns()
            after_ns = time.monotonic_ns()
            if after_ns - before_ns < CLOCKS_NS:
                arrived_ns = int(seconds * SECOND + ns - day_ns + (before_ns + after_ns) // 2)
                return min(max(arrived_ns, sent_ns), after_ns)

    def send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        """As `Doorbell.send`, which packs any record."""
        super().send(cast(ToWorker, message), fds)


def stamp_arrivals(sock: socket.socket) -> None:
    """Let the kernel note when each packet is put into this socket: from then on it can be read there."""
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def layout(tensors: Sequence[tuple[str, str, Shape]], offset: int) -> tuple[list[Tensor], int]:
    """Tensors one after the other from `offset` on, and where they end."""
    placed = []
    for name, dtype, shape in tensors:
        placed.append(Tensor(name, dtype, shape, offset))
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        offset += -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
    return placed, offset


def views(memory: Any, tensors: Sequence[Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors in a mapping."""
    return {
        t.name: np.frombuffer(memory, t.dtype, int(np.prod(t.shape, dtype=np.int64)), t.offset).reshape(t.shape)
        for t in tensors
    }
