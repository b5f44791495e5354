"""A stage's model as kernels, for batches of any size: cut once, bound once per shape, and large batches in steps.

Rules of this file
- Batches are divided where that costs nothing. A core is often as fast with one item after the other as with eight at
  once; then eight are eight short runs, not kernels eight times as long. Which step is as good as the whole batch is
  measured when the model is loaded.
- A model is cut for the step, and where that is large, once more and coarser for the smallest. Both share weights.
  Segments that are still short at some size are put together with those after them into one kernel, so that the
  arbiter is not asked more often than is worth it.
- Where only the batch axis is free, everything is made ready at the load. Where other axes are free, too, the model
  runs whole until a first batch has shown how large items are (`CutModel.saw`).
- A model that cannot be cut, or is too short to be worth it, is one kernel.
- What is measured is never the same twice, and so are cuts. `CutModel.cut` is what there is to remember, so that the
  next process cuts alike: else nothing that was learned of kernels would be of use there.

Batches (`batch_run`) are planned by one thread, run by another, and models are cut by a third: shapes are looked up
under a lock.
"""

from __future__ import annotations

import hashlib
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from ...errors import DovetailError
from ...profile.kernels import MOST_SHAPES, Cut
from ...workflow.graph import StageSpec
from ...workflow.runners import ModelRunner, make_model
from ...workflow.torch_runner import TorchRunner
from .batch_run import EVERY, FINE_FROM, BatchRun, Columns, Key, Known, Spans
from .optimised import GRAPH
from .segment_run import Bound, Segments, Shape
from .segments import SHORTEST_NS, cut, cut_again, read_cut

__all__ = ["CutModel", "merge", "smallest_step"]

#: How long a segment should be. Where one ends, tensors leave the cache: of a model of 20 ms every cut costs 50 to
#: 150 µs (measured), so that half as long ones would cost 5 to 10 %.
TARGET_NS = 2_500_000
#: Segments of a model at most; to choose where to cut takes time by their number.
MOST_SEGMENTS = 32
#: What a batch may take longer in steps.
STEP_COST = 1.05
#: What cutting may cost, unless somebody insists on it, and what is reckoned for beginning a kernel.
MOST_COST = 1.05
KERNEL_NS = 5_000
#: Runs by which batches and segments are measured when a model is loaded, after the first.
MEASURED_RUNS = 5
#: Sets of buffers that are kept for one model; the one used longest ago is let go first.
MOST_BOUND = 12

#: Why a model is one kernel, where that is remembered.
SHORT, DEAR = "it is short", "in kernels it would take {:.0%} longer"


def merge(lengths_ns: Sequence[int], shortest_ns: int) -> Spans:
    """Which segments make up a kernel, as (first, end): in a row until they last so long."""
    ends, passed_ns = [0], 0
    for position, length_ns in enumerate(lengths_ns):
        passed_ns += length_ns
        if passed_ns >= shortest_ns:
            ends.append(position + 1)
            passed_ns = 0
    if ends[-1] != len(lengths_ns):
        ends[max(1, len(ends) - 1) :] = [len(lengths_ns)]
    return list(pairwise(ends))


def smallest_step(rounds: Sequence[dict[int, int]]) -> int:
    """The smallest batch size at which an item takes about as long as in the largest batch.

    Each round has the time of every batch size, one measured right after the other: a busy neighbour meets them all.
    """
    largest = max(rounds[0])

    def slower(batch: int) -> float:
        return statistics.median(r[batch] / batch / (r[largest] / largest) for r in rounds)

    return min(batch for batch in rounds[0] if batch == largest or slower(batch) <= STEP_COST)


class CutModel:
    """A stage's model, loaded; in kernels once `make_ready` was called."""

    def __init__(
        self,
        spec: StageSpec,
        before: Cut | None = None,
        *,
        threads: int = 1,
        lean: bool = False,
        dear: bool = True,
        copy: Path | None = None,
    ) -> None:
        """`threads` run each kernel; a `lean` one keeps as little as it can between two runs.

        `copy` is where the copy of its weights is that all workers share, if there is one.

        Unless it may be `dear`, it stays whole where cutting it would cost more than `MOST_COST`.
        """
        self.spec = spec
        self.threads = threads
        self._lean = lean
        self._copy = copy
        self._dear = dear
        #: How it was cut in another process, if that is known.
        self._before = before
        #: Where that was written to, if it was.
        self._files = ""
        runner = self.whole()
        #: What stacks items, and runs the whole model while it is not cut; once it is, its segments for small and for
        #: large steps; and how many items a step has at most.
        self.ways: tuple[ModelRunner, tuple[Segments, ...], int] = (runner, (), 1)
        #: Names of its inputs.
        self.inputs = list(runner.inputs)
        #: Why it is one kernel for good; empty if it is not.
        self.whole_because = ""
        #: Shapes of one item with its batch axis, at which it is to be cut; known at once if only that axis is free.
        self.wants: Key | None = None
        self._free: list[tuple[Segments, Key, Bound]] = []
        #: Which segments make up a kernel at a shape, and what these are.
        self._known: dict[tuple[Segments, Key], Known] = {}
        #: Where kernels end in another process.
        self._ends: dict[tuple[Segments, Key], tuple[int, ...]] = {}
        self._lock = threading.Lock()
        declared = list(runner.inputs.values())
        fixed = [dims[0] for dims in declared if isinstance(dims[0], int)]
        #: Batch sizes to be expected: those declared, unless the file allows but one.
        self._batches = tuple(fixed[:1]) or spec.batch
        if all(isinstance(dim, int) for dims in declared for dim in dims[1:]):
            self.wants = tuple((1, *dims[1:]) for dims in declared)
        elif before is not None and [len(shape) for shape in before.item] == [len(dims) for dims in declared]:
            self.wants = before.item

    @property
    def uncut(self) -> bool:
        """Whether it is whole and could be cut now."""
        return not self.ways[1] and not self.whole_because and self.wants is not None

    def whole(self) -> ModelRunner:
        """The model in one piece, loaded anew."""
        optimised = "" if self._copy is None else str(self._copy / GRAPH)
        return make_model(self.spec, self.threads, lean=self._lean, optimised=optimised)

    def cut_like(self, before: Cut, files: str = "") -> None:
        """Cut it as was found out elsewhere, by what was written to these files if there are any."""
        self._before, self.wants, self._files = before, before.item, files
        self.make_ready()

    def saw(self, shapes: Key) -> bool:
        """A batch of this shape was planned while it is whole; True if it can be made ready now, told once."""
        if self.whole_because or self.wants is not None:
            return False
        self.wants = tuple((1, *shape[1:]) for shape in shapes)
        return True

    # -- at the load --------------------------------------------------------------------------------------------

    def make_ready(self) -> None:
        """Cut it at the shapes it `wants`. Takes seconds; batches that are planned meanwhile run whole."""
        runner = self.ways[0]
        if self._before is not None and self._cut_as_before(runner, self._before):
            return
        try:
            step = smallest_step(self._measured_whole(runner))
            sizes = (min(self._batches), step) if step >= FINE_FROM else (step,)
            shapes = [dict(zip(self.inputs, self._key(size), strict=True)) for size in sizes]
            cuts = self._cut_at(runner, shapes)
            if len(cuts[-1].parts) == 1 and step == max(self._batches):
                self.whole_because = SHORT
                return
            for size in [b for b in self._batches if b <= step]:
                self._bind(runner, cuts[-1 if size >= FINE_FROM else 0], size)
            cost = self._cost(runner, cuts[-1 if step >= FINE_FROM else 0], step)
        except (DovetailError, KeyError) as error:  # an output that no segment makes has no buffer
            self.whole_because = str(error)
            return
        if cost > MOST_COST and not self._dear:
            self.whole_because = DEAR.format(cost - 1)
            self._forget()
            return
        self.ways = runner.without_session(), (cuts[0], cuts[-1]), step

    def _cut_as_before(self, runner: ModelRunner, before: Cut) -> bool:
        """Whether it could be cut as another process did."""
        if not before.at:
            self.whole_because = SHORT if max(self._batches) <= before.step and not self._dear else ""
            return bool(self.whole_because)
        try:
            cuts = self._cut_again(runner, before)
            self._ends = {(cuts[which], key): ends for which, key, ends in before.kernels}
            # A lean one has no buffers before it needs them; whoever found out where to cut it knows that they fit.
            for size in [b for b in self._batches if b <= before.step and not self._lean]:
                self._bind(runner, cuts[-1 if size >= FINE_FROM else 0], size)
        except (DovetailError, KeyError):  # another graph, or not what was kept
            self._ends = {}
            self._forget()
            return False
        self.ways = runner.without_session(), (cuts[0], cuts[-1]), before.step
        return True

    def _cut_at(self, runner: ModelRunner, shapes: list[dict[str, Shape]]) -> Sequence[Segments]:
        """Find out where to cut it at each of these shapes."""
        find: Callable[..., Sequence[Segments]] = partial(cut, Path(self.spec.path), lean=self._lean, copy=self._copy)
        if isinstance(runner, TorchRunner):
            from . import torch_kernels

            find = partial(torch_kernels.cut, runner.module, dtypes=runner.dtypes)
        wanted = {"segments": MOST_SEGMENTS, "target_ns": TARGET_NS, "shortest_ns": SHORTEST_NS}
        return find(shapes, **wanted, threads=self.threads)

    def _cut_again(self, runner: ModelRunner, before: Cut) -> Sequence[Segments]:
        """Cut it where it was cut before. Of a torch module nothing has to be written to files for that."""
        if isinstance(runner, TorchRunner):
            from . import torch_kernels

            return torch_kernels.cut_again(runner.module, before.at, dtypes=runner.dtypes, threads=self.threads)
        if self._files:
            return read_cut(Path(self._files), threads=self.threads, lean=self._lean)
        return cut_again(Path(self.spec.path), before.at, threads=self.threads, lean=self._lean, copy=self._copy)

    def cut(self) -> Cut | None:
        """How it is cut, for other processes to do the same; None if it is not."""
        _, cuts, step = self.ways
        worth = self.whole_because in ("", SHORT) or self.whole_because.startswith(DEAR[:10])
        if self.wants is None or not worth:
            return None
        if self.whole_because:
            return Cut(self.spec.model, self.wants, max(self._batches))
        if not cuts:
            return None
        different = list(dict.fromkeys(cuts))
        at = tuple(tuple(part.first for part in segments.parts[1:]) for segments in different)
        with self._lock:
            kernels = tuple(
                (different.index(segments), key, tuple(end for _, end in spans))
                for (segments, key), (spans, _, _) in self._known.items()
            )
        return Cut(self.spec.model, self.wants, step, at, kernels)

    def _clock_ns(self) -> int:
        """The processor's time of this thread, if it does all the work: a busy neighbour does not count."""
        return time.thread_time_ns() if self.threads == 1 else time.perf_counter_ns()

    def _cost(self, runner: ModelRunner, segments: Segments, batch: int) -> float:
        """How many times as long a batch takes in kernels, by runs of both in turn."""
        key = self._key(batch)
        bound = self.take(segments, key)
        if bound is None:
            return 1.0
        column = [[np.zeros(shape[1:])] * batch for shape in key]
        ratios = []
        for _ in range(2 * MEASURED_RUNS):
            begin_ns = self._clock_ns()
            runner.run(column)
            between_ns = self._clock_ns()
            for kernel in bound.begin():
                kernel()
            end_ns = self._clock_ns()
            asking_ns = KERNEL_NS * len(segments.parts)
            ratios.append((end_ns - between_ns + asking_ns) / max(1, between_ns - begin_ns))
        self.give_back(segments, key, bound)
        return statistics.median(ratios)

    def _key(self, batch: int) -> Key:
        assert self.wants is not None
        return tuple((batch, *shape[1:]) for shape in self.wants)

    def _measured_whole(self, runner: ModelRunner) -> list[dict[int, int]]:
        """How long the whole model takes at each batch size, by the processor's time, round by round."""
        columns = {b: [[np.zeros(shape[1:])] * b for shape in self._key(b)] for b in self._batches}
        rounds: list[dict[int, int]] = [{} for _ in range(MEASURED_RUNS + 1)]
        for lengths_ns in rounds:
            for batch, column in columns.items():
                begin_ns = self._clock_ns()
                runner.run(column)
                lengths_ns[batch] = max(1, self._clock_ns() - begin_ns)
        return rounds[1:]

    def _bind(self, runner: ModelRunner, segments: Segments, batch: int) -> None:
        """Make buffers for a size, and measure how long segments take."""
        key = self._key(batch)
        shapes = dict(zip(self.inputs, key, strict=True))
        bound = segments.bind({name: shapes[name] for name in segments.inputs})
        lengths_ns = [1 << 62] * len(segments.parts)
        for _ in range(MEASURED_RUNS):
            for position, kernel in enumerate(bound.begin()):
                begin_ns = self._clock_ns()
                kernel()
                lengths_ns[position] = min(lengths_ns[position], self._clock_ns() - begin_ns)
        runner.apart([bound.buffer(name) for name in segments.outputs], batch)
        self.learn(segments, key, lengths_ns, bound.idents)
        self.give_back(segments, key, bound)

    # -- for batches --------------------------------------------------------------------------------------------

    def plan(self, columns: Columns, spec: StageSpec | None = None, at_once: int = EVERY) -> BatchRun:
        """A batch's kernels; `spec` is the stage, if it is another one with the same weights."""
        return BatchRun(self, columns, spec or self.spec, at_once)

    def known(self, segments: Segments, key: Key) -> Known | None:
        """Which segments make up a kernel at this shape, and what these are; None before the first run."""
        with self._lock:
            return self._known.get((segments, key))

    def learn(self, segments: Segments, key: Key, lengths_ns: Sequence[int], idents: Sequence[str]) -> None:
        """How long segments take at a shape; the first word counts, so that all its runs have the same kernels."""
        ends = self._ends.get((segments, key), ())
        spans = list(pairwise((0, *ends))) if ends and ends[-1] == len(lengths_ns) else merge(lengths_ns, SHORTEST_NS)
        parts = segments.parts
        nodes = [(key, *((parts[i].what, parts[i].first, parts[i].last) for i in range(*span))) for span in spans]
        tag = hashlib.sha256(repr(nodes).encode()).hexdigest()[:8]
        names = [idents[first] + (f"+{end - first - 1}" if end > first + 1 else "") for first, end in spans]
        with self._lock:
            if len(self._known) < MOST_SHAPES:
                self._known.setdefault((segments, key), (spans, names, tag))

    def take(self, segments: Segments, key: Key) -> Bound | None:
        """Buffers for this shape that nobody uses; None if there are none."""
        with self._lock:
            for position in range(len(self._free) - 1, -1, -1):
                if self._free[position][:2] == (segments, key):
                    return self._free.pop(position)[2]
        return None

    def give_back(self, segments: Segments, key: Key, bound: Bound) -> None:
        """Buffers that are not used any more, for the next that comes with this shape."""
        with self._lock:
            if not self.whole_because:
                self._free.append((segments, key, bound))
                del self._free[: -(1 if self._lean else MOST_BOUND)]

    def rest(self) -> None:
        """A batch has ended: a lean model keeps buffers from one step to the next, and no longer."""
        if self._lean:
            with self._lock:
                self._free.clear()

    def stay_whole(self, runner: ModelRunner, why: str) -> None:
        """It turned out that it cannot be cut."""
        self.whole_because = why
        self.ways = runner, (), 1
        self._forget()

    def _forget(self) -> None:
        with self._lock:
            self._free.clear()
            self._known.clear()
