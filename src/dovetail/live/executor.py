"""How a worker carries out batches: on this machine's cores, or on an emulated device.

Both keep the worker contract (tests/contract): a batch starts inside its window or is refused, every batch is
answered exactly once, shares of running batches never exceed the device, and nothing runs without its model. The
arbiter decides when a batch may start; today a batch is one kernel to it.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from ..control import BatchFailed, BatchFinished, Event, LoadModel, ModelLoaded, RunBatch
from ..device import FirstComeArbiter, KernelFinished, KernelReady, StartKernel
from ..errors import DovetailError
from ..profile.table import ProfileTable
from ..sim.device import SimDevice
from ..workflow import load_target
from ..workflow.local import count_of, pick
from ..workflow.runners import OnnxRunner, Runner, make_runner
from .arena import Arena, ArenaFull
from .codec import Ref, decode, encode
from .wire import Argument, Done, Failed, FromWorker, Hello, Load, Loaded, LoadFailure, Run

__all__ = ["CpuExecutor", "EmulatedExecutor", "Executor"]

Answer = Callable[[FromWorker], None]
WakeAt = Callable[[int, object], None]
#: Longest error text that goes back: enough for a message, too little to flood a log.
MAX_DETAIL_CHARS = 2000


class Executor(Protocol):
    """Carries out batches on one device."""

    arena_lock: threading.Lock

    def load(self, message: Load, now_ns: int) -> None:
        """Load a stage's model and answer."""

    def evict(self, stage: str) -> None:
        """Let a stage's model go."""

    def run(self, message: Run, now_ns: int) -> None:
        """Run a batch when its window and the arbiter allow, and answer."""

    def wake(self, payload: object, now_ns: int) -> None:
        """A time that was asked for has come."""

    def close(self) -> None:
        """Stop taking work."""


class _Values:
    """Reads arguments from arenas and writes results into the worker's own."""

    def __init__(self, hello: Hello, arenas: dict[int, Arena]) -> None:
        self._arenas = arenas
        self._own = arenas[hello.worker]
        #: The arena is written by lanes and freed by the main thread.
        self.arena_lock = threading.Lock()

    def columns(self, message: Run) -> list[list[Any]]:
        """The batch's arguments; a value that several items use is decoded once."""
        decoded: dict[tuple[int, int], Any] = {}

        def value(ref: Ref) -> Any:
            key = (ref.arena, ref.offset)
            if key not in decoded:
                decoded[key] = decode(ref, self._arenas)
            return decoded[key]

        def argument(a: Argument) -> Any:
            if a.gather:
                return [pick(value(ref), a.output) for ref in a.refs]
            if not a.refs:
                return None  # a step that its condition skipped, without an `otherwise`
            whole = pick(value(a.refs[0]), a.output)
            return whole if a.element < 0 else whole[a.element]

        return [[argument(a) for a in column] for column in message.columns]

    def store(self, values: list[Any]) -> list[Ref]:
        """Results into the arena; all or nothing."""
        refs: list[Ref] = []
        with self.arena_lock:
            try:
                for value in values:
                    refs.append(encode(value, self._own))  # noqa: PERF401 - those so far are freed if one fails
            except DovetailError:
                for ref in refs:
                    self._own.free(ref.offset)
                raise
        return refs


def _counts(values: list[Any], counted: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(
        count_of(pick(value, output)) for value, outputs in zip(values, counted, strict=True) for output in outputs
    )


class CpuExecutor:
    """Runs models and Python functions in lanes on this machine's cores."""

    def __init__(
        self,
        hello: Hello,
        arenas: dict[int, Arena],
        answer: Answer,
        wake_at: WakeAt,
        now_ns: Callable[[], int],
    ) -> None:
        self._values = _Values(hello, arenas)
        self.arena_lock = self._values.arena_lock
        self._answer = answer
        self._wake_at = wake_at
        self._now_ns = now_ns
        self._specs = {s.name: s for s in hello.stages}
        self._app = load_target(hello.target) if hello.target and "python" in hello.spec.runs else None
        self._cores = hello.spec.cores
        #: (stage, threads) -> loaded model.
        self._runners: dict[tuple[str, int], Runner] = {}
        self._loaded: set[str] = set()
        self._arbiter = FirstComeArbiter()
        self._arbiter_lock = threading.Lock()
        self._waiting: dict[int, Run] = {}
        self._lanes: SimpleQueue[Run | None] = SimpleQueue()
        self._loads: SimpleQueue[Load | None] = SimpleQueue()
        lanes = 1 if self._app is not None else hello.spec.cores
        self._threads = [threading.Thread(target=self._lane, daemon=True) for _ in range(lanes)]
        self._threads.append(threading.Thread(target=self._loader, daemon=True))
        for thread in self._threads:
            thread.start()
        # Models and arenas live as long as the process: keep the collector from walking them.
        gc.freeze()

    def load(self, message: Load, now_ns: int) -> None:
        """Load in a thread of its own, so that batches of other stages go on meanwhile."""
        self._loads.put(message)

    def _loader(self) -> None:
        while (message := self._loads.get()) is not None:
            spec = self._specs[message.stage]
            try:
                self._runner(message.stage, self._cores)
            except DovetailError as error:
                self._answer(LoadFailure(message.stage, str(error)[:MAX_DETAIL_CHARS], message.cause))
                continue
            self._loaded.add(message.stage)
            self._answer(Loaded(message.stage, spec.weights_bytes, message.cause))

    def _runner(self, stage: str, threads: int) -> Runner:
        runner = self._runners.get((stage, threads))
        if runner is None:
            spec = self._specs[stage]
            if spec.kind == "python":
                if self._app is None:
                    raise DovetailError(f"stage {stage!r} is Python, which this worker does not run")
                runner = make_runner(self._app.stages[stage])
            else:
                runner = OnnxRunner(spec, threads)
            self._runners[stage, threads] = runner
        return runner

    def evict(self, stage: str) -> None:
        """Forget the model; a batch that is running keeps it alive until it ends."""
        self._loaded.discard(stage)
        for key in [k for k in self._runners if k[0] == stage]:
            del self._runners[key]

    def run(self, message: Run, now_ns: int) -> None:
        """Ask the arbiter as soon as the window is open."""
        if message.stage not in self._loaded:
            self._answer(Failed(message.batch, message.cause, now_ns, now_ns, "not_loaded", message.stage))
        elif message.earliest_ns > now_ns:
            self._wake_at(message.earliest_ns, message)
        else:
            self.wake(message, now_ns)

    def wake(self, payload: object, now_ns: int) -> None:
        """The window of a batch has opened."""
        assert isinstance(payload, Run)
        with self._arbiter_lock:
            self._waiting[payload.batch] = payload
            self._start(self._arbiter.step(KernelReady(now_ns, payload.batch, 0, payload.share_pct)))

    def _start(self, started: list[StartKernel]) -> None:
        for kernel in started:
            self._lanes.put(self._waiting.pop(kernel.task))

    def _lane(self) -> None:
        while (message := self._lanes.get()) is not None:
            reply = self._carry_out(message)
            with self._arbiter_lock:
                started = self._arbiter.step(KernelFinished(self._now_ns(), message.batch, 0))
                self._start(started)
            self._answer(reply)

    def _carry_out(self, message: Run) -> FromWorker:
        begin = self._now_ns()
        if begin > message.latest_ns:
            return Failed(message.batch, message.cause, begin, begin, "too_late", "")
        try:
            runner = self._runner(message.stage, message.cpus if self._app is None else 1)
            values = runner.run(self._values.columns(message))
            counts = _counts(values, message.counted)
            results = self._values.store(values)
        except ArenaFull as error:
            return Failed(message.batch, message.cause, begin, self._now_ns(), "no_memory", str(error))
        except DovetailError as error:
            detail = str(error)[:MAX_DETAIL_CHARS]
            return Failed(message.batch, message.cause, begin, self._now_ns(), "error", detail)
        except Exception as error:  # whatever it is, the batch must be answered
            detail = f"{type(error).__name__}: {error}"[:MAX_DETAIL_CHARS]
            return Failed(message.batch, message.cause, begin, self._now_ns(), "error", detail)
        return Done(message.batch, message.cause, begin, self._now_ns(), results, counts)

    def close(self) -> None:
        """Let idle lanes end."""
        for _ in self._threads[:-1]:
            self._lanes.put(None)
        self._loads.put(None)


class EmulatedExecutor:
    """The simulated device against the real clock: times of a GPU, values held from the first real run.

    The first batch of a stage is computed for real on the processor, once, and its first result is what every later
    item of that stage gets. So times are those of the emulated device and shapes and fan-out are plausible, but
    answers are not those of the inputs; every reply is labelled so.
    """

    def __init__(self, hello: Hello, arenas: dict[int, Arena], answer: Answer, wake_at: WakeAt) -> None:
        self._values = _Values(hello, arenas)
        self.arena_lock = self._values.arena_lock
        self._answer = answer
        self._specs = {s.name: s for s in hello.stages}
        self._held: dict[str, Any] = {}
        self._runs: dict[int, Run] = {}
        self._device = SimDevice(
            hello.worker,
            hello.spec,
            self._specs,
            ProfileTable(hello.entries),
            lambda at_ns, _device, payload: wake_at(at_ns, payload),
        )

    def load(self, message: Load, now_ns: int) -> None:
        """Takes as long as the weights take to the emulated device."""
        self._report(self._device.take(LoadModel(message.cause, 0, message.stage), now_ns))

    def evict(self, stage: str) -> None:
        """Nothing is held on a real device."""

    def run(self, message: Run, now_ns: int) -> None:
        """Hand the batch to the simulated device."""
        self._runs[message.batch] = message
        items = tuple((0, 0, 0) for _ in message.counted)
        self._report(
            self._device.take(
                RunBatch(
                    message.cause,
                    message.batch,
                    0,
                    message.stage,
                    items,
                    message.cpus,
                    message.share_pct,
                    message.earliest_ns,
                    message.latest_ns,
                    0,
                ),
                now_ns,
            )
        )

    def wake(self, payload: object, now_ns: int) -> None:
        """The simulated device asked for this time."""
        self._report(self._device.wake(payload, now_ns))

    def _report(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ModelLoaded):
                self._answer(Loaded(event.stage, event.nbytes, event.cause))
            elif isinstance(event, BatchFinished):
                self._answer(self._finished(event))
            elif isinstance(event, BatchFailed):
                self._runs.pop(event.batch)
                self._answer(
                    Failed(event.batch, event.cause, event.begin_ns, event.end_ns, event.reason, event.detail)
                )

    def _finished(self, event: BatchFinished) -> FromWorker:
        message = self._runs.pop(event.batch)
        try:
            values = [self._value(message)] * len(message.counted)
            counts = _counts(values, message.counted)
            results = self._values.store(values)
        except DovetailError as error:
            return Failed(message.batch, message.cause, event.begin_ns, event.end_ns, "error", str(error))
        return Done(message.batch, message.cause, event.begin_ns, event.end_ns, results, counts)

    def _value(self, message: Run) -> Any:
        held = self._held.get(message.stage)
        if held is None:
            spec = self._specs[message.stage]
            if spec.kind == "onnx":
                columns = [column[:1] for column in self._values.columns(message)]
                held = OnnxRunner(spec, threads=1).run(columns)[0]
            else:
                held = np.zeros(1, dtype=np.float32)
            self._held[message.stage] = held
        return held

    def close(self) -> None:
        """Nothing to wait for."""
