"""Tensors in and out of messages without a copy by protobuf. Pure: bytes in, views or refusals out.

A message is a sequence of fields, each a tag and a value (protobuf.dev/programming-guides/encoding). A
`ModelInferRequest` has its tensors in field 7, `raw_input_contents`. Here they are found and taken out, and the rest
is left to protobuf. An answer's tensors, field 6 of `ModelInferResponse`, are put behind the message, where a parser
takes them as well.

Rules of this file
- Nothing is read beyond the end, and the number of fields is bounded: each costs a microsecond on the thread that
  serves everybody.
- What protobuf parses afterwards is small: it is bounded like the JSON of a request over HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import BadRequest

__all__ = ["MAX_FIELDS", "MAX_HEAD_BYTES", "joined", "split", "streamed"]

#: 64 inputs, as many outputs and contents, an id and 100 parameters are some 300 fields.
MAX_FIELDS = 1024
MAX_HEAD_BYTES = 2 << 20
_RAW_INPUTS = 7 << 3 | 2  # number and kind, "length-delimited"
_RAW_OUTPUTS = 6 << 3 | 2
_STREAMED = 2 << 3 | 2
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
_CUT = "the message ends within a field"


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of 1 to 10 bytes, and where it ends."""
    value = shift = 0
    for end in range(at, min(at + 10, len(data))):
        byte = data[end]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, end + 1
        shift += 7
    raise BadRequest(_CUT if at + 10 > len(data) else "a number of the message has more than 10 bytes")


def split(data: bytes) -> tuple[bytes, list[memoryview]]:
    """A `ModelInferRequest` without its raw tensors, and these."""
    view = memoryview(data)
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    at = begun = fields = 0
    while at < len(view):
        fields += 1
        if fields > MAX_FIELDS:
            raise BadRequest(f"the message has more than {MAX_FIELDS} fields")
        start = at
        tag, at = _varint(view, at)
        kind = tag & 7
        if kind == _LENGTH:
            length, at = _varint(view, at)
            at += length
        elif kind == _VARINT:
            _, at = _varint(view, at)
        elif kind in (_EIGHT, _FOUR):
            at += 8 if kind == _EIGHT else 4
        else:
            raise BadRequest(f"the message has a field of kind {kind}, which there is not")
        if at > len(view):
            raise BadRequest(_CUT)
        if tag == _RAW_INPUTS:
            rest.append(view[begun:start])
            raw.append(view[at - length : at])
            begun = at
    rest.append(view[begun:])
    if (nbytes := sum(map(len, rest))) > MAX_HEAD_BYTES:
        raise BadRequest(f"{nbytes} bytes beside raw_input_contents are more than {MAX_HEAD_BYTES}; send tensors raw")
    return b"".join(rest), raw


def _length(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def joined(head: bytes, raw: Sequence[Sequence[bytes | memoryview]]) -> bytes:
    """A `ModelInferResponse` with raw tensors behind it, each in parts. This is the one copy of an answer."""
    parts: list[bytes | memoryview] = [head]
    for tensor in raw:
        parts.append(bytes((_RAW_OUTPUTS,)) + _length(sum(map(len, tensor))))
        parts += tensor
    return b"".join(parts)


def streamed(answer: bytes) -> bytes:
    """A `ModelStreamInferResponse` around a serialised `ModelInferResponse`, its field 2."""
    return b"".join((bytes((_STREAMED,)), _length(len(answer)), answer))
