"""What a lane does: kernels one after the other while the grant allows, and the answer.

Rules of this file
- A lane looks whether its grant was revoked before every kernel, and tells nobody before the grant has ended.
- Every batch is answered once: by its results, or by what it raised.
- Nothing waits for room for results but the batch that they are of.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...device.events import TO_THE_END, Grant, GrantEnded
from ...record.kernels import KernelLog, KernelRecord
from ..kernels.batch_run import BatchRun, WholeRun
from ..links.wire import Done, Failed, Run
from ..tensors.arena import ArenaFull
from .executor import Answer, Values, counts
from .models import Models, stage_failed
from .tracebacks import Tracebacks
from .watched import WatchedKernels
from .working_memory import Use

__all__ = ["Lanes", "TakenBatch"]

#: How long a finished batch waits for room for its results before it counts as failed. The front admits no more than
#: should fit (`memory_admission`), so this is for the rare case that requests grew.
MEMORY_WAIT_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class TakenBatch:
    """A batch from when it was taken until it is answered."""

    task: int
    message: Run
    #: When it came.
    taken_ns: int
    #: Under which name its kernels are known before it begins; empty if they are not.
    expected: str = ""
    #: Its kernels, once it has begun; and whether these are several.
    plan: BatchRun | WholeRun | None = None
    divided: bool = False
    begin_ns: int = 0
    busy_ns: int = 0
    #: Memory that it was given, with a strict budget.
    use: Use | None = None
    #: No further kernel of its grant is to begin.
    revoked: bool = False
    #: Nobody waits for its answer.
    withdrawn: bool = False
    #: No batch of its stage with so many items ran here before.
    first: bool = False


@dataclass(slots=True)
class Lanes:
    """Carries out grants, each in the thread that calls."""

    name: str
    models: Models
    values: Values
    answer: Answer
    now_ns: Callable[[], int]
    #: Is told what the kernels of a batch are, before the first of them.
    planned: Callable[[TakenBatch, BatchRun | WholeRun], None]
    log: KernelLog | WatchedKernels | None
    tracebacks: Tracebacks
    #: Stages that have run here, and with how many items: memory is touched and code is read at the first run.
    _warm: set[tuple[str, int]] = field(default_factory=set)
    #: Batches of each ingress whose results wait for room.
    _unstored: Counter[int] = field(default_factory=Counter)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def carry_out(self, batch: TakenBatch, grant: Grant) -> GrantEnded:
        """Run kernels while the grant allows, and answer if the batch is over."""
        message, task = batch.message, batch.task
        first = grant.first
        now_ns = self.now_ns()
        try:
            if batch.plan is None:
                batch.begin_ns = now_ns
                if now_ns > message.batch.latest_ns:
                    self.refuse(message, "too_late", "", now_ns)
                    return GrantEnded(task, first)
                batch.first = (message.batch.stage, len(message.batch.items)) not in self._warm
                batch.plan = self.models.plan(message, self.values.columns(message))
                batch.divided = len(batch.plan.kernels) > 1
                self.planned(batch, batch.plan)
            plan = batch.plan
            kernels = plan.kernels
            last = len(kernels) - 1 if grant.last == TO_THE_END else min(grant.last, len(kernels) - 1)
            spans: list[tuple[int, int]] = []
            position = first
            now = self.now_ns
            with self.models.at_work(message, plan, batch.use) as batch.use:
                while position <= last and not batch.revoked and (not spans or spans[-1][1] < grant.until_ns):
                    begin_ns = now()
                    try:
                        kernels[position]()
                    except Exception as error:
                        plan.rescue(error)
                        position = last = len(kernels) - 1
                    spans.append((begin_ns, now()))
                    if (log := self.log) is not None:
                        record = self._record(batch, plan.idents[position], position, grant.why, *spans[-1])
                        log.add(record, batch.divided)
                    position += 1
                if batch.use is not None:
                    batch.use.stopped = position < len(kernels)
        except BaseException as error:  # also a stage that calls sys.exit: the batch must be answered
            if batch.plan is not None:
                batch.plan.release()
            self._fail(batch, error)
            return GrantEnded(task, first)
        for begin_ns, end_ns in spans:
            batch.busy_ns += end_ns - begin_ns
        over = position == len(kernels)
        if over:
            self._finish(batch, plan)
        measured = tuple(spans) if len(spans) == position - first else ()
        return GrantEnded(task, position, over, measured)

    def refuse(self, message: Run, reason: str, detail: str, now_ns: int) -> None:
        """The batch is not going to run."""
        batch = message.batch
        self.answer(batch.ingress, Failed(batch.batch, batch.cause, now_ns, now_ns, reason, detail))

    def owes(self, ingress: int) -> bool:
        """Whether results for an ingress wait for room."""
        return self._unstored[ingress] > 0

    def rest(self) -> None:
        """Nothing is to be done for a while: what ran is written down."""
        if self.log is not None:
            self.log.flush()

    # -- the answer ---------------------------------------------------------------------------------------------

    def _finish(self, batch: TakenBatch, plan: BatchRun | WholeRun) -> None:
        """Put the results into the arena and answer."""
        try:
            values = plan.values()
            plan.release()
            counted = counts(values, batch.message.counted)
            if batch.withdrawn:
                return
            try:
                self._done(batch, values, counted, 0.0)
            except ArenaFull:
                # The device does not wait for room, and whoever listens must go on doing so: that is what makes room.
                with self._counting:
                    self._unstored[batch.message.batch.ingress] += 1
                threading.Thread(target=self._finish_later, args=(batch, values, counted), daemon=True).start()
        except BaseException as error:
            plan.release()
            self._fail(batch, error)

    def _finish_later(self, batch: TakenBatch, values: list[Any], counted: tuple[int, ...]) -> None:
        try:
            self._done(batch, values, counted, MEMORY_WAIT_SECONDS)
        except BaseException as error:
            self._fail(batch, error)
        with self._counting:
            self._unstored[batch.message.batch.ingress] -= 1

    def _done(self, batch: TakenBatch, values: list[Any], counted: tuple[int, ...], wait_s: float) -> None:
        decided = batch.message.batch
        results = self.values.store(values, wait_s, decided.ingress)
        end_ns = self.now_ns()
        busy_ns = batch.busy_ns if batch.divided else 0
        self._warm.add((decided.stage, len(decided.items)))
        if not batch.first:
            self.models.wish.took(decided.stage, batch.busy_ns)
        done = Done(decided.batch, decided.cause, batch.begin_ns, end_ns, results, counted, busy_ns, batch.first)
        self.answer(decided.ingress, done)

    def _fail(self, batch: TakenBatch, error: BaseException) -> None:
        if batch.withdrawn:
            return
        decided, end_ns = batch.message.batch, self.now_ns()
        reason = "no_memory" if isinstance(error, ArenaFull) else "error"
        detail = stage_failed(decided.stage, error)
        if reason == "error":
            self.tracebacks.raised(decided.stage, error)
        failed = Failed(decided.batch, decided.cause, batch.begin_ns, end_ns, reason, detail)
        self.answer(decided.ingress, failed)

    def _record(
        self, batch: TakenBatch, what: str, kernel: int, why: str, begin_ns: int, end_ns: int
    ) -> KernelRecord:
        decided = batch.message.batch
        times = (begin_ns, end_ns, batch.taken_ns)
        return KernelRecord(batch.task, decided.stage, kernel, decided.priority, *times, what, why, self.name)
