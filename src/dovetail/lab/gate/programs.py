"""Programs of a gated device: a model made into kernels, with buffers for one shape that the client maps.

Inputs and outputs lie in a sealed memfd, so that a client writes where the first kernel reads, and neither can make
the other die of a truncated mapping. Models are kept by source: clients that run the same share its weights.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from ...errors import DeclarationError
from ...live.kernels import segments
from ...live.kernels.segment_run import Allocate
from .source import Source
from .wire import MAX_DETAIL_CHARS, Open, Shape, layout, views

__all__ = ["Kernels", "Model", "Program", "ProgramMaker", "divide_long", "make_program"]

Asker = TypeVar("Asker")
#: Segments of a model that is cut by their length: as many as there are.
MOST_SEGMENTS = 1 << 30
#: A segment that is too long is divided where both sides are at least this part of the bound.
SLIVER = 0.25
_ALL_CORES = os.sched_getaffinity(0)


class Kernels(Protocol):
    """A model with buffers for one shape, run by one task at a time."""

    @property
    def idents(self) -> Sequence[str]:
        """What each kernel is; the same in every process and run."""

    def begin(self) -> Sequence[Callable[[], object]]:
        """The kernels of one run, to be called in order, once each; a run may be given up at any kernel."""
        ...


class Model(Protocol):
    """A model that is loaded and cut."""

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the tensors that the first kernels read."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the tensors that are the result."""

    def bind(self, shapes: Mapping[str, Shape], allocate: Allocate) -> Kernels:
        """Buffers for inputs of these shapes; memory of inputs and outputs is asked for by name."""
        ...


class Program:
    """What `Open` asked for."""

    def __init__(self, message: Open, model: Model) -> None:
        self.name = message.name
        self._model = model
        #: A task runs it.
        self.busy = False
        found: dict[str, tuple[str, Shape]] = {}

        def measure(name: str, shape: Shape, dtype: Any) -> np.ndarray[Any, Any]:
            found[name] = (np.dtype(dtype).str, shape)
            return np.zeros(shape, dtype)

        model.bind(message.shapes, measure)
        self.inputs, end = layout([(name, *found[name]) for name in model.inputs], 0)
        self.outputs, end = layout([(name, *found[name]) for name in model.outputs], end)
        self.fd = os.memfd_create("dovetail-program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, max(end, mmap.PAGESIZE))
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            memory = mmap.mmap(self.fd, 0)
            placed = views(memory, [*self.inputs, *self.outputs])
            self._kernels = model.bind(message.shapes, lambda name, _shape, _dtype: placed[name])
        except BaseException:
            os.close(self.fd)
            raise
        self.idents = tuple(self._kernels.idents)
        self.begin = self._kernels.begin

    def close(self) -> None:
        """Nobody needs it any more; what is mapped goes with its last user."""
        os.close(self.fd)


#: Models that a program uses; one that none uses any more is gone.
_models: WeakValueDictionary[Source, Model] = WeakValueDictionary()
_making = threading.Lock()


def make_program(message: Open) -> Program:
    """The program that was asked for; the model is loaded unless it is already."""
    with _making:
        model = _models.get(message.source)
        if model is None:
            model = _models[message.source] = _load(message.source, message.shapes)
        return Program(message, model)


class ProgramMaker(Generic[Asker]):
    """Makes programs in threads of their own, on any core, while kernels go on."""

    def __init__(self) -> None:
        self._made: SimpleQueue[tuple[Asker, Open, Program | str]] = SimpleQueue()
        self._bell_r, self._bell_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Readable when there is something to be taken."""
        return self._bell_r

    def make(self, asker: Asker, message: Open) -> None:
        """Begin to make what somebody asks for."""
        threading.Thread(target=self._make, args=(asker, message), daemon=True).start()

    def _make(self, asker: Asker, message: Open) -> None:
        made: Program | str
        try:
            os.sched_setaffinity(0, _ALL_CORES)
            made = make_program(message)
        except BaseException as error:  # whatever it is, whoever asked must be answered
            made = f"{type(error).__name__}: {error}"[:MAX_DETAIL_CHARS]
        self._made.put((asker, message, made))
        os.write(self._bell_w, b"!")

    def taken(self) -> Iterator[tuple[Asker, Open, Program | str]]:
        """What was made since, or why it could not be."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell_r, 4096)
        while not self._made.empty():
            yield self._made.get()


def _load(source: Source, shapes: Mapping[str, Shape]) -> Model:
    find: Callable[..., Sequence[Model]]
    if source.kind == "onnx":
        divide = partial(divide_long, longest=source.longest_ns) if source.longest_ns else None
        shortest_ns = source.shortest_ns or segments.SHORTEST_NS
        find = partial(segments.cut, Path(source.where), divide=divide)
    else:
        module, _, name = source.where.partition(":")
        try:
            make = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise DeclarationError(f"{source.where}: {error}") from error
        if source.kind == "kernels":
            made: Model = make()
            return made
        from ...live.kernels import torch_kernels

        shortest_ns = source.shortest_ns or torch_kernels.SHORTEST_NS
        find = partial(torch_kernels.cut, make(), longest_ns=source.longest_ns)
    most = MOST_SEGMENTS if source.target_ns else source.segments
    (model,) = find([shapes], segments=most, target_ns=source.target_ns, shortest_ns=shortest_ns)
    return model


def divide_long(lengths: Sequence[int], able: Sequence[bool], cuts: Sequence[int], longest: int) -> list[int]:
    """The cuts and more: a segment that is longer than this is halved, as evenly as can be, until none is.

    `able[i]` says whether there can be a cut before node `i`. None is made that leaves a sliver.
    """
    ends = []
    todo = [*pairwise([0, *cuts, len(lengths)])]
    while todo:
        first, last = todo.pop()
        before = [0, *accumulate(lengths[first:last])]
        sides = {i: min(before[i - first], before[-1] - before[i - first]) for i in range(first + 1, last) if able[i]}
        best = max(sides, key=lambda i: sides[i], default=first)
        if before[-1] > longest and sides.get(best, 0) >= max(1, SLIVER * longest):
            todo += [(first, best), (best, last)]
        else:
            ends.append(last)
    return sorted(ends)[:-1]
