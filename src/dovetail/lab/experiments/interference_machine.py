"""Real models that share this machine's cores kernel by kernel: Poisson arrivals, batches as samples.

Rules of this file
- Models are those of the examples, cut into kernels of a third of a millisecond and more by the product's own cutter.
  A core is a lane: it runs the next kernel of whoever has had the least of the cores since it came. So as many
  batches run at once as a course says, more than there are cores, and only the lanes decide who has one. (Left to the
  operating system, who shares a core with whom is chance: the same four batches take 1.4 or 3 times as long.)
- A batch's time alone is measured before a course and follows those batches that happen to be alone: as the estimator
  of a server would know it.
- A course changes one thing after `before` batches. Everything is measured first and judged later, so that predictors
  take no time from the models.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from ...live.kernels.segment_run import Bound
from ...live.kernels.segments import cut
from ...predict.interference import Beside, Load, quarter_octaves
from ...units import SECOND, US
from ..rivals.interference.common import Sample
from .fikit_models import ONNX_MODELS
from .interference_world import Change

__all__ = ["LARGER", "NEW", "USUAL", "Course", "Machine", "Mix", "measured"]

#: Model -> sizes of its batches.
Mix = Mapping[str, tuple[int, ...]]
USUAL: Mix = {
    "page_way": (4, 8), "text_detector": (1, 2), "line_way": (16, 32), "tiny_reader": (4, 8), "small_reader": (2, 4),
    "nudity": (2, 4),
}  # fmt: skip
#: One more, which is unlike the others: three quarters of its time are one kernel. Any of the seven may be new.
NEW: Mix = {**USUAL, "file_kind": (2, 4)}
#: After a change: larger batches.
LARGER: Mix = {
    "page_way": (16,), "text_detector": (4,), "line_way": (64,), "tiny_reader": (16,), "small_reader": (8,),
    "nudity": (8,),
}  # fmt: skip
#: Length of a kernel, where operators are as short as that.
_KERNEL_NS = 300 * US
#: Runs that a time alone is the median of, and batches alone that it follows.
_ALONE_RUNS, _ALONE_WINDOW = 9, 8
_FOREVER = 1 << 62


class Course(msgspec.Struct, frozen=True):
    """What is measured."""

    seed: int
    change: Change
    before: int
    after: int
    at_once: int = 4
    #: Which of `NEW` nobody has seen before the change to a new model.
    new: str = "file_kind"
    #: Work that arrives, over what the cores can do if nobody slows anybody down.
    load: float = 0.6


class _Batch:
    def __init__(self, model: str, items: int) -> None:
        self.model, self.items = model, items
        self.kernels: Sequence[Callable[[], object]] = ()
        self.bound: Bound | None = None
        self.at = 0
        #: What it has had of the cores, counted from the least that anybody had when it came.
        self.had_ns = 0
        self.begin_ns = self.end_ns = 0
        self.known: list[tuple[_Batch, int]] = []
        self.queued: list[_Batch] = []
        #: Who was there with it.
        self.met: list[_Batch] = []
        self.slots = 0


class Machine:
    """Models that are cut and ready to run, and what batches of them take alone."""

    def __init__(self, mix: Mix, copies: int) -> None:
        self.cores = sorted(os.sched_getaffinity(0))
        self.solo_ns: dict[tuple[str, int], float] = {}
        #: Kernels of a batch with their buffers, for as many as may run at once.
        self.free: dict[tuple[str, int], list[Bound]] = {}
        for name, sizes in sorted(mix.items()):
            model = ONNX_MODELS[name]
            shapes = [model.shapes(items) for items in sizes]
            cuts = cut(
                Path(model.where()), shapes, segments=1 << 20, target_ns=_KERNEL_NS, shortest_ns=_KERNEL_NS // 3
            )
            for items, shape, segments in zip(sizes, shapes, cuts, strict=True):
                self.free[name, items] = [segments.bind(shape) for _ in range(copies)]

    def measure_alone(self) -> None:
        """Times alone of all batches."""
        for key, (bound, *_) in self.free.items():
            times = []
            for _ in range(_ALONE_RUNS + 2):
                begin = time.perf_counter_ns()
                for kernel in bound.begin():
                    kernel()
                times.append(time.perf_counter_ns() - begin)
            self.solo_ns[key] = statistics.median(times[2:])


class _Run:
    """One course on a machine."""

    def __init__(self, machine: Machine, course: Course, watch: Callable[[float], None]) -> None:
        self._machine, self._course, self._watch = machine, course, watch
        self._rng = random.Random(f"machine/{course.seed}/{course.change}")
        self._at_once, self._load = course.at_once, course.load
        self._mix: Mix = USUAL
        if course.change == "new model":
            self._mix = {name: sizes for name, sizes in NEW.items() if name != course.new}
        if course.change == "doubled rate":
            self._load /= 1.5
        self._lock = threading.Condition()
        self._queue: deque[_Batch] = deque()
        self._running: list[_Batch] = []
        #: Those of them that no lane has.
        self._ready: list[_Batch] = []
        self._ended: list[_Batch] = []
        self._over = False
        self._failed: list[BaseException] = []

    def go(self) -> list[_Batch]:
        """The batches in the order of their ends."""
        course = self._course
        threads = [threading.Thread(target=self._lane, args=(core,), daemon=True) for core in self._machine.cores]
        for thread in threads:
            thread.start()
        total, changed = course.before + course.after, False
        # However slow the machine is: a minute and a half for each course.
        until = time.monotonic() + 90
        while len(self._ended) < total and not self._failed and time.monotonic() < until:
            time.sleep(self._rng.expovariate(1.0) * self._interval_s())
            with self._lock:
                if not changed and len(self._ended) >= course.before:
                    changed = True
                    self._change()
                if len(self._queue) < 2 * self._at_once:
                    name = self._rng.choice(sorted(self._mix))
                    self._queue.append(_Batch(name, self._rng.choice(self._mix[name])))
                    self._fill()
            self._watch(min(1.0, len(self._ended) / total))
        with self._lock:
            self._over = True
            self._lock.notify_all()
        for thread in threads:
            thread.join(30)
        if self._failed:
            raise self._failed[0]
        return self._ended[:total]

    def _interval_s(self) -> float:
        works = [
            statistics.fmean(self._machine.solo_ns[name, items] for items in sizes)
            for name, sizes in self._mix.items()
        ]
        return statistics.fmean(works) / SECOND / (self._load * len(self._machine.cores))

    def _change(self) -> None:
        match self._course.change:
            case "new model":
                self._mix = NEW
            case "doubled rate":
                self._load *= 2
            case "other batch mix":
                self._mix = LARGER
            case "more at once":
                self._at_once *= 2
                self._load *= 1.5

    def _lane(self, core: int) -> None:
        try:
            os.sched_setaffinity(0, {core})
            batch: _Batch | None = None
            while True:
                with self._lock:
                    if batch is not None:
                        self._stepped(batch)
                    while not self._over and not self._ready:
                        self._lock.wait(1.0)
                    if self._over:
                        return
                    batch = min(self._ready, key=lambda one: one.had_ns)
                    self._ready.remove(batch)
                begin_ns = time.perf_counter_ns()
                batch.kernels[batch.at]()
                batch.had_ns += time.perf_counter_ns() - begin_ns
        except BaseException as error:
            self._failed.append(error)

    def _stepped(self, batch: _Batch) -> None:
        """A kernel has ended."""
        batch.at += 1
        if batch.at < len(batch.kernels):
            self._ready.append(batch)
            return
        batch.end_ns = time.perf_counter_ns()
        self._running.remove(batch)
        assert batch.bound is not None
        self._machine.free[batch.model, batch.items].append(batch.bound)
        self._ended.append(batch)
        self._fill()

    def _fill(self) -> None:
        """Begin what may begin."""
        while self._queue and len(self._running) < self._at_once:
            batch = self._queue.popleft()
            batch.bound = self._machine.free[batch.model, batch.items].pop()
            batch.kernels = batch.bound.begin()
            self._begin(batch)
            self._ready.append(batch)
            self._lock.notify()

    def _begin(self, batch: _Batch) -> None:
        batch.begin_ns = time.perf_counter_ns()
        batch.had_ns = min((other.had_ns for other in self._running), default=0)
        for other in self._running:
            solo = self._machine.solo_ns[other.model, other.items]
            left = round(solo * (1 - other.at / len(other.kernels)))
            batch.known.append((other, max(1, left)))
            other.met.append(batch)
            batch.met.append(other)
        batch.queued = list(self._queue)
        batch.slots = self._at_once
        self._running.append(batch)


def measured(course: Course, watch: Callable[[float], None]) -> list[Sample]:
    """All batches of a course as samples."""
    mix = dict(NEW if course.change == "new model" else USUAL)
    if course.change == "other batch mix":
        mix = {name: (*sizes, *LARGER[name]) for name, sizes in mix.items()}
    machine = Machine(mix, 2 * course.at_once)
    machine.measure_alone()
    batches = _Run(machine, course, watch).go()
    return _samples(machine, batches)


def _samples(machine: Machine, batches: Sequence[_Batch]) -> list[Sample]:
    """In the order of ends, each with what was known of times alone by then."""
    solo = {key: [ns] * _ALONE_WINDOW for key, ns in machine.solo_ns.items()}
    share_pct = round(100 / len(machine.cores))

    def alone_ns(batch: _Batch) -> int:
        return round(statistics.median(solo[batch.model, batch.items]))

    def load(batch: _Batch) -> Load:
        return Load(batch.model, batch.items, share_pct, quarter_octaves(alone_ns(batch)))

    samples = []
    for batch in batches:
        begin, took = batch.begin_ns, batch.end_ns - batch.begin_ns
        beside = tuple(
            Beside(load(o), o.begin_ns - begin, (o.end_ns or _FOREVER) - begin if o.end_ns else _FOREVER)
            for o in batch.met
        )
        if not beside:
            row = solo[batch.model, batch.items]
            row.append(took)
            del row[0]
        known = tuple(Beside(load(o), 0, left) for o, left in batch.known)
        queued = tuple(Beside(load(o), 0, alone_ns(o)) for o in batch.queued)
        samples.append(Sample("cpu", load(batch), alone_ns(batch), took, known, beside, queued, batch.slots))
    return samples
