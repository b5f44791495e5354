"""Cuts that are known: made again at once, or written once into files that every worker reads.

To cut a model takes as much memory as to load it several times over. To read what was cut takes hardly any, and its
weights are mapped, so that all who read them share them. A worker with a strict budget only reads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...errors import ModelError
from .segment_run import Part, Segments
from .segments import optimised, tensor_types, write_segments

__all__ = ["cut_again", "read_cut", "write_cut"]

#: What was written, beside the files of the segments.
INDEX = "cuts.msgpack"


class _Written(msgspec.Struct):
    """One cut: what `Segments` needs to know of its files."""

    parts: list[Part]
    types: dict[str, str]
    outputs: list[str]
    places: dict[str, str]


def cut_again(
    model: Path, several: Sequence[Sequence[int]], *, threads: int = 1, lean: bool = False
) -> list[Segments]:
    """The model cut before these nodes, once for each list of them; nothing is measured."""
    with tempfile.TemporaryDirectory(prefix="dovetail-segments-") as name:
        write_cut(model, several, Path(name))
        return read_cut(Path(name), threads=threads, lean=lean)


def write_cut(model: Path, several: Sequence[Sequence[int]], directory: Path) -> None:
    """The same into files, which may go when everybody has read them."""
    graph = optimised(model, directory)
    types = tensor_types(graph, directory)
    made = []
    for number, cuts in enumerate(several):
        parts, places = write_segments(graph, directory, types, cuts, f"cut-{number}-")
        made.append(_Written(parts, types, list(graph.outputs), places))
    (directory / INDEX).write_bytes(msgspec.msgpack.encode(made))


def read_cut(directory: Path, *, threads: int = 1, lean: bool = False) -> list[Segments]:
    """What `write_cut` has written there."""
    try:
        made = msgspec.msgpack.decode((directory / INDEX).read_bytes(), type=list[_Written])
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"no model was cut at {directory}: {error}") from error
    return [Segments(directory, w.parts, w.types, w.outputs, w.places, threads, lean=lean) for w in made]
