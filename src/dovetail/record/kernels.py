"""What ran on a device, kernel by kernel: the one format of simulated and live runs.

A file is JSON lines, one `KernelRecord` each, in the order of their end, such as

    {"task":3,"name":"resnet50","kernel":17,"what":"conv2d[1x64x56x56]","priority":1,"begin_ns":0,"end_ns":52000}

Fields that have their usual value are left out. Times are by a clock of the writer's choice: only differences count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ..errors import DovetailError

__all__ = ["KernelRecord", "decode_records", "encode_record"]


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
