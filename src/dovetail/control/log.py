"""The run log: a header that can rebuild the controller, then every event with the actions it led to.

Both drivers write it. A replay feeds the events to a fresh controller and must get the same actions byte for byte.
The file is a sequence of frames, each a little-endian u32 length and msgpack: first `Header`, then `Step`s.
A log that was cut short (the process was killed) is read up to its last whole frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..errors import LogError
from ..profile.table import Entry
from ..workflow.graph import Graph
from .actions import Action
from .events import Event

__all__ = ["VERSION", "Header", "LogReader", "LogWriter", "Step"]

#: Raised whenever the meaning of a field changes; a log of another version is refused by name.
VERSION = 1
_LENGTH = struct.Struct("<I")
_MAX_FRAME = 64 << 20


class Header(msgspec.Struct, frozen=True):
    """What a controller is made from."""

    version: int
    #: "sim" or "live".
    world: str
    graphs: tuple[Graph, ...]
    #: The policy as `wiring.PolicySpec` writes it; opaque here, because policies are above this layer.
    policy: msgspec.Raw
    entries: tuple[Entry, ...]
    cores: int
    seed: int = 0
    #: Live only: client's own ids of requests are in `Note`s; wall clock of time 0, in Unix nanoseconds.
    started_unix_ns: int = 0


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One event and what the controller decided. `note` is the client's id of a request that has one."""

    event: Event
    actions: list[Action]
    note: str = ""


class LogWriter:
    """Appends steps to a file."""

    def __init__(self, path: Path, header: Header) -> None:
        self._file: BinaryIO = path.open("wb")
        self._encoder = msgspec.msgpack.Encoder()
        self._write(self._encoder.encode(header))

    def _write(self, frame: bytes) -> None:
        self._file.write(_LENGTH.pack(len(frame)) + frame)

    def step(self, event: Event, actions: list[Action], note: str = "") -> None:
        """Append one step."""
        self._write(self._encoder.encode(Step(event, actions, note)))

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class LogReader:
    """Reads a log; iterating gives its steps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: True once the end was found in the middle of a frame.
        self.cut_short = False
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise LogError(f"cannot read the log {path}: {error.strerror}") from None
        frame = self._frame()
        try:
            if frame is None:
                raise msgspec.DecodeError("the file is empty")
            version = msgspec.msgpack.decode(frame, type=_Version).version
            if version != VERSION:
                raise LogError(f"{path} is a log of version {version}; this Dovetail reads version {VERSION}")
            self.header = msgspec.msgpack.decode(frame, type=Header)
        except msgspec.DecodeError as error:
            raise LogError(f"{path} is not a Dovetail log: {error}") from None
        self._decoder = msgspec.msgpack.Decoder(Step)

    def _frame(self) -> bytes | None:
        head = self._file.read(_LENGTH.size)
        if not head:
            return None
        if len(head) == _LENGTH.size:
            size = _LENGTH.unpack(head)[0]
            if size > _MAX_FRAME:
                raise LogError(f"{self.path} is not a Dovetail log: a frame of {size} bytes")
            frame = self._file.read(size)
            if len(frame) == size:
                return frame
        self.cut_short = True
        return None

    def __iter__(self) -> Iterator[Step]:
        number = 0
        while (frame := self._frame()) is not None:
            number += 1
            try:
                yield self._decoder.decode(frame)
            except msgspec.DecodeError as error:
                raise LogError(f"step {number} of {self.path} cannot be read: {error}") from None
        self._file.close()


class _Version(msgspec.Struct):
    version: int = -1
