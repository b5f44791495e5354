"""Real models that run beside each other on this machine's cores: Poisson arrivals, batches as samples.

Rules of this file
- Models are those of the examples, each batch on one core. As many run at once as a course says; who comes later waits.
  With more than there are cores, the operating system shares them.
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
from typing import Any

import msgspec
import numpy as np

from ...predict.interference import Beside, Load, quarter_octaves
from ...units import SECOND
from ..rivals.interference.common import Sample
from .fikit_models import ONNX_MODELS
from .interference_world import Change

__all__ = ["Course", "Machine", "Mix", "measured"]

#: Model -> sizes of its batches.
Mix = Mapping[str, tuple[int, ...]]
USUAL: Mix = {
    "page_way": (16, 32), "text_detector": (4, 8), "line_way": (64, 128), "tiny_reader": (16, 32),
    "small_reader": (8, 16), "file_kind": (16, 32),
}  # fmt: skip
#: After a change: a model that nobody has seen, and larger batches.
NEW: Mix = {**USUAL, "nudity": (8, 16)}
LARGER: Mix = {
    "page_way": (64,), "text_detector": (16,), "line_way": (256,), "tiny_reader": (64,), "small_reader": (32,),
    "file_kind": (64,),
}  # fmt: skip
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
    #: Work that arrives, over what the cores can do if nobody slows anybody down.
    load: float = 0.6


class _Batch:
    def __init__(self, model: str, items: int) -> None:
        self.model, self.items = model, items
        self.begin_ns = self.end_ns = 0
        self.known: list[tuple[_Batch, int]] = []
        self.queued: list[_Batch] = []
        #: Who was there with it, by begin.
        self.met: list[_Batch] = []
        self.slots = 0


class Machine:
    """Models that are ready to run, each with one core."""

    def __init__(self, names: Sequence[str], threads: int) -> None:
        import onnxruntime

        self._run: dict[str, Callable[[int], object]] = {}
        for name in names:
            model = ONNX_MODELS[name]
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            session = onnxruntime.InferenceSession(model.where(), options, providers=["CPUExecutionProvider"])
            kind = np.int32 if session.get_inputs()[0].type == "tensor(int32)" else np.float32
            self._run[name] = _runner(session, model.input, model.item, kind)
        self.cores = len(os.sched_getaffinity(0))
        self.solo_ns: dict[tuple[str, int], float] = {}
        self._threads = threads

    def measure_alone(self, mix: Mix) -> None:
        """Times alone of all batches that a mix has."""
        for name, sizes in mix.items():
            for items in sizes:
                if (name, items) not in self.solo_ns:
                    times = []
                    for _ in range(_ALONE_RUNS + 2):
                        begin = time.perf_counter_ns()
                        self._run[name](items)
                        times.append(time.perf_counter_ns() - begin)
                    self.solo_ns[name, items] = statistics.median(times[2:])

    def run(self, course: Course, watch: Callable[[float], None]) -> list[_Batch]:
        """The batches of a course in the order of their ends."""
        return _Run(self, course, watch).go()

    def work(self, name: str, items: int) -> None:
        """One batch."""
        self._run[name](items)


def _runner(session: Any, name: str, item: tuple[int, ...], kind: Any) -> Callable[[int], object]:
    inputs: dict[int, Any] = {}

    def run(items: int) -> object:
        if items not in inputs:
            inputs[items] = np.ones((items, *item), kind)
        return session.run(None, {name: inputs[items]})

    return run


class _Run:
    """One course on a machine."""

    def __init__(self, machine: Machine, course: Course, watch: Callable[[float], None]) -> None:
        self._machine, self._course, self._watch = machine, course, watch
        self._rng = random.Random(f"machine/{course.seed}/{course.change}")
        self._mix, self._at_once, self._load = USUAL, course.at_once, course.load
        if course.change == "doubled rate":
            self._load /= 1.5
        self._lock = threading.Condition()
        self._queue: deque[_Batch] = deque()
        self._running: list[_Batch] = []
        self._ended: list[_Batch] = []
        self._over = False
        self._failed: list[BaseException] = []

    def go(self) -> list[_Batch]:
        course = self._course
        self._machine.measure_alone(NEW if course.change == "new model" else USUAL)
        if course.change == "other batch mix":
            self._machine.measure_alone(LARGER)
        threads = [threading.Thread(target=self._lane, daemon=True) for _ in range(2 * course.at_once)]
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
                    self._lock.notify()
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
        return statistics.fmean(works) / SECOND / (self._load * self._machine.cores)

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

    def _lane(self) -> None:
        try:
            while True:
                with self._lock:
                    while not self._over and not (self._queue and len(self._running) < self._at_once):
                        self._lock.wait(1.0)
                    if self._over:
                        return
                    batch = self._queue.popleft()
                    self._begin(batch)
                self._machine.work(batch.model, batch.items)
                with self._lock:
                    batch.end_ns = time.perf_counter_ns()
                    self._running.remove(batch)
                    self._ended.append(batch)
                    self._lock.notify()
        except BaseException as error:
            self._failed.append(error)

    def _begin(self, batch: _Batch) -> None:
        batch.begin_ns = now_ns = time.perf_counter_ns()
        # What is left of those who run, if they had their part of the cores so far.
        part = min(1.0, self._machine.cores / max(1, len(self._running)))
        for other in self._running:
            solo = self._machine.solo_ns[other.model, other.items]
            batch.known.append((other, max(1, round(solo - (now_ns - other.begin_ns) * part))))
            other.met.append(batch)
            batch.met.append(other)
        batch.queued = list(self._queue)
        batch.slots = self._at_once
        self._running.append(batch)


def measured(course: Course, watch: Callable[[float], None]) -> list[Sample]:
    """All batches of a course as samples."""
    machine = Machine(sorted({*USUAL, *NEW}), 2 * course.at_once)
    return _samples(machine, machine.run(course, watch))


def _samples(machine: Machine, batches: Sequence[_Batch]) -> list[Sample]:
    """In the order of ends, each with what was known of times alone by then."""
    solo = {key: [ns] * _ALONE_WINDOW for key, ns in machine.solo_ns.items()}
    share_pct = round(100 / machine.cores)

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
