"""What a front and the process that watches it say to each other: frames over a socket between the two.

A frame is its length in four bytes, its kind in one, and a body: msgpack on the way to the watcher, JSON back, which
the front hands on as it is.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Literal

import msgspec

from ..predict import EstimatorState
from .follow import Present
from .log import Header
from .sight import Banner

__all__ = ["Ask", "Begin", "Frames", "Kernels", "Kind", "frame"]

_HEAD = struct.Struct("<IB")


class Kind(enum.IntEnum):
    """What a frame is."""

    #: To the watcher. `record.log.Step` and `record.sight.Sample` are as they are.
    BEGIN = 0
    STEP = 1
    SAMPLE = 2
    KERNELS = 3
    ASK = 4
    #: From it: a `record.sight.Tick`; and number (8 bytes), status of HTTP (2 bytes), JSON.
    TICK = 16
    ANSWER = 17


class Begin(msgspec.Struct, frozen=True):
    """What is watched, and what there is when that begins."""

    banner: Banner
    header: Header
    present: Present


class Kernels(msgspec.Struct, frozen=True):
    """Kernels that ran: worker, stage, class, begin, end, batch and why."""

    ran: list[tuple[int, str, int, int, int, int, str]]


class Ask(msgspec.Struct, frozen=True):
    """A question: the story of a request (`body` is its number or the client's id), or what if (`body` is JSON)."""

    number: int
    what: Literal["story", "what-if"]
    body: bytes
    #: What the policy knows of times now.
    learned: EstimatorState | None = None


def frame(kind: Kind, body: bytes) -> bytes:
    """A frame."""
    return _HEAD.pack(len(body), kind) + body


class Frames:
    """Puts frames together from what a socket gives."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """The frames that are whole now."""
        self._data += data
        at = 0
        while len(self._data) - at >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._data, at)
            end = at + _HEAD.size + length
            if end > len(self._data):
                break
            yield Kind(kind), bytes(self._data[at + _HEAD.size : end])
            at = end
        del self._data[:at]
