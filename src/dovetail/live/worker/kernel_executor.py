"""Batches on one core, kernel by kernel: a batch of a higher class takes the device at the next kernel.

Rules of this file
- One thread at a time has the device. Whoever takes a batch while nobody has it runs its kernels at once; else the
  batch waits in `_inbox`, which is looked at after every kernel and before the arbiter chooses the next.
- Arguments are decoded by the thread that takes the batch, beside the kernel that runs. They are copied to where the
  model reads them as part of the first kernel, and results into the arena as part of the last.
- A thread that has the device and nothing that may start gives it up; if something is only held back, it leaves word
  to be woken when that may start.
- A kernel that fails ends its batch and nothing else.

Which kernel is next is decided in `batchturns`, what the kernels of a batch are in `cutmodel`.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import msgspec

from ...device import StartKernel
from ...errors import DovetailError, ProfileError
from ...profile.kernelrows import pack, unpack_stats
from ...profile.kernels import Cut, KernelStats
from ...record.kernels import KernelRecord
from ...units import SECOND
from ..gate.tasks import NEVER_NS
from ..kernels.cut_model import BatchRun, CutModel
from ..links.wire import Done, Failed, Hello, Learned, Load, Loaded, LoadFailure, Run
from ..tensors.arena import ArenaFull
from .batchturns import BatchTask, BatchTurns
from .cpu import MEMORY_WAIT_SECONDS, told
from .executor import Answer, Values, WakeAt, Work, counts
from .kernel_log import KernelLog

__all__ = ["KernelledExecutor"]


#: How long an end waits for whoever has the device, to have its last kernels in the log.
CLOSE_SECONDS = 0.2
#: How often the front is told what was learned of kernels, and of how many sequences at most.
TELL_NS = 60 * SECOND
MOST_TOLD = 64


class _Batch(msgspec.Struct, eq=False):
    """A batch from when it was taken until it is answered."""

    message: Run
    model: CutModel
    run: BatchRun | None = None
    came_ns: int = 0
    begin_ns: int = 0
    busy_ns: int = 0


class _News(msgspec.Struct):
    """What was learned, to be packed by a thread that has nothing to hurry for."""

    kernels: list[KernelStats]
    cuts: list[Cut]

    def packed(self) -> Learned:
        return Learned([pack(stats) for stats in self.kernels], [pack(cut) for cut in self.cuts])


#: Handed to `wake` when something that was held back may start, and when it is time to tell what was learned.
_ALARM = object()
_TELL = object()


class KernelledExecutor:
    """Runs ONNX models as kernels under the arbiter, in whichever thread of the worker has the device."""

    #: Kernels that run at once.
    lanes = 1

    def __init__(
        self, hello: Hello, values: Values, answer: Answer, wake_at: WakeAt, now_ns: Callable[[], int]
    ) -> None:
        self._values = values
        self._answer = answer
        self._wake_at = wake_at
        self._now_ns = now_ns
        self._specs = {s.name: s for s in hello.stages}
        #: Stages that are loaded or being loaded; the model is there once it is loaded.
        self._models: dict[str, list[CutModel]] = {}
        self._loads: SimpleQueue[tuple[Load, list[CutModel]] | CutModel | _News] = SimpleQueue()
        self._turns = BatchTurns(_unpacked(hello.kernels), ageing_ns=hello.ageing_ns)
        #: Where models were cut in other processes, and what the front was told of ours, by stage.
        self._cuts = {cut.model: cut for cut in hello.cuts}
        self._told: dict[str, Cut | None] = {}
        self._tell_now = False
        self._batches: dict[int, _Batch] = {}
        self._inbox: deque[_Batch] = deque()
        self._device = threading.Lock()
        self._log = KernelLog(hello.kernel_log) if hello.kernel_log else None
        self._name = hello.spec.name
        gc.set_threshold(50_000)  # a collection takes as long as a kernel; what is thrown away here has no cycles
        wake_at(now_ns() + TELL_NS, _TELL)
        threading.Thread(target=self._loader, daemon=True).start()

    # -- models -------------------------------------------------------------------------------------------------

    def load(self, message: Load, now_ns: int) -> None:
        """Load a stage's model and answer."""
        self._loads.put((message, self._models.setdefault(message.stage, [])))

    def evict(self, stage: str) -> None:
        """Let a stage's model go; a batch that was taken before still has it."""
        self._models.pop(stage, None)

    def _loader(self) -> None:
        while True:
            asked = self._loads.get()
            if isinstance(asked, CutModel):
                self._make_ready(asked)
                continue
            if isinstance(asked, _News):
                self._answer(asked.packed())
                continue
            message, place = asked
            stage = message.stage
            try:
                if not place:
                    spec = self._specs[stage]
                    model = CutModel(spec, self._cuts.get(spec.model))
                    if model.wants is not None:
                        self._make_ready(model)
                    place.append(model)
                if self._models.get(stage) is not place:
                    raise DovetailError(f"stage {stage!r} was evicted while it was being loaded")
            except BaseException as error:  # whatever it is, the load must be answered
                self._answer(LoadFailure(stage, told(error), message.cause))
                continue
            # A model lives as long as the process, most likely: keep the collector from walking it every time.
            gc.collect()
            gc.freeze()
            self._answer(Loaded(stage, self._specs[stage].weights_bytes, message.cause))

    def _make_ready(self, model: CutModel) -> None:
        model.make_ready()
        if model.whole_because:
            print(f"stage {model.spec.name!r} is one kernel: {model.whole_because}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """The process is about to end: write what ran and tell what was learned, also of the last if it soon ends."""
        idle = self._device.acquire(timeout=CLOSE_SECONDS)
        if self._log is not None:
            self._log.flush()
        while idle and (news := self._news()) is not None:
            self._answer(news.packed())

    def _news(self) -> _News | None:
        """What was learned since this was last asked; for the thread that has the device."""
        kernels = self._turns.news(MOST_TOLD)
        cuts = []
        for model in [place[0] for place in list(self._models.values()) if place]:
            stage, cut = model.spec.name, model.cut()
            if cut is not None and cut != self._told.get(stage, self._cuts.get(cut.model)):
                self._told[stage] = cut
                cuts.append(cut)
        return _News(kernels, cuts) if kernels or cuts else None

    # -- batches that come --------------------------------------------------------------------------------------

    def run(self, message: Run, now_ns: int) -> Work | None:
        """Run a batch when its window and the arbiter allow, and answer."""
        place = self._models.get(message.stage)
        if not place:
            self._answer(Failed(message.batch, message.cause, now_ns, now_ns, "not_loaded", message.stage))
            return None
        batch = _Batch(message, place[0])
        if message.earliest_ns > now_ns:
            self._wake_at(message.earliest_ns, batch)
            return None
        return self.wake(batch, now_ns)

    def wake(self, payload: object, now_ns: int) -> Work | None:
        """The window of a batch has opened, or something that was held back may start."""
        if isinstance(payload, _Batch):
            payload.came_ns = now_ns
            try:
                run = payload.run = payload.model.plan(self._values.columns(payload.message))
                if payload.model.saw(run.shapes[0]):
                    self._loads.put(payload.model)
            except BaseException as error:  # whatever it is, the batch must be answered
                self._fail(payload.message, now_ns, error)
                return None
            self._inbox.append(payload)
        elif payload is _TELL:
            self._wake_at(now_ns + TELL_NS, _TELL)
            self._tell_now = True
        return self._drive if self._device.acquire(blocking=False) else None

    def _fail(self, message: Run, begin_ns: int, error: BaseException) -> None:
        reason = "no_memory" if isinstance(error, ArenaFull) else "error"
        detail = told(error)
        if message.stage not in detail:
            detail = f"stage {message.stage!r}: {detail}"
        self._answer(Failed(message.batch, message.cause, begin_ns, self._now_ns(), reason, detail))

    # -- the device ---------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Run kernels for as long as any may start; called by the thread that has the device."""
        turns = self._turns
        while True:
            self._take_inbox()
            if self._tell_now:
                self._tell_now = False
                if (news := self._news()) is not None:
                    self._loads.put(news)
            if turns.starts:
                self._run_kernel(turns.starts.popleft())
            elif self._now_ns() >= turns.alarm_ns:
                turns.ring(self._now_ns())
            else:
                alarm_ns = turns.alarm_ns
                if self._log is not None and not turns.tasks:
                    self._log.flush()
                self._device.release()
                if alarm_ns < NEVER_NS:
                    self._wake_at(alarm_ns, _ALARM)
                # Whoever put something there meanwhile saw that the device was taken.
                if not self._inbox or not self._device.acquire(blocking=False):
                    return

    def _take_inbox(self) -> None:
        """Let batches that came have their turns; what was let start and is of a lower class goes back."""
        turns = self._turns
        while self._inbox:
            batch = self._inbox.popleft()
            message, run = batch.message, batch.run
            assert run is not None
            self._batches[message.batch] = batch
            turns.take(
                message.batch,
                message.priority,
                message.objective_ns,
                run.name,
                run.kernels,
                run.idents,
                batch.came_ns,
                self._now_ns(),
            )
            if turns.starts:
                turns.take_back(message.priority, self._now_ns())

    def _run_kernel(self, start: StartKernel) -> None:
        turns, batch = self._turns, self._batches.get(start.task)
        task = turns.tasks.get(start.task)
        if batch is None or task is None:
            return
        message, run = batch.message, batch.run
        assert run is not None and isinstance(task, BatchTask)
        begin_ns = self._now_ns()
        if start.kernel == 0:
            batch.begin_ns = begin_ns
            if begin_ns > message.latest_ns:
                self._answer(Failed(message.batch, message.cause, begin_ns, begin_ns, "too_late", ""))
                self._gone(batch, task)
                return
        last = start.kernel + 1 == len(run.kernels)
        task.running = True
        try:
            try:
                run.kernels[start.kernel]()
            except Exception as error:
                run.rescue(error)
                last = True
        except BaseException as error:  # also a kernel that is interrupted: the batch must be answered
            self._fail(message, batch.begin_ns, error)
            self._gone(batch, task)
            return
        end_ns = self._store(batch, begin_ns) if last else self._now_ns()
        batch.busy_ns += end_ns - begin_ns
        if self._log is not None:
            self._note(task, run, start, begin_ns, end_ns)
        # What came while it ran must be known before the arbiter chooses the next.
        self._take_inbox()
        task.running = False
        if last:
            del self._batches[message.batch]
            if message.then:
                turns.expect(message.priority, end_ns, self._now_ns())
        if last and start.kernel + 1 < len(run.kernels):
            turns.gone(task, self._now_ns())
        else:
            turns.ended(task, start.kernel, begin_ns, end_ns, self._now_ns())

    def _gone(self, batch: _Batch, task: BatchTask) -> None:
        """A batch that was answered before its time holds nothing any more."""
        task.running = False
        del self._batches[batch.message.batch]
        if batch.run is not None:
            batch.run.release()
        self._turns.gone(task, self._now_ns())

    def _store(self, batch: _Batch, begin_ns: int) -> int:
        """Put the results into the arena and answer; when that was done."""
        message, run = batch.message, batch.run
        assert run is not None
        try:
            values = run.values()
            counted = counts(values, message.counted)
            try:
                results = self._values.store(values)
            except ArenaFull:
                # The device does not wait for room, and whoever listens must go on doing so: that is what makes room.
                threading.Thread(target=self._store_later, args=(batch, values, counted), daemon=True).start()
                return self._now_ns()
        except BaseException as error:
            self._fail(message, batch.begin_ns, error)
            return self._now_ns()
        end_ns = self._now_ns()
        busy_ns = batch.busy_ns + end_ns - begin_ns
        self._answer(Done(message.batch, message.cause, batch.begin_ns, end_ns, results, counted, busy_ns))
        return end_ns

    def _store_later(self, batch: _Batch, values: list[Any], counted: tuple[int, ...]) -> None:
        message = batch.message
        try:
            results = self._values.store(values, MEMORY_WAIT_SECONDS)
        except BaseException as error:
            self._fail(message, batch.begin_ns, error)
            return
        end_ns = self._now_ns()
        self._answer(Done(message.batch, message.cause, batch.begin_ns, end_ns, results, counted, batch.busy_ns))

    def _note(self, task: BatchTask, run: BatchRun, start: StartKernel, begin_ns: int, end_ns: int) -> None:
        assert self._log is not None
        kernel, ready_ns = start.kernel, task.ready_ns[start.kernel]
        what, name = run.idents[kernel], self._batches[task.ident].message.stage
        self._log.add(
            KernelRecord(
                task.ident, name, kernel, task.priority, begin_ns, end_ns, ready_ns, what, start.why, self._name
            )
        )


def _unpacked(rows: list[bytes]) -> dict[str, KernelStats]:
    """What is known of kernels; what cannot be read is not."""
    found = {}
    for row in rows:
        try:
            stats = unpack_stats(row)
        except ProfileError as error:
            print(f"passed over: {error}", file=sys.stderr, flush=True)
            continue
        found[stats.name] = stats
    return found
