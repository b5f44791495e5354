"""Segments of a model at work: sessions that hand tensors on in place, with buffers for one shape at a time.

Rules of this file
- Segments hand tensors on in place: what one writes, the next reads from the same buffer, bound once per shape.
  Binding anew for every run costs 50 µs per segment, not 11 to 17.
- One set of sessions serves all batch sizes; only buffers belong to a shape.
- All sessions of a process but lean ones share one arena, and buffers between segments are used again, so that they
  stay in the cache: with memory of its own every segment begins cold, which costs 5 to 20 % (measured).

A tensor whose shape depends on values, not on shapes, cannot be bound once: `Segments.bind` then fails as a run does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...errors import ModelError
from ...profile.kernels import kernel_ids
from ...workflow.runners import share_arena
from ...workflow.tensor import NUMPY_OF_ORT
from ..tensors.arena import ALIGN_BYTES

__all__ = ["Allocate", "Array", "Binding", "Bound", "Part", "Segments", "Shape", "Written", "aligned", "load_session"]

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]
#: (tensor, shape, element type) -> the memory for it.
Allocate = Callable[[str, Shape, Any], Array]


class Part(msgspec.Struct, frozen=True):
    """One segment: which nodes, what it takes and gives, and its operators in short."""

    first: int
    last: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    what: str
    file: str


class Written(msgspec.Struct):
    """A cut model in files: its segments, and what is known of its tensors."""

    parts: list[Part]
    #: Name -> type, of all tensors of numbers.
    types: dict[str, str]
    outputs: list[str]
    #: Tensors that lie where others lay before, and whose place that is.
    places: dict[str, str]


class Bound:
    """Segments with buffers for one shape, ready to run by one task at a time."""

    def __init__(self, kernels: list[Callable[[], object]], idents: list[str], buffers: dict[str, Array]) -> None:
        #: Call them in order, once each; each lets go of the interpreter lock while it computes.
        self.kernels: Sequence[Callable[[], object]] = kernels
        #: What each kernel is: operators, shapes and position. The same in every process and run.
        self.idents = idents
        self._buffers = buffers

    def begin(self) -> Sequence[Callable[[], object]]:
        """The kernels of one run."""
        return self.kernels

    def buffer(self, name: str) -> Array:
        """The memory of an input or an output (or of a tensor between segments, which others use after it)."""
        return self._buffers[name]


class Segments:
    """A cut model, loaded from the files in `directory`, which may go."""

    def __init__(self, directory: Path, written: Written, threads: int = 1, *, lean: bool = False) -> None:
        self.written = written
        self.parts = written.parts
        self.sessions = [
            load_session(directory / part.file, lean=lean, intra_op_num_threads=threads) for part in self.parts
        ]
        made = {name for part in self.parts for name in part.outputs}
        #: What the caller fills before the first kernel and reads after the last.
        self.inputs = list(dict.fromkeys(n for part in self.parts for n in part.inputs if n not in made))
        self.outputs = written.outputs

    def dtype(self, name: str) -> Any:
        """Element type of a tensor."""
        return NUMPY_OF_ORT[self.written.types[name]]

    def bind(self, shapes: Mapping[str, Shape], allocate: Allocate | None = None) -> Bound:
        """Buffers for inputs of these shapes. Runs the model once on zeros, to know the shapes of all else."""
        binding = self.binding(shapes, allocate)
        for step in binding.begin():
            step()
        return binding.bound()

    def binding(self, shapes: Mapping[str, Shape], allocate: Allocate | None = None) -> Binding:
        """The same, to be done segment by segment, as a run on whatever is put into the inputs before."""
        return Binding(self, shapes, allocate)


class Binding:
    """The first run at a shape: each segment is run and then bound to the buffers that it turned out to need."""

    def __init__(self, segments: Segments, shapes: Mapping[str, Shape], allocate: Allocate | None = None) -> None:
        inputs = segments.inputs
        if missing := [name for name in inputs if name not in shapes]:
            raise ModelError(f"no shape was given for input {missing[0]!r}")
        self._segments = segments
        self._allocate = allocate or (lambda _name, shape, dtype: aligned(shape, dtype))
        self._buffers: dict[str, Array] = {}
        self._values: dict[str, Any] = {}
        self._pool = _Pool(segments.parts, {*inputs, *segments.outputs}, segments.written.places)
        self._kernels: list[Callable[[], object]] = []
        for name in inputs:
            self._keep(name, tuple(shapes[name]))
            self._buffers[name][...] = 0

    def _keep(self, name: str, shape: Shape) -> None:
        import onnxruntime as ort

        allocate = self._pool.take if name in self._pool else self._allocate
        self._buffers[name] = allocate(name, shape, self._segments.dtype(name))
        self._values[name] = ort.OrtValue.ortvalue_from_numpy(self._buffers[name])

    def begin(self) -> Sequence[Callable[[], object]]:
        """The steps, one per segment, to be called in order, once each."""
        return [self._step] * len(self._segments.parts)

    def _step(self) -> None:
        position = len(self._kernels)
        part, session = self._segments.parts[position], self._segments.sessions[position]
        try:
            feeds = {name: self._values[name] for name in part.inputs}
            found = session.run_with_ort_values(list(part.outputs), feeds)
        except Exception as error:
            raise ModelError(f"segment {position} of {len(self._segments.parts)} cannot be run: {error}") from error
        binding = session.io_binding()
        for name in part.inputs:
            binding.bind_ortvalue_input(name, self._values[name])
        for name, value in zip(part.outputs, found, strict=True):
            self._keep(name, tuple(value.shape()))
            self._buffers[name][...] = value.numpy()
            binding.bind_ortvalue_output(name, self._values[name])
        self._pool.give_back(position)
        self._kernels.append(partial(session.run_with_iobinding, binding))

    def buffer(self, name: str) -> Array:
        """As `Bound.buffer`; of an output once the last step is done."""
        return self._buffers[name]

    def bound(self) -> Bound:
        """What was bound, after the last step."""
        parts = self._segments.parts
        idents = kernel_ids((part.what, [self._buffers[n].shape for n in part.inputs]) for part in parts)
        return Bound(self._kernels, list(idents), self._buffers)


class _Pool:
    """Memory of tensors between segments: what no later one reads is used again, so that it stays in the cache."""

    def __init__(self, parts: Sequence[Part], kept: set[str], places: Mapping[str, str]) -> None:
        self._places = places
        #: Place -> the last segment that needs it.
        self._last: dict[str, int] = {}
        for i, part in enumerate(parts):
            for name in (*part.inputs, *(n for n in part.outputs if n in places)):
                if name not in kept:
                    self._last[places.get(name, name)] = i
        self._free: list[Array] = []
        self._used: dict[str, Array] = {}

    def __contains__(self, name: str) -> bool:
        return self._places.get(name, name) in self._last

    def take(self, name: str, shape: Shape, dtype: Any) -> Array:
        """The place of a tensor: where the one before it lies, or the smallest free block that is large enough."""
        place = self._places.get(name, name)
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if place not in self._used:
            fitting = [block for block in self._free if block.nbytes >= nbytes]
            block = min(fitting, key=lambda b: b.nbytes) if fitting else aligned((max(nbytes, 1),), np.uint8)
            self._free = [b for b in self._free if b is not block]
            self._used[place] = block
        array: Array = self._used[place][:nbytes].view(dtype).reshape(shape)
        return array

    def give_back(self, position: int) -> None:
        """The segment at `position` is bound: what it was the last to need is free for those after it."""
        for place in [p for p in self._used if self._last[p] == position]:
            self._free.append(self._used.pop(place))


def aligned(shape: Shape, dtype: Any) -> Array:
    """Memory that begins at a cache line: vector instructions are slower on what straddles two."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    block = np.empty(nbytes + ALIGN_BYTES, np.uint8)
    start = -block.ctypes.data % ALIGN_BYTES
    array: Array = block[start : start + nbytes].view(dtype).reshape(shape)
    return array


def load_session(path: Path, *, lean: bool = False, **options: Any) -> Any:
    """A session that runs a graph as it is, by one thread unless the options say otherwise.

    A `lean` one keeps nothing between two runs, and shares no arena: that would never become smaller.
    """
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    # Spinning threads would take the cores that other batches share.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # A planned block of its own for every segment is colder than what the last one has just freed.
    settings.enable_mem_pattern = False
    if lean:
        settings.enable_cpu_mem_arena = False
    else:
        share_arena(settings)
    for name, value in options.items():
        setattr(settings, name, value)
    try:
        return ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"onnxruntime cannot load {path.name}: {error}") from error
