"""Batches on this machine's cores: models and Python functions, in lanes.

A lane is one of the worker's threads while it runs a batch. There are as many as cores; onnxruntime lets go of the
interpreter lock while it computes. Models are loaded by a thread of their own, so that batches of other stages go on
meanwhile. What a share is here: a number of threads in a session of its own. It is not fenced; the operating system
divides the cores between all that run.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from ...device import Arbiter, FirstComeArbiter, KernelFinished, KernelReady, StartKernel
from ...errors import DovetailError
from ...workflow.app import App
from ...workflow.runners import OnnxRunner, Runner, make_runner
from ..links.wire import Done, Failed, FromWorker, Hello, Load, Loaded, LoadFailure, Run
from ..tensors.arena import ArenaFull
from .executor import MAX_DETAIL_CHARS, Answer, Values, WakeAt, Work, counts

__all__ = ["CpuExecutor", "told"]

#: How long a finished batch waits for room for its results, holding its share, before it counts as failed. The front
#: admits no more than should fit (`door`), so this is for the rare case that requests grew.
MEMORY_WAIT_SECONDS = 0.5


class _Task:
    """A batch with the models that were loaded when it was taken."""

    __slots__ = ("message", "runners")

    def __init__(self, message: Run, runners: dict[int, Runner]) -> None:
        self.message = message
        self.runners = runners


class CpuExecutor:
    """Runs models, or the Python functions of `app`: a worker does one or the other."""

    def __init__(
        self,
        hello: Hello,
        app: App | None,
        values: Values,
        answer: Answer,
        wake_at: WakeAt,
        now_ns: Callable[[], int],
        hand: Callable[[Work], None],
    ) -> None:
        #: Batches that run at once. Python holds its interpreter, so a second lane would only take turns.
        self.lanes = 1 if app is not None else hello.spec.cores
        self._app = app
        self._values = values
        self._answer = answer
        self._wake_at = wake_at
        self._now_ns = now_ns
        #: Finds another thread for a batch.
        self._hand = hand
        self._specs = {s.name: s for s in hello.stages}
        self._cpus = hello.cpus if app is None else (1,)
        #: Stage -> threads -> its model. An entry exists while the stage is loaded or being loaded.
        self._runners: dict[str, dict[int, Runner]] = {}
        self._loaded: set[str] = set()
        self._making = threading.Lock()
        self._arbiter: Arbiter = FirstComeArbiter()
        self._arbiter_lock = threading.Lock()
        self._waiting: dict[int, _Task] = {}
        #: Batches that the arbiter has let start, but all lanes are busy.
        self._started: deque[_Task] = deque()
        self._busy = 0
        self._loads: SimpleQueue[tuple[Load, dict[int, Runner]]] = SimpleQueue()
        threading.Thread(target=self._loader, daemon=True).start()

    # -- models -------------------------------------------------------------------------------------------------

    def load(self, message: Load, now_ns: int) -> None:
        """Load a stage's model and answer."""
        self._loads.put((message, self._runners.setdefault(message.stage, {})))

    def evict(self, stage: str) -> None:
        """Let a stage's model go; a batch that was taken before still has it."""
        self._loaded.discard(stage)
        self._runners.pop(stage, None)

    def _loader(self) -> None:
        while True:
            message, runners = self._loads.get()
            stage = message.stage
            try:
                for cpus in self._cpus:
                    self._runner(stage, cpus, runners)
                if self._runners.get(stage) is not runners:
                    raise DovetailError(f"stage {stage!r} was evicted while it was being loaded")
            except BaseException as error:  # whatever it is, the load must be answered
                self._answer(LoadFailure(stage, told(error), message.cause))
                continue
            self._loaded.add(stage)
            # A model lives as long as the process, most likely: keep the collector from walking it every time.
            gc.collect()
            gc.freeze()
            self._answer(Loaded(stage, self._specs[stage].weights_bytes, message.cause))

    def _runner(self, stage: str, cpus: int, runners: dict[int, Runner]) -> Runner:
        runner = runners.get(cpus)
        if runner is None:
            with self._making:
                runner = runners.get(cpus)
                if runner is None:
                    app = self._app
                    runner = OnnxRunner(self._specs[stage], cpus) if app is None else make_runner(app.stages[stage])
                    runners[cpus] = runner
        return runner

    # -- batches ------------------------------------------------------------------------------------------------

    def run(self, message: Run, now_ns: int) -> Work | None:
        """Run a batch when its window and the arbiter allow, and answer."""
        if message.stage not in self._loaded:
            self._answer(Failed(message.batch, message.cause, now_ns, now_ns, "not_loaded", message.stage))
            return None
        task = _Task(message, self._runners[message.stage])
        if message.earliest_ns > now_ns:
            self._wake_at(message.earliest_ns, task)
            return None
        return self.wake(task, now_ns)

    def wake(self, payload: object, now_ns: int) -> Work | None:
        """The window of a batch has opened: ask the arbiter."""
        assert isinstance(payload, _Task)
        message = payload.message
        with self._arbiter_lock:
            self._waiting[message.batch] = payload
            task = self._start(self._arbiter.step(KernelReady(now_ns, message.batch, 0, message.share_pct)))
        return None if task is None else partial(self._lane, task)

    def _start(self, kernels: list[StartKernel]) -> _Task | None:
        """Find lanes for batches that may start; one is for the thread that asks, if there is one for it."""
        for kernel in kernels:
            self._started.append(self._waiting.pop(kernel.task))
        mine = None
        while self._started and self._busy < self.lanes:
            self._busy += 1
            task = self._started.popleft()
            if mine is None:
                mine = task
            else:
                self._hand(partial(self._lane, task))
        return mine

    def _lane(self, task: _Task | None) -> None:
        """Run a batch, and those that were waiting for it to end."""
        while task is not None:
            message = task.message
            # The answer first: a client waits for it. Whoever comes next waits for the arbiter a little longer.
            self._answer(self._carry_out(message, task.runners))
            with self._arbiter_lock:
                self._busy -= 1
                task = self._start(self._arbiter.step(KernelFinished(self._now_ns(), message.batch, 0)))

    def _carry_out(self, message: Run, runners: dict[int, Runner]) -> FromWorker:
        batch, cause = message.batch, message.cause
        begin = self._now_ns()
        if begin > message.latest_ns:
            return Failed(batch, cause, begin, begin, "too_late", "")
        try:
            runner = self._runner(message.stage, message.cpus if self._app is None else 1, runners)
            values = runner.run(self._values.columns(message))
            counted = counts(values, message.counted)
            results = self._values.store(values, MEMORY_WAIT_SECONDS)
        except ArenaFull as error:
            return Failed(batch, cause, begin, self._now_ns(), "no_memory", told(error))
        except BaseException as error:  # also a stage that calls sys.exit: the batch must be answered
            detail = told(error)
            if message.stage not in detail:
                detail = f"stage {message.stage!r}: {detail}"
            return Failed(batch, cause, begin, self._now_ns(), "error", detail)
        return Done(batch, cause, begin, self._now_ns(), results, counted)


def told(error: BaseException) -> str:
    """What is said of an error; ours speak for themselves."""
    text = str(error) if isinstance(error, DovetailError) else f"{type(error).__name__}: {error}"
    return text[:MAX_DETAIL_CHARS]
