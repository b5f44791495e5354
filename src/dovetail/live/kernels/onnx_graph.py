"""An ONNX graph as a list of nodes that can be written out again in parts.

Rules of this file: nothing is interpreted that need not be. A node, a weight or an opset import is the bytes that
were read, and goes into a part unchanged; only names are looked at, to know what a part takes and gives. Needs
neither onnx nor onnxruntime. Field numbers are those of onnx.proto3: ModelProto.graph 7; GraphProto.node 1,
.initializer 5, .input 11, .output 12, .sparse_initializer 15; NodeProto.input 1, .output 2, .name 3, .op_type 4,
.attribute 5, .domain 7; AttributeProto.g 6, .graphs 11; ValueInfoProto.name 1, .type 2; TypeProto.tensor_type 1;
Tensor.elem_type 1; TensorProto.name 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from ...errors import ModelError
from ...workflow.protobuf import BYTES, VARINT, fields

__all__ = ["OnnxGraph", "OnnxNode", "field", "read_graph", "walk", "write_part"]


class OnnxNode(msgspec.Struct, frozen=True):
    """One operator. `reads` are its inputs and what graphs inside of it (branches, loop bodies) take from outside."""

    op: str
    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    raw: bytes


class OnnxGraph(msgspec.Struct, frozen=True):
    """A model's graph; nodes are in an order in which they can run."""

    nodes: tuple[OnnxNode, ...]
    #: Weight -> its tensor as it stands in the file.
    weights: dict[str, bytes]
    #: What the caller gives: inputs without weights, each with its declaration as it stands in the file.
    inputs: dict[str, bytes]
    outputs: dict[str, bytes]
    #: Everything in the file but the graph: format version, opset imports, functions.
    rest: bytes


def walk(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(field number, wire type, content) of each field in turn."""
    return ((number, wire, data[start:end]) for number, wire, start, end in fields(data, 0, len(data)))


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, content: bytes, wire: int = BYTES) -> bytes:
    """A field as it stands in a message."""
    size = _number(len(content)) if wire == BYTES else b""
    return _number(number << 3 | wire) + size + content


def _texts(message: bytes, *numbers: int) -> list[str]:
    return [content.decode() for number, wire, content in walk(message) if wire == BYTES and number in numbers]


def _node(raw: bytes) -> OnnxNode:
    reads, writes, name, op, domain = [], [], "", "", ""
    for number, wire, content in walk(raw):
        if wire != BYTES:
            continue
        if number == 1:
            reads.append(content.decode())
        elif number == 2:
            writes.append(content.decode())
        elif number == 3:
            name = content.decode()
        elif number == 4:
            op = content.decode()
        elif number == 7:
            domain = content.decode()
        elif number == 5:
            for part, _, graph in walk(content):
                if part in (6, 11):
                    reads.extend(_captured(graph))
    op = f"{domain}:{op}" if domain else op
    return OnnxNode(op, name, tuple(n for n in dict.fromkeys(reads) if n), tuple(n for n in writes if n), raw)


def _captured(graph: bytes) -> Iterator[str]:
    """Names that a graph inside of a node reads and does not make itself."""
    own: set[str] = set()
    for number, _, content in walk(graph):
        if number in (5, 11):
            own.update(_texts(content, 8 if number == 5 else 1)[:1])
    for number, _, content in walk(graph):
        if number == 1:
            node = _node(content)
            yield from (name for name in node.reads if name not in own)
            own.update(node.writes)
        elif number == 12:
            yield from (name for name in _texts(content, 1)[:1] if name not in own)


def read_graph(path: Path) -> OnnxGraph:
    """The graph of the model at `path`, whose large weights had better lie in another file."""
    nodes: list[OnnxNode] = []
    weights: dict[str, bytes] = {}
    inputs: dict[str, bytes] = {}
    outputs: dict[str, bytes] = {}
    rest: list[bytes] = []
    try:
        for number, wire, content in walk(path.read_bytes()):
            if number != 7:
                rest.append(field(number, content, wire))
                continue
            for part, _, inner in walk(content):
                if part == 1:
                    nodes.append(_node(inner))
                elif part == 5:
                    weights[_texts(inner, 8)[0]] = inner
                elif part in (11, 12):
                    (inputs if part == 11 else outputs)[_texts(inner, 1)[0]] = inner
                elif part == 15:
                    raise ModelError(f"{path} has sparse weights, which cannot be cut; run it whole")
    except (ValueError, IndexError) as error:
        raise ModelError(f"{path} is not an ONNX model: {error}") from error
    inputs = {name: raw for name, raw in inputs.items() if name not in weights}
    return OnnxGraph(tuple(nodes), weights, inputs, outputs, b"".join(rest))


def write_part(
    path: Path,
    graph: OnnxGraph,
    nodes: Sequence[OnnxNode],
    inputs: dict[str, int],
    outputs: Iterable[str],
) -> None:
    """A model of these nodes alone; `inputs` are name -> element type as onnx.proto numbers them.

    Outputs are written by name only: their types follow. Weights go along if a node reads them.
    """
    body = [field(1, node.raw) for node in nodes]
    body.append(field(2, path.stem.encode()))
    read = dict.fromkeys(name for node in nodes for name in node.reads)
    body.extend(field(5, graph.weights[name]) for name in read if name in graph.weights)
    for name, element_type in inputs.items():
        declared = graph.inputs.get(name)
        kind = field(1, field(1, _number(element_type), VARINT))
        body.append(field(11, declared or field(1, name.encode()) + field(2, kind)))
    body.extend(field(12, graph.outputs.get(name) or field(1, name.encode())) for name in outputs)
    path.write_bytes(graph.rest + field(7, b"".join(body)))
