"""The operators of an ONNX file: what each reads and writes, and the small numbers that shapes depend on.

Rules of this file: weights are skipped, but for their shape and the values of small whole-number tensors. Nothing is
computed. Field numbers are those of onnx.proto3: ModelProto.graph 7; GraphProto.node 1, .initializer 5, .input 11;
NodeProto.input 1, .output 2, .op_type 4, .attribute 5; AttributeProto.name 1, .f 2, .i 3, .s 4, .t 5, .floats 7,
.ints 8; TensorProto.dims 1, .data_type 2, .float_data 4, .int32_data 5, .int64_data 7, .name 8, .raw_data 9.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .protobuf import BYTES, FIXED32, VARINT, fields, varint

__all__ = ["Constant", "Operator", "Operators", "read_operators"]

Data = mmap.mmap | bytes
Number = int | float

#: Values of tensors with more elements decide no shape.
_SMALL = 64
#: Element types as onnx.proto numbers them, and how `struct` reads them.
_FORMATS = {1: "f", 6: "i", 7: "q", 11: "d"}
_SIGN, _WORD = 1 << 63, 1 << 64


class Constant(msgspec.Struct, frozen=True):
    """A tensor in the file: its shape, and its values if it is small."""

    shape: tuple[int, ...]
    values: tuple[Number, ...] | None = None


class Operator(msgspec.Struct, frozen=True):
    """One node of the graph."""

    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    numbers: dict[str, Number]
    lists: dict[str, tuple[Number, ...]]
    texts: dict[str, str]
    #: The tensor that it is, if it is a constant.
    constant: Constant | None = None


class Operators(msgspec.Struct, frozen=True):
    """What a file computes, in an order in which it can be computed."""

    nodes: tuple[Operator, ...]
    constants: dict[str, Constant]


def read_operators(path: Path) -> Operators:
    """The operators of the model at `path`; `NotProtobuf` or another ValueError if that is no such file."""
    nodes: list[Operator] = []
    constants: dict[str, Constant] = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for number, wire, start, end in fields(data, 0, len(data)):
            if number != 7 or wire != BYTES:
                continue
            for part, kind, begin, stop in fields(data, start, end):
                if kind != BYTES:
                    continue
                if part == 1:
                    nodes.append(_operator(data, begin, stop))
                elif part == 5:
                    name, constant = _tensor(data, begin, stop)
                    constants[name] = constant
    return Operators(tuple(nodes), constants)


def _text(data: Data, start: int, end: int) -> str:
    return bytes(data[start:end]).decode()


def _signed(value: int) -> int:
    return value - _WORD if value >= _SIGN else value


def _whole_numbers(data: Data, wire: int, start: int, end: int) -> Iterator[int]:
    """One number, or the packed numbers, of a repeated field."""
    if wire == VARINT:
        yield _signed(varint(data, start)[0])
        return
    while start < end:
        value, start = varint(data, start)
        yield _signed(value)


def _floats(data: Data, start: int, end: int) -> tuple[float, ...]:
    return struct.unpack(f"<{(end - start) // 4}f", data[start:end])


def _operator(data: Data, start: int, end: int) -> Operator:
    reads: list[str] = []
    writes: list[str] = []
    op = ""
    numbers: dict[str, Number] = {}
    lists: dict[str, tuple[Number, ...]] = {}
    texts: dict[str, str] = {}
    constant = None
    for number, wire, begin, stop in fields(data, start, end):
        if wire != BYTES:
            continue
        if number == 1:
            reads.append(_text(data, begin, stop))
        elif number == 2:
            writes.append(_text(data, begin, stop))
        elif number == 4:
            op = _text(data, begin, stop)
        elif number == 5:
            found = _attribute(data, begin, stop, numbers, lists, texts)
            constant = found or constant
    return Operator(op, tuple(reads), tuple(writes), numbers, lists, texts, constant)


def _attribute(
    data: Data,
    start: int,
    end: int,
    numbers: dict[str, Number],
    lists: dict[str, tuple[Number, ...]],
    texts: dict[str, str],
) -> Constant | None:
    """Put an attribute where it belongs; the tensor if it is one."""
    name, constant = "", None
    number: Number | None = None
    values: list[Number] = []
    text: str | None = None
    for part, wire, begin, stop in fields(data, start, end):
        if part == 1:
            name = _text(data, begin, stop)
        elif part == 2 and wire == FIXED32:
            (number,) = _floats(data, begin, stop)
        elif part == 3 and wire == VARINT:
            number = _signed(varint(data, begin)[0])
        elif part == 4:
            text = bytes(data[begin:stop]).decode(errors="replace")
        elif part == 5:
            _, constant = _tensor(data, begin, stop)
        elif part == 7:
            values.extend(_floats(data, begin, stop))
        elif part == 8:
            values.extend(_whole_numbers(data, wire, begin, stop))
    if number is not None:
        numbers[name] = number
    if values:
        lists[name] = tuple(values)
    if text is not None:
        texts[name] = text
    return constant


def _tensor(data: Data, start: int, end: int) -> tuple[str, Constant]:
    name, kind = "", 0
    shape: list[int] = []
    listed: list[Number] = []
    raw: tuple[int, int] | None = None
    for part, wire, begin, stop in fields(data, start, end):
        if part == 1:
            shape.extend(_whole_numbers(data, wire, begin, stop))
        elif part == 2 and wire == VARINT:
            kind = varint(data, begin)[0]
        elif part == 4 and stop - begin <= 4 * _SMALL:
            listed.extend(_floats(data, begin, stop))
        elif part in (5, 7) and stop - begin <= 10 * _SMALL:
            listed.extend(_whole_numbers(data, wire, begin, stop))
        elif part == 8:
            name = _text(data, begin, stop)
        elif part == 9:
            raw = begin, stop
    count = 1
    for side in shape:
        count *= side
    if raw is not None and kind in _FORMATS and count <= _SMALL:
        letter = _FORMATS[kind]
        if raw[1] - raw[0] == count * struct.calcsize(letter):
            listed = list(struct.unpack(f"<{count}{letter}", data[raw[0] : raw[1]]))
    return name, Constant(tuple(shape), tuple(listed) if len(listed) == count else None)
