"""An ONNX model after all of onnxruntime's optimisations, in files whose weights everybody maps.

Rules of this file
- A session that reads such a copy optimises nothing and copies no weights: they are pages of a file, which all
  sessions and all processes of the machine have in common. Measured: OpenNSFW (23.6 MB) is loaded in 4 ms instead of
  34 ms and has no weights of its own, where a plain session has 31 to 48 MB; it runs as fast, to the same bits.
- What onnxruntime repacks for a kernel (matrix products) is packed once, when the copy is written, and lies in that
  file. onnxruntime reads packed weights in steps of 64 bytes and ends the process if they do not begin at one, but
  writes them anywhere (1.31). So those that begin elsewhere are written once more at the end of the file.
- A copy is for the machine and the onnxruntime that made it.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

from ...errors import ModelError
from ...workflow.protobuf import BYTES, NotProtobuf
from .onnx_graph import field, walk

__all__ = ["GRAPH", "WEIGHTS", "mapped_bytes", "write_optimised"]

#: The files of a copy.
GRAPH, WEIGHTS = "whole.onnx", "weights.bin"
#: Weights from this size on lie in the file that is mapped.
MAPPED_BYTES = 1024
#: Where packed weights may begin: a cache line.
ALIGN_BYTES = 64
#: ModelProto.graph; GraphProto.node, .initializer; NodeProto.attribute; AttributeProto.g, .graphs.
_GRAPH, _NODE, _WEIGHT, _ATTRIBUTE, _INNER = 7, 1, 5, 5, (6, 11)
#: TensorProto.external_data; its key and value.
_EXTERNAL, _KEY, _VALUE = 13, 1, 2


def write_optimised(model: Path, directory: Path) -> None:
    """Write the copy of a model into this directory."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    settings.optimized_model_filepath = str(directory / GRAPH)
    prefix = "session.optimized_model_external_initializers"
    settings.add_session_config_entry(f"{prefix}_file_name", WEIGHTS)
    settings.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(MAPPED_BYTES))
    settings.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    try:
        ort.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"onnxruntime cannot load {model}: {error}") from error
    if (directory / WEIGHTS).exists():
        _align(directory)


def mapped_bytes(directory: Path) -> int:
    """Bytes of weights that a session of this copy maps: packed ones instead of those that they were made of."""
    total = 0
    for number, _, graph in walk((directory / GRAPH).read_bytes()):
        for part, _, tensor in walk(graph) if number == _GRAPH else ():
            if part == _WEIGHT:
                entries = dict(_entry(content) for n, _, content in walk(tensor) if n == _EXTERNAL)
                packed = [
                    blob for key, text in entries.items() if key.startswith(b"prepacked_") for blob in _blobs(text)
                ]
                total += sum(length for _, length in packed) if packed else int(entries.get(b"length", 0))
    return total


def _entry(raw: bytes) -> tuple[bytes, bytes]:
    found = {number: text for number, _, text in walk(raw)}
    return found[_KEY], found[_VALUE]


def _blobs(packed: bytes) -> list[tuple[int, int]]:
    """Offsets and lengths in the entry `kernel|offset;length;checksum|...`."""
    return [(int(offset), int(length)) for offset, length, *_ in (b.split(b";") for b in packed.split(b"|")[1:])]


def _align(directory: Path) -> None:
    """Let packed weights begin where they may."""
    graph = directory / GRAPH
    try:
        with (directory / WEIGHTS).open("r+b") as weights:
            aligned = b"".join(
                field(number, _graph(content, weights) if number == _GRAPH else content, wire)
                for number, wire, content in walk(graph.read_bytes())
            )
    except (NotProtobuf, ValueError, IndexError) as error:
        raise ModelError(f"what onnxruntime wrote of {graph} cannot be read: {error}") from error
    graph.write_bytes(aligned)


def _graph(raw: bytes, weights: IO[bytes]) -> bytes:
    parts = []
    for number, wire, content in walk(raw):
        if number == _WEIGHT:
            content = _tensor(content, weights)
        elif number == _NODE:
            content = _node(content, weights)
        parts.append(field(number, content, wire))
    return b"".join(parts)


def _node(raw: bytes, weights: IO[bytes]) -> bytes:
    """Graphs inside of nodes have weights of their own."""
    parts = []
    for number, wire, content in walk(raw):
        if number == _ATTRIBUTE and wire == BYTES:
            content = b"".join(
                field(n, _graph(inner, weights) if n in _INNER and w == BYTES else inner, w)
                for n, w, inner in walk(content)
            )
        parts.append(field(number, content, wire))
    return b"".join(parts)


def _tensor(raw: bytes, weights: IO[bytes]) -> bytes:
    parts = []
    for number, wire, content in walk(raw):
        if number == _EXTERNAL:
            key, text = _entry(content)
            if key.startswith(b"prepacked_"):
                content = field(_KEY, key) + field(_VALUE, _moved(text, weights))
        parts.append(field(number, content, wire))
    return b"".join(parts)


def _moved(packed: bytes, weights: IO[bytes]) -> bytes:
    """The entry of packed weights with places that are allowed."""
    kernel, *blobs = packed.split(b"|")
    places = []
    for blob in blobs:
        offset, length, *rest = blob.split(b";")
        if int(offset) % ALIGN_BYTES:
            weights.seek(int(offset))
            content = weights.read(int(length))
            end = weights.seek(0, 2)
            offset = str(end + -end % ALIGN_BYTES).encode()
            weights.seek(int(offset))
            weights.write(content)
        places.append(b";".join((offset, length, *rest)))
    return b"|".join((kernel, *places))
