"""Just enough of the ONNX file format to know a model's inputs and outputs when it is declared.

An ONNX file is one protobuf message. Only the names and types of the graph's inputs and outputs are read;
weights are skipped, so declaring a large model is cheap and needs neither onnx nor onnxruntime. Field numbers
are those of onnx.proto3: ModelProto.graph 7; GraphProto.initializer 5, .input 11, .output 12;
ValueInfoProto.name 1, .type 2; TypeProto.tensor_type 1; Tensor.elem_type 1, .shape 2; TensorProto.name 8.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import ModelError
from .protobuf import BYTES, VARINT, NotProtobuf, fields, varint
from .tensor import OIP_OF_ONNX, TensorSpec

__all__ = ["ModelFile", "read_onnx"]


class ModelFile(msgspec.Struct, frozen=True):
    """What a declaration needs of a model file. Shapes still have their first (batch) dimension."""

    sha256: str
    nbytes: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    #: Inputs and outputs that are said to be single numbers; of others without a shape nothing is known.
    numbers: tuple[str, ...] = ()


def _fields(data: mmap.mmap | bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (field number, start, end) of each length-delimited field, or (number, value, -1) of a varint."""
    for number, wire, begin, stop in fields(data, start, end):
        if wire == BYTES:
            yield number, begin, stop
        elif wire == VARINT:
            yield number, varint(data, begin)[0], -1


def _value_info(data: mmap.mmap | bytes, start: int, end: int) -> tuple[str, TensorSpec, bool]:
    """Name, type, and whether it is said to be a single number."""
    name, datatype, shape, known = "", "FP32", [], False
    for number, a, b in _fields(data, start, end):
        if number == 1 and b >= 0:
            name = bytes(data[a:b]).decode()
        elif number == 2:
            for kind, c, d in _fields(data, a, b):
                if kind != 1:  # sequences and maps have no tensor type
                    continue
                for part, e, f in _fields(data, c, d):
                    if part == 1:
                        datatype = OIP_OF_ONNX.get(e, "FP32")
                    elif part == 2:
                        shape, known = [_dim(data, g, h) for n, g, h in _fields(data, e, f) if n == 1], True
    return name, TensorSpec(datatype, tuple(shape)), known and not shape


def _dim(data: mmap.mmap | bytes, start: int, end: int) -> int:
    for number, value, last in _fields(data, start, end):
        if number == 1 and last == -1 and value > 0:
            return value
    return -1


def read_onnx(path: Path, stage: str) -> ModelFile:
    """Inputs, outputs, size and content hash of the model at `path`, or a ModelError that names `stage`."""
    if not path.is_file():
        raise ModelError(f"stage {stage!r}: model file {path} does not exist; check the path in onnx(...)")
    nbytes = path.stat().st_size
    inputs: dict[str, TensorSpec] = {}
    outputs: dict[str, TensorSpec] = {}
    numbers: list[str] = []
    weights: set[str] = set()
    graph_seen = False
    if nbytes:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            digest = hashlib.sha256(data).hexdigest()
            try:
                for number, a, b in _fields(data, 0, nbytes):
                    if number != 7 or b < 0:
                        continue
                    graph_seen = True
                    for part, c, d in _fields(data, a, b):
                        if part == 5 and d >= 0:
                            weights.update(bytes(data[e:f]).decode() for n, e, f in _fields(data, c, d) if n == 8)
                        elif part in (11, 12):
                            name, spec, number_only = _value_info(data, c, d)
                            (inputs if part == 11 else outputs)[name] = spec
                            if number_only:
                                numbers.append(name)
            except (NotProtobuf, UnicodeDecodeError):
                graph_seen = False
    if not graph_seen or not outputs:
        raise ModelError(
            f"stage {stage!r}: {path} is not an ONNX model; export the model to ONNX, or wrap other formats in "
            f"an ordinary @stage"
        )
    inputs = {name: spec for name, spec in inputs.items() if name not in weights}
    numbers = [name for name in numbers if name in inputs or name in outputs]
    return ModelFile(digest, nbytes, inputs, outputs, tuple(numbers))
