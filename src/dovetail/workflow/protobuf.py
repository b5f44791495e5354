"""Just enough of the protobuf wire format to walk through a message: where its fields are, not what they mean."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

__all__ = ["BYTES", "FIXED32", "VARINT", "NotProtobuf", "fields", "varint"]

#: Wire types.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class NotProtobuf(ValueError):
    """The bytes do not read as protobuf."""


def varint(data: mmap.mmap | bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise NotProtobuf("a number has no end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: mmap.mmap | bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, start, end) of the content of each field in turn."""
    at = start
    while at < end:
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise NotProtobuf("a field without a number")
        begin = at
        if wire == VARINT:
            _, at = varint(data, at)
        elif wire == BYTES:
            size, begin = varint(data, at)
            at = begin + size
        elif wire in (FIXED64, FIXED32):
            at += 8 if wire == FIXED64 else 4
        else:
            raise NotProtobuf(f"wire type {wire}")
        if at > end:
            raise NotProtobuf("a field reaches beyond its message")
        yield number, wire, begin, at
    if at != end:
        raise NotProtobuf("a message that ends before it begins")
