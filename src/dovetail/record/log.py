"""The run log: a header that can rebuild the controller, then every event with the actions it led to.

Both drivers write it. A replay feeds the events to a fresh controller and must get the same actions byte for byte.
The file is a sequence of frames: first `Header`, then `Step`s, in msgpack. A frame is framed as TFRecord does it:
length, check of the length, bytes, check of the bytes. The first check is what tells a log that was cut short (the
process was killed: it is read up to its last whole frame) from one that was damaged (refused, with the place).

Neither side holds more than one frame and a buffer of fixed size, however long the run was.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol, Self
from zlib import crc32

import msgspec

from ..control.actions import Action
from ..control.events import Event
from ..errors import LogError, ProfileError
from ..predict import EstimatorState
from ..profile.table import Entry
from ..version import __version__
from ..workflow.graph import Graph

__all__ = ["VERSION", "Header", "LogReader", "LogWriter", "Step", "make_header"]

#: Raised whenever the meaning of a field changes; a log of another version is refused by name.
VERSION = 2
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<II")
#: What a killed process may lose if its driver never flushes: about two thousand steps.
_BUFFER_BYTES = 256 << 10


class Header(msgspec.Struct, frozen=True):
    """What a controller is made from."""

    version: int
    #: "sim" or "live".
    world: str
    graphs: tuple[Graph, ...]
    #: A `wiring.PolicySpec` in msgpack; opaque here, because policies are above this layer.
    policy: msgspec.Raw
    entries: tuple[Entry, ...]
    cores: int
    seed: int = 0
    #: Live only: the wall clock at time 0, in Unix nanoseconds.
    started_unix_ns: int = 0
    #: What the controller had learned of times before it began.
    learned: EstimatorState | None = None
    #: The Dovetail that wrote it.
    dovetail: str = ""
    #: Which of several fronts that share workers has written it.
    ingress: int = 0


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One event and what the controller decided. `note` is the client's id of a request that has one."""

    event: Event
    actions: list[Action]
    note: str = ""


def make_header(
    world: str,
    graphs: Sequence[Graph],
    policy_spec_encoded: bytes,
    entries: Sequence[Entry],
    cores: int,
    *,
    seed: int = 0,
    started_unix_ns: int = 0,
    learned: EstimatorState | None = None,
    ingress: int = 0,
) -> Header:
    """A header of this version; the same values go to `wiring.make_controller`, before the run and in a replay."""
    policy = msgspec.Raw(policy_spec_encoded)
    rest = (seed, started_unix_ns, learned, __version__, ingress)
    return Header(VERSION, world, tuple(graphs), policy, tuple(entries), cores, *rest)


class LogFile(Protocol):
    """Where frames go: a file that is open for writing."""

    @property
    def closed(self) -> bool: ...
    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def _buffered(path: Path) -> LogFile:
    return path.open("wb", buffering=_BUFFER_BYTES)


class LogWriter:
    """Appends steps to a file. `step` has the shape of an observer of either driver.

    What cannot be written (a full disk) raises LogError once; after that steps are dropped, so that a server may go
    on serving without its log.
    """

    def __init__(self, path: Path, header: Header, open_file: Callable[[Path], LogFile] | None = None) -> None:
        """`open_file` makes the file, if it is not to be an ordinary one."""
        self.path = path
        #: It could not write and has given up.
        self.failed = False
        self._encode = msgspec.msgpack.Encoder().encode
        try:
            self._file: LogFile = (open_file or _buffered)(path)
        except OSError as error:
            raise LogError(f"cannot write the log {path}: {error.strerror}") from None
        self._write(self._encode(header))
        self.flush()

    def _write(self, frame: bytes) -> None:
        length = _LENGTH.pack(len(frame))
        try:
            self._file.write(b"".join((length, _LENGTH.pack(crc32(length)), frame, _LENGTH.pack(crc32(frame)))))
        except OSError as error:
            self._give_up(error)

    def step(self, event: Event, actions: list[Action], note: str = "") -> None:
        """Append one step."""
        if not self.failed:
            self._write(self._encode(Step(event, actions, note)))

    def flush(self) -> None:
        """Hand what was written to the operating system, so that it survives this process.

        A live driver calls it whenever it is idle and once a second; a simulation never needs to.
        """
        if self.failed:
            return
        try:
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Close for good: a frame after half a frame would make what follows unreadable."""
        self.failed = True
        with suppress(OSError):
            self._file.close()
        raise LogError(f"cannot write the log {self.path}: {error.strerror}; it ends before this step") from None

    def close(self) -> None:
        """Close the file."""
        if not self._file.closed:
            self.flush()
            try:
                self._file.close()
            except OSError as error:
                self._give_up(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LogReader:
    """Reads a log once, from its beginning; iterating gives its steps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: True once the end was found in the middle of a frame.
        self.cut_short = False
        #: Whole steps that were read.
        self.steps = 0
        #: How far it has come, and how far there is to go: for a progress bar.
        self.read_bytes = 0
        try:
            self.size_bytes = path.stat().st_size
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise LogError(f"cannot read the log {path}: {error.strerror}") from None
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise
        self._decode = msgspec.msgpack.Decoder(Step).decode

    def _read_header(self) -> Header:
        frame = self._frame("it")
        if frame is None:
            how = "was cut short before its first step" if self.cut_short else "is empty"
            raise LogError(f"{self.path} is not a Dovetail log: it {how}")
        try:
            written = msgspec.msgpack.decode(frame, type=_Version)
            if written.version != VERSION:
                raise LogError(self._refused(written))
            return msgspec.msgpack.decode(frame, type=Header)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LogError(f"{self.path} is not a Dovetail log: {error}") from None
        except ProfileError as error:
            raise LogError(f"{self.path} is a log of another version: {error}") from None

    def _refused(self, written: _Version) -> str:
        """Another version: by name, and what to do."""
        who = f"Dovetail {written.dovetail}" if written.dovetail else "another Dovetail"
        return (
            f"{self.path} is a log of version {written.version}, by {who}; this one, Dovetail {__version__}, reads "
            f"version {VERSION}. Read it with the Dovetail that wrote it, or record the run again"
        )

    def _frame(self, what: str) -> bytes | None:
        """The next frame; None at the end, be it a clean one or a cut."""
        try:
            head = self._file.read(_HEAD.size)
            if len(head) == _HEAD.size:
                length, length_check = _HEAD.unpack(head)
                if crc32(head[: _LENGTH.size]) != length_check:
                    raise LogError(self._damaged(what))
                body = self._file.read(length + _LENGTH.size)
                if len(body) == length + _LENGTH.size:
                    frame = body[:length]
                    if crc32(frame) != _LENGTH.unpack_from(body, length)[0]:
                        raise LogError(self._damaged(what))
                    self.read_bytes += _HEAD.size + len(body)
                    return frame
        except OSError as error:
            raise LogError(f"cannot read the log {self.path}: {error.strerror}") from None
        self.cut_short = bool(head)
        return None

    def _damaged(self, what: str) -> str:
        if not self.read_bytes:
            return f"{self.path} is not a Dovetail log, or its beginning is damaged"
        return f"{what} of {self.path} is damaged (at byte {self.read_bytes}); what comes before it is sound"

    def frames(self) -> Iterator[bytes]:
        """Every remaining step as it was written, for those who compare bytes."""
        while (frame := self._frame(f"step {self.steps + 1}")) is not None:
            self.steps += 1
            yield frame

    def __iter__(self) -> Iterator[Step]:
        for frame in self.frames():
            try:
                step = self._decode(frame)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise LogError(f"step {self.steps} of {self.path} cannot be read: {error}") from None
            yield step

    def go_on(self) -> None:
        """Iterate once more from the last whole frame on: the log may have grown."""
        self._file.seek(self.read_bytes)
        self.cut_short = False

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Version(msgspec.Struct):
    """What can be read of a header of any version."""

    version: int = -1
    dovetail: str = ""
