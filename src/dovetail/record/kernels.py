"""What ran on a device, kernel by kernel: the one format of simulated and live runs.

A file is JSON lines, one `KernelRecord` each, in the order of their end, such as

    {"task":3,"name":"resnet50","kernel":17,"what":"conv2d[1x64x56x56]","priority":1,"begin_ns":0,"end_ns":52000}

Fields that have their usual value are left out. Times are by a clock of the writer's choice: only differences count.
Several workers may add to one file: whole lines, in one write. A worker writes so many lines, and says that it stops.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator

import msgspec

from ..errors import DovetailError

__all__ = ["MOST_RECORDS", "KernelLog", "KernelRecord", "decode_records", "encode_record"]

#: Records that a worker writes, about 200 bytes each.
MOST_RECORDS = 250_000
#: Records that are kept until they are written together.
MOST_KEPT = 500


class KernelRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One kernel's time on the device."""

    task: int
    #: What the task runs: a model, a stage.
    name: str
    #: Position in the task's sequence.
    kernel: int
    priority: int
    begin_ns: int
    end_ns: int
    #: When it could have started; -1 where nobody wrote that down. Begin less this is its wait.
    ready_ns: int = -1
    #: The kernel's identity.
    what: str = ""
    #: `StartKernel.why`: "turn", "fill", "beside" or "aged".
    why: str = "turn"
    client: str = ""
    share_pct: int = 100
    #: When its host asked for it; -1 where nobody wrote that down.
    sent_ns: int = -1


_ENCODER = msgspec.json.Encoder()


def encode_record(record: KernelRecord) -> bytes:
    """One line, with its end."""
    return _ENCODER.encode(record) + b"\n"


def decode_records(lines: Iterable[bytes]) -> Iterator[KernelRecord]:
    """The records of a file's lines; what is no record is named by its line."""
    decoder = msgspec.json.Decoder(KernelRecord)
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise DovetailError(f"line {number} is no kernel record: {error}") from None


class KernelLog:
    """Adds to a file; safe to use from any thread."""

    def __init__(self, path: str, most: int = MOST_RECORDS) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._lines: list[bytes] = []
        self._left = most
        self._writing = threading.Lock()

    def add(self, record: KernelRecord, divided: bool = True) -> None:
        """Keep a record, and write when there are many; `divided`: it is one of several of its task."""
        with self._writing:
            if not self._left:
                return
            self._left -= 1
            self._lines.append(encode_record(record))
            many = len(self._lines) >= MOST_KEPT or not self._left
        if many:
            self.flush()

    def flush(self) -> None:
        """Write what was kept."""
        try:
            with self._writing:
                lines, self._lines = self._lines, []
                os.write(self._fd, b"".join(lines))
        except OSError as error:  # a full disk is no reason to stop serving
            self._left = 0
            print(f"kernels are no longer written to {self._path}: {error.strerror}", file=sys.stderr, flush=True)
            return
        if lines and not self._left:
            print(f"{self._path} is full: later kernels are not written", file=sys.stderr, flush=True)
