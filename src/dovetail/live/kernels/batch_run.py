"""One batch as kernels: its items in steps, each through segments that are bound to buffers of its shape.

Rules of this file
- What segments make up a kernel, and buffers that nobody uses, are the model's (`CutModel`).
- Items run together as far as there is memory for them (`at_once`); a batch of more is run in parts.
- The first run at a shape that nobody expected binds its buffers segment by segment, on the batch's own inputs: it
  can be interrupted as any other, and nothing is computed twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...profile.kernels import MOST_SHAPES, kernel_ids, sequence_name
from ...workflow.graph import StageSpec
from ...workflow.runners import Groups, Runner
from .segment_run import Binding, Bound, Segments, Shape

if TYPE_CHECKING:
    from .cut_model import CutModel

__all__ = ["EVERY", "FINE_FROM", "BatchRun", "Columns", "Key", "Known", "Spans", "WholeRun", "item_bytes"]

#: Steps from this size on have segments of their own: what is cut for one item takes so many times as long there.
FINE_FROM = 4

#: All items of a batch run together, however many.
EVERY = 1 << 30

Columns = Sequence[Sequence[Any]]
Arrays = list[list[Any]]
Key = tuple[Shape, ...]
Spans = list[tuple[int, int]]
#: Which segments make up a kernel, what each kernel is, and a digest of where they lie in the graph.
Known = tuple[Spans, list[str], str]


class _Step:
    """Items of a batch that are run together: where they lie, what runs them, and what came out."""

    def __init__(self, model: CutModel, segments: Segments, members: list[int], arrays: Arrays) -> None:
        self.members = members
        self.key: Key = tuple((len(members), *column[0].shape) for column in arrays)
        #: It is the first at its shape: its kernels are those of no other run.
        self.first = False
        #: What tells its kernels from those of another cut.
        self.tag = ""
        self.outputs: list[Any] = []
        self._model = model
        self._segments = segments
        self._columns = dict(zip(model.inputs, arrays, strict=True))
        self._bound: Bound | None = None
        self._binding: Binding | None = None
        #: It runs or ran as no other did before at this shape.
        self.binds = False
        self._lengths_ns: list[int] = []

    def kernels(self) -> tuple[list[Callable[[], object]], list[str]]:
        """Its kernels, and what each is."""
        found = self._model.known(self._segments, self.key)
        if found is None:
            self.first = True
            count = len(self._segments.parts)
            found = [(i, i + 1) for i in range(count)], [f"first run, {i}" for i in range(count)], ""
        spans, idents, self.tag = found
        return [partial(self._run, first, end) for first, end in spans], idents

    def _run(self, first: int, end: int) -> None:
        if first == 0:
            self._begin()
        for position in range(first, end):
            if self._bound is not None:
                self._bound.kernels[position]()
            elif self._binding is not None:
                begin_ns = time.perf_counter_ns()
                self._binding.begin()[position]()
                self._lengths_ns.append(time.perf_counter_ns() - begin_ns)
        if end == len(self._segments.parts):
            self._end()

    def _begin(self) -> None:
        """Bring the inputs to where the segments read them."""
        self._bound = self._model.take(self._segments, self.key)
        holder: Bound | Binding | None = self._bound
        if holder is None:
            shapes = dict(zip(self._columns, self.key, strict=True))
            self.binds = True
            holder = self._binding = self._segments.binding(shapes)
        for name in self._segments.inputs:
            buffer = holder.buffer(name)
            for i, array in enumerate(self._columns[name]):
                buffer[i] = array

    def _end(self) -> None:
        """Take the results out; the buffers are for others."""
        bound, self._bound = self._bound, None
        if bound is None:
            assert self._binding is not None
            bound, self._binding = self._binding.bound(), None
            self._model.learn(self._segments, self.key, self._lengths_ns, bound.idents)
        self.outputs = [np.array(bound.buffer(name)) for name in self._segments.outputs]
        self._model.give_back(self._segments, self.key, bound)

    def release(self) -> None:
        """It will not be run to its end."""
        bound, self._bound, self._binding = self._bound, None, None
        if bound is not None:
            self._model.give_back(self._segments, self.key, bound)


class BatchRun:
    """One batch as kernels, to be called in order, once each."""

    def __init__(self, model: CutModel, columns: Columns, spec: StageSpec, at_once: int = EVERY) -> None:
        self._model = model
        self._columns = columns
        runner, cuts, step = model.ways
        self._runner = runner if spec is model.spec else runner.shared(spec)
        #: Items that run together at most.
        self.at_once = step = min(at_once, step) if cuts else at_once
        groups = self._groups = self._runner.groups(columns)
        if not cuts:
            groups = self._groups = _parts(groups, at_once)
        #: Shapes of its inputs, of each group of items of one shape.
        self.shapes: list[Key] = [
            tuple([(len(members), *column[0].shape) for column in arrays]) for members, arrays in groups
        ]
        self._whole: list[Any] | None = None
        self._steps: list[_Step] = []
        self.kernels: list[Callable[[], object]] = []
        #: What each kernel is.
        self.idents: list[str] = []
        tags, first = "", False
        if cuts:
            self._steps = [
                _Step(model, cuts[len(some) >= FINE_FROM], some, [column[i : i + step] for column in arrays])
                for members, arrays in groups
                for i in range(0, len(members), step)
                for some in [members[i : i + step]]
            ]
            for kernels, idents in (s.kernels() for s in self._steps):
                self.kernels += kernels
                self.idents += idents
            first = any(s.first for s in self._steps)
            tags = "-".join(dict.fromkeys([s.tag for s in self._steps]))
        else:
            self.kernels, self.idents = [self._run_whole], [_whole_ident(self.shapes[0])]
        #: What statistics are kept by; empty where the next run will have other kernels.
        self.name = ""
        if len(groups) == 1 and not first:
            self.name = _sequence_name(spec.name, self.shapes[0], spec.model, tags, model.threads)

    @property
    def together_bytes(self) -> int:
        """Bytes of the inputs of those that run together."""
        return min(self.at_once, len(self._columns[0])) * item_bytes(self._columns)

    def _run_whole(self) -> None:
        self._whole = self._runner.run_groups(self._groups, len(self._columns[0]))

    def values(self) -> list[Any]:
        """One value per item; what it has read is let go."""
        columns, self._columns, self._groups = self._columns, (), []
        if self._whole is not None:
            return self._whole
        values: list[Any] = [None] * len(columns[0])
        for step in self._steps:
            for i, value in zip(step.members, self._runner.apart(step.outputs, len(step.members)), strict=True):
                values[i] = value
        self._steps.clear()
        return values

    def rescue(self, error: BaseException) -> None:
        """A kernel failed: run the whole model if that may help, or raise what is to be said.

        It may where the same shapes went well before: then what changes a tensor's shape is a value, and such a model
        cannot be bound once. From now on it is not cut.
        """
        for step in self._steps:
            step.release()
        if not self._steps or any(s.first or s.binds for s in self._steps):
            raise error
        whole = self._model.whole()
        self._whole = whole.run(self._columns)
        self._model.stay_whole(whole, "the shape of a tensor in it depends on values")

    def release(self) -> None:
        """It is over: let go of inputs, buffers and the model, which it refers to in circles."""
        for step in self._steps:
            step.release()
        self._model.rest()
        self.kernels, self._steps, self._columns, self._groups, self._whole = [], [], (), [], None


class WholeRun:
    """A batch that is one kernel."""

    def __init__(self, runner: Runner, columns: Sequence[Sequence[Any]], at_once: int = EVERY) -> None:
        self.name = ""
        #: Items that run together at most.
        self.at_once = at_once
        self.idents: list[str] = ["whole"]
        self.kernels: list[Callable[[], object]] = [self._run]
        self._runner = runner
        self._columns = columns
        self._values: list[Any] = []

    @property
    def together_bytes(self) -> int:
        """Bytes of the inputs of those that run together."""
        return min(self.at_once, len(self._columns[0])) * item_bytes(self._columns) if self._columns else 0

    def _run(self) -> None:
        size = len(self._columns[0]) if self._columns else 0
        if self.at_once < size:
            for i in range(0, size, self.at_once):
                self._values += self._runner.run([column[i : i + self.at_once] for column in self._columns])
        else:
            self._values = self._runner.run(self._columns)
        self._columns = ()  # what was read is let go at once, not when the collector finds this

    def values(self) -> list[Any]:
        """One value per item."""
        return self._values

    def rescue(self, error: BaseException) -> None:
        """Nothing else could be tried."""
        raise error

    def release(self) -> None:
        """It is over: let go of inputs and the model, which it refers to in circles."""
        self.kernels, self._columns, self._values = [], (), []


def item_bytes(columns: Columns) -> int:
    """Bytes of the largest inputs of one item: where items are padded, all have as many."""
    return sum([max([getattr(value, "nbytes", 0) for value in column], default=0) for column in columns])


def _parts(groups: Groups, at_once: int) -> Groups:
    """Groups of items of one shape, none of which has more items than that."""
    if at_once == EVERY or all(len(members) <= at_once for members, _ in groups):
        return groups
    return [
        (members[i : i + at_once], [column[i : i + at_once] for column in arrays])
        for members, arrays in groups
        for i in range(0, len(members), at_once)
    ]


@lru_cache(MOST_SHAPES)
def _whole_ident(shapes: Key) -> str:
    return kernel_ids([("whole", shapes)])[0]


@lru_cache(MOST_SHAPES)
def _sequence_name(stage: str, shapes: Key, model: str, tags: str, threads: int) -> str:
    way = tags or "whole"
    return sequence_name(stage, shapes, model, way if threads == 1 else f"{way}-{threads}")
