"""The doorbell: a socket over which two processes exchange small messages, whole and in order.

Messages are msgpack of tagged records, one per packet of a SOCK_SEQPACKET socket; file descriptors travel beside
them. Nothing is pickled. What the messages are is said in `wire`.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["MAX_PACKET_BYTES", "SO_TIMESTAMPNS", "Doorbell", "Incoming", "pair", "widen"]

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

    def send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
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
