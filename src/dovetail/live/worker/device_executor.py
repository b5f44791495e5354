"""Batches on this machine's cores: the Device machine, lanes that carry out its grants, and loaders.

Rules of this file
- The machine decides, under one lock; nothing that takes long is done while it is held.
- A lane is one of the worker's threads while it carries out a grant. There are as many as cores, and onnxruntime lets
  go of the interpreter lock while it computes. What a share is here: a number of threads in a session of its own. It
  is not fenced; the operating system divides the cores between all that run.
- A lane looks whether its grant was revoked before every kernel, and tells the machine only when the grant has ended.
- Loaders are threads of their own, so that batches of other stages go on meanwhile.
- Every batch is answered once: by its results, by what it raised, or by the machine's refusal.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from typing import Any

from ...device import Device, DeviceTimes, GapArbiter, GapSettings, ModelCache
from ...device.cache import names_of
from ...device.events import (
    TO_THE_END,
    AlarmRang,
    BatchWithdrawn,
    BudgetChanged,
    DeviceAction,
    Grant,
    GrantEnded,
    LoadBroke,
    LoadDone,
    ModelDropped,
    ModelHinted,
    ModelOrdered,
    Refuse,
    Revoke,
    SetAlarm,
    TaskPlanned,
)
from ...device.events import Evict as EvictAction
from ...device.events import Load as LoadAction
from ...errors import ProfileError
from ...predict import Estimator
from ...profile.kernelrows import pack, unpack_stats
from ...profile.kernels import Cut, KernelStats
from ...profile.table import ProfileTable
from ...record.kernels import KernelRecord
from ...state.run_batch import cause_of, task_of
from ...units import MS, SECOND, US
from ...workflow.app import App
from ..kernels.cut_model import BatchRun, CutModel
from ..links.wire import (
    Done,
    Evict,
    Evicted,
    Failed,
    FromWorker,
    Hello,
    Learned,
    Load,
    Loaded,
    LoadFailure,
    Loading,
    Ready,
    Recut,
    Run,
    State,
    WantsCut,
)
from ..tensors.arena import ArenaFull
from .executor import Answer, Values, WakeAt, Work, counts, error_text
from .kernel_log import KernelLog
from .models import Models, WholeRun, stage_failed

__all__ = ["DeviceExecutor"]

#: How long a finished batch waits for room for its results before it counts as failed. The front admits no more than
#: should fit (`memory_admission`), so this is for the rare case that requests grew.
MEMORY_WAIT_SECONDS = 0.5
#: How often its state goes out while there is work; it goes whenever there is none.
STATE_NS = 100 * MS
#: How often the front is told what was learned of kernels, and of how many sequences at most.
TELL_NS = 60 * SECOND
MOST_TOLD = 64
#: Loads of one worker at the same time.
LOADERS = 2
#: Gap filling on a processor: what a filler costs beside its duration (measured: to start it, and from its end to the
#: beginning of the next), delay that a class may suffer by it, and credit for some kernels. Chosen on pairs of models
#: that are not among those reported (docs/results/fikit.md).
OVERHEAD_NS, BUDGET, BURST_NS = 60 * US, 0.02, 3 * MS


class _Run:
    """A batch from when it was taken until it is answered."""

    __slots__ = ("begin_ns", "busy_ns", "message", "revoked", "run", "task", "withdrawn")

    def __init__(self, task: int, message: Run) -> None:
        self.task = task
        self.message = message
        #: Its kernels, once it has begun.
        self.run: BatchRun | WholeRun | None = None
        self.begin_ns = 0
        self.busy_ns = 0
        #: No further kernel of its grant is to begin.
        self.revoked = False
        #: Nobody waits for its answer.
        self.withdrawn = False


class _Tell:
    """Handed to `wake` when it is time to tell what was learned."""


class DeviceExecutor:
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
        #: Grants that are carried out at once. Python holds its interpreter: a second lane would only take turns.
        self.lanes = 1 if app is not None else max(1, hello.spec.cores)
        self._values = values
        self._answer = answer
        self._wake_at = wake_at
        self._now_ns = now_ns
        #: Finds another thread for a grant.
        self._hand = hand
        self._name = hello.spec.name
        self._models = models = Models(hello, app)
        cache = ModelCache(
            models.budget_bytes,
            reserve_bytes=models.budget_bytes - models.usable_bytes,
            host_bytes=0,
            names=names_of(models.stages.values()),
        )
        stages = [s for s in hello.stages if s.weights in models.stages]
        self._predictor = Estimator(ProfileTable(hello.entries), stages=stages)
        self._predictor.learn(_unpacked(hello.known))
        for measured in models.measured.values():
            self._predictor.observe_load(measured.weights, hello.spec.kind, measured.load_ns)
        self._kind = hello.spec.kind
        sizes = {weights: models.nbytes(weights) for weights in models.stages}
        times = DeviceTimes(self._predictor, hello.spec.kind, sizes)
        settings = GapSettings(
            order="slack", ageing_ns=hello.ageing_ns, budget=BUDGET, burst_ns=BURST_NS, overhead_ns=OVERHEAD_NS
        )
        self._machine = Device(
            hello.worker,
            {s.name: (s.weights, sizes[s.weights] if s.weights_bytes or hello.strict else 0) for s in stages},
            cache,
            times,
            arbiter=GapArbiter(times.kernels, settings, learn=False),
        )
        self._lock = threading.Lock()
        self._runs: dict[int, _Run] = {}
        #: Grants that wait for a lane.
        self._granted: deque[tuple[_Run, Grant]] = deque()
        self._busy = 0
        #: Loads that were asked for, until the model is there: orders are all answered, of hints the last.
        self._orders: dict[str, list[tuple[int, Load]]] = {}
        self._hints: dict[str, tuple[int, Load]] = {}
        self._jobs: SimpleQueue[Work] = SimpleQueue()
        #: Models of which the front was asked how to cut them.
        self._wanted: set[str] = set()
        self._hits = self._misses = self._loads_done = self._evictions = 0
        self._state_ns = -STATE_NS
        self._first = hello.ingress
        self._ingresses = {self._first}
        #: Batches of each ingress whose results wait for room.
        self._unstored = Counter[int]()
        self._log = KernelLog(hello.kernel_log) if hello.kernel_log else None
        self._tells = app is None and hello.kernels != "never"
        if self._tells:
            wake_at(now_ns() + TELL_NS, _Tell())
        for _ in range(1 if app is not None else LOADERS):
            threading.Thread(target=self._loader, daemon=True).start()

    def introduce(self) -> tuple[list[FromWorker], Ready]:
        """What goes before the introduction, and the introduction."""
        return self._models.first_words, self._models.introduce()

    # -- what the worker is asked -------------------------------------------------------------------------------

    def run(self, message: Run, now_ns: int) -> Work | None:
        """Run a batch when the device has room for it, and answer."""
        batch = message.batch
        self._want_cut(self._models.saw(batch.stage, batch.priority))
        task = task_of(batch.ingress, batch.batch)
        with self._lock:
            self._runs[task] = _Run(task, message)
            cause = task_of(batch.ingress, batch.cause)
            return self._perform(self._machine.step(batch, now_ns), cause, now_ns)

    def load(self, message: Load, ingress: int, now_ns: int) -> Work | None:
        """A model is wanted here: by order, or as a hint. A hint is answered if it leads to a load or never can."""
        spec = self._models.specs[message.stage]
        weights = spec.weights
        if weights not in self._models.stages:
            self._answer(
                ingress, LoadFailure(message.stage, f"{self._name} runs no {spec.kind} stages", message.cause)
            )
            return None
        nbytes = self._models.nbytes(weights)
        cause = task_of(ingress, message.cause)
        cache = self._machine.cache
        if problem := cache.too_large(weights, nbytes):
            self._answer(ingress, LoadFailure(message.stage, problem, message.cause))
            return None
        with self._lock:
            if not message.keep:
                self._hints[weights] = (ingress, message)
                return self._perform(self._machine.step(ModelHinted(weights, nbytes), now_ns), cause, now_ns)
            answers = self._machine.step(ModelOrdered(weights, nbytes), now_ns)
            if cache.tier(weights) == "resident":
                self._answer(ingress, Loaded(message.stage, nbytes, message.cause))
            else:
                self._orders.setdefault(weights, []).append((ingress, message))
            return self._perform(answers, cause, now_ns)

    def evict(self, message: Evict, ingress: int, now_ns: int) -> Work | None:
        """A model is not wanted any more; it goes when nothing runs on it or waits for it."""
        weights = self._models.specs[message.stage].weights
        with self._lock:
            dropped = ModelDropped(weights, message.reason or "the controller wants it gone")
            return self._perform(self._machine.step(dropped, now_ns), task_of(ingress, message.cause), now_ns)

    def join(self, ingress: int) -> None:
        """One more to tell how the worker is."""
        with self._lock:
            self._ingresses.add(ingress)

    def owes(self, ingress: int) -> bool:
        """Whether a batch of an ingress has not ended."""
        with self._lock:
            running = any(run.message.batch.ingress == ingress for run in self._runs.values())
            return running or self._unstored[ingress] > 0

    def leave(self, ingress: int, now_ns: int) -> Work | None:
        """An ingress is gone: what it asked for and has not begun is withdrawn, the rest ends unheard."""
        work: Work | None = None
        with self._lock:
            self._ingresses.discard(ingress)
            for task, run in [(t, r) for t, r in self._runs.items() if r.message.batch.ingress == ingress]:
                run.withdrawn = True
                if run.run is None and not any(run is granted for granted, _ in self._granted):
                    known = self._machine.task(task)
                    if known is not None and known.begin_ns < 0:
                        del self._runs[task]
                        more = self._perform(self._machine.step(BatchWithdrawn(task), now_ns), 0, now_ns)
                        work = self._either(work, more)
        return work

    def wake(self, payload: object, now_ns: int) -> Work | None:
        """A time that was asked for has come."""
        if isinstance(payload, _Tell):
            self._wake_at(now_ns + TELL_NS, payload)
            with self._lock:
                news, cuts = self._predictor.news(MOST_TOLD), self._models.news()
            if news or cuts:
                self._jobs.put(lambda: self._answer(self._first, _packed(news, cuts)))
            return None
        with self._lock:
            return self._perform(self._machine.step(AlarmRang(), now_ns), 0, now_ns)

    def state(self, now_ns: int) -> State:
        """What it says of itself."""
        self._state_ns = now_ns
        cache = self._machine.cache
        return State(
            self._machine.row(now_ns),
            self._hits,
            self._misses,
            self._loads_done,
            self._evictions,
            cache.used_bytes,
            cache.usable_bytes,
            len(self._ingresses),
            self._values.used_bytes,
        )

    def close(self) -> None:
        """Write what ran, and tell what was learned."""
        if self._log is not None:
            self._log.flush()
        while self._tells and self._lock.acquire(timeout=0.2):
            news, cuts = self._predictor.news(MOST_TOLD), self._models.news()
            self._lock.release()
            if not news and not cuts:
                return
            self._answer(self._first, _packed(news, cuts))

    # -- what the machine says ----------------------------------------------------------------------------------

    def _perform(self, answers: Iterable[DeviceAction], cause: int, now_ns: int) -> Work | None:
        """Do what the machine says, under the lock; a grant for the thread that asks, if there is a lane for it.

        `cause` is the step that led to it, with its ingress (`task_of`).
        """
        for answer in answers:
            if type(answer) is Grant:
                run = self._runs[answer.task]
                run.revoked = False
                self._granted.append((run, answer))
                if not answer.first and self._models.nbytes(self._models.specs[run.message.batch.stage].weights):
                    self._hits += answer.hit
                    self._misses += not answer.hit
            elif type(answer) is Revoke:
                self._runs[answer.task].revoked = True
            elif type(answer) is Refuse:
                self._refuse(self._runs.pop(answer.task).message, answer.reason, answer.detail, now_ns)
            elif type(answer) is SetAlarm:
                self._wake_at(answer.at_ns, None)
            elif type(answer) is LoadAction:
                self._begin_load(answer)
            elif type(answer) is EvictAction:
                self._evicted(answer, cause)
        idle = self._machine.idle
        if ((idle or len(self._ingresses) > 1) and now_ns > self._state_ns) or now_ns - self._state_ns >= STATE_NS:
            state = self.state(now_ns)
            for ingress in self._ingresses:
                self._answer(ingress, state)
        mine: Work | None = None
        while self._granted and self._busy < self.lanes:
            self._busy += 1
            mine = self._either(mine, partial(self._lane, *self._granted.popleft()))
        return mine

    def _either(self, mine: Work | None, more: Work | None) -> Work | None:
        """One is for the thread that asks; another one is handed on."""
        if mine is None:
            return more
        if more is not None:
            self._hand(more)
        return mine

    def _refuse(self, message: Run, reason: str, detail: str, now_ns: int) -> None:
        batch = message.batch
        self._answer(batch.ingress, Failed(batch.batch, batch.cause, now_ns, now_ns, reason, detail))

    def _evicted(self, evict: EvictAction, cause: int) -> None:
        self._evictions += 1
        self._models.evict(evict.weights)
        self._jobs.put(self._models.free)
        asked = self._hints.get(evict.newcomer)
        if evict.task in self._runs:
            batch = self._runs[evict.task].message.batch
            cause = task_of(batch.ingress, batch.cause)
        elif asked is not None:
            cause = task_of(asked[0], asked[1].cause)
        for ingress in self._ingresses:
            cause_here = cause_of(cause, ingress)
            self._answer(ingress, Evicted(evict.weights, evict.nbytes, evict.reason, cause_here))

    # -- loaders ------------------------------------------------------------------------------------------------

    def _begin_load(self, load: LoadAction) -> None:
        weights = load.weights
        run = self._runs.get(load.task)
        if weights in self._orders:
            ingress, asked = self._orders[weights][0]
            stage, cause = asked.stage, asked.cause
        elif run is not None:
            batch = run.message.batch
            ingress, stage, cause = batch.ingress, batch.stage, batch.cause
        else:
            ingress, asked = self._hints[weights]
            stage, cause = asked.stage, asked.cause
        self._jobs.put(lambda: self._load(weights, ingress, stage, cause))

    def _loader(self) -> None:
        while True:
            work = self._jobs.get()
            try:
                work()
            except Exception as error:  # a cut that fails, say: the model stays whole
                print(f"dovetail: worker {self._name}: {error_text(error)}", file=sys.stderr, flush=True)

    def recut(self, message: Recut) -> None:
        """It was found out how models are best cut."""
        for cut in message.cuts:
            self._jobs.put(partial(self._models.recut, cut))

    def _want_cut(self, models: Iterable[CutModel]) -> None:
        """Have it found out how models are best cut."""
        for model in models:
            if model.wants is not None and model.spec.model not in self._wanted:
                self._wanted.add(model.spec.model)
                self._answer(self._first, WantsCut(model.spec.name, model.wants, model.threads))

    def _load(self, weights: str, ingress: int, stage: str, cause: int) -> None:
        self._models.free()
        begin_ns = self._now_ns()
        self._answer(ingress, Loading(stage, cause))
        problem = ""
        try:
            self._want_cut(self._models.load(weights))
        except BaseException as error:  # whatever it is, the load must be answered
            problem = stage_failed(stage, error)
        now_ns = self._now_ns()
        nbytes = self._models.nbytes(weights)
        with self._lock:
            self._hints.pop(weights, None)
            told = [(i, m.stage, m.cause) for i, m in self._orders.pop(weights, [])] or [(ingress, stage, cause)]
            for who, name, why in told:
                answer: FromWorker = LoadFailure(name, problem, why)
                self._answer(who, answer if problem else Loaded(name, nbytes, why, max(1, now_ns - begin_ns)))
            if problem:
                answers = self._machine.step(LoadBroke(weights, problem), now_ns)
            else:
                self._loads_done += 1
                self._predictor.observe_load(weights, self._kind, now_ns - begin_ns)
                answers = self._machine.step(LoadDone(weights), now_ns)
            work = self._perform(answers, 0, now_ns)
        if work is not None:
            self._hand(work)

    # -- lanes --------------------------------------------------------------------------------------------------

    def _lane(self, run: _Run, grant: Grant) -> None:
        """Carry out a grant, and those that were waiting for it to end."""
        while True:
            # The answer first: a client waits for it. Whoever comes next waits for the machine a little longer.
            ended = self._carry_out(run, grant)
            now_ns = self._now_ns()
            with self._lock:
                if ended.over:
                    self._runs.pop(run.task, None)
                answers = self._machine.step(ended, now_ns)
                grown = self._models.grown_bytes()
                if grown is not None:
                    answers += self._machine.step(BudgetChanged(*grown), now_ns)
                self._busy -= 1
                work = self._perform(answers, 0, now_ns)
            if work is None:
                if self._log is not None and self._machine.idle:
                    self._log.flush()
                return
            assert isinstance(work, partial)
            run, grant = work.args

    def _carry_out(self, run: _Run, grant: Grant) -> GrantEnded:
        """Run kernels while the grant allows, and answer if the batch is over."""
        message, task = run.message, run.task
        first = grant.first
        now_ns = self._now_ns()
        try:
            if run.run is None:
                run.begin_ns = now_ns
                if now_ns > message.batch.latest_ns:
                    self._refuse(message, "too_late", "", now_ns)
                    return GrantEnded(task, first)
                self._begin(run)
            plan = run.run
            assert plan is not None
            kernels = plan.kernels
            last = len(kernels) - 1 if grant.last == TO_THE_END else min(grant.last, len(kernels) - 1)
            spans: list[tuple[int, int]] = []
            position = first
            while position <= last and not run.revoked and (not spans or spans[-1][1] < grant.until_ns):
                begin_ns = self._now_ns()
                try:
                    if len(kernels) == 1:
                        with self._models.at_work(message, plan):
                            kernels[0]()
                    else:
                        kernels[position]()
                except Exception as error:
                    plan.rescue(error)
                    position = last = len(kernels) - 1
                spans.append((begin_ns, self._now_ns()))
                if self._log is not None:
                    self._note(run, position, grant.why, *spans[-1])
                position += 1
        except BaseException as error:  # also a stage that calls sys.exit: the batch must be answered
            if run.run is not None:
                run.run.release()
            self._fail(run, error)
            return GrantEnded(task, first)
        run.busy_ns += sum(end_ns - begin_ns for begin_ns, end_ns in spans)
        over = position == len(kernels)
        if over:
            self._finish(run, plan)
        measured = tuple(spans) if len(spans) == position - first and len(kernels) > 1 else ()
        return GrantEnded(task, position, over, measured)

    def _begin(self, run: _Run) -> None:
        """Read the arguments, and see what the kernels of the batch are."""
        message = run.message
        plan = run.run = self._models.plan(message, self._values.columns(message))
        if (model := self._models.unknown(message, plan)) is not None:
            self._want_cut([model])
        if len(plan.kernels) > 1:
            planned = TaskPlanned(run.task, plan.name, tuple(plan.idents), len(plan.kernels))
            now_ns = self._now_ns()
            with self._lock:
                cause = task_of(message.batch.ingress, message.batch.cause)
                work = self._perform(self._machine.step(planned, now_ns), cause, now_ns)
            if work is not None:
                self._hand(work)

    def _finish(self, run: _Run, plan: BatchRun | WholeRun) -> None:
        """Put the results into the arena and answer."""
        try:
            values = plan.values()
            counted = counts(values, run.message.counted)
            if run.withdrawn:
                return
            try:
                self._done(run, values, counted, 0.0)
            except ArenaFull:
                # The device does not wait for room, and whoever listens must go on doing so: that is what makes room.
                with self._lock:
                    self._unstored[run.message.batch.ingress] += 1
                threading.Thread(target=self._finish_later, args=(run, values, counted), daemon=True).start()
        except BaseException as error:
            self._fail(run, error)

    def _finish_later(self, run: _Run, values: list[Any], counted: tuple[int, ...]) -> None:
        try:
            self._done(run, values, counted, MEMORY_WAIT_SECONDS)
        except BaseException as error:
            self._fail(run, error)
        with self._lock:
            self._unstored[run.message.batch.ingress] -= 1

    def _done(self, run: _Run, values: list[Any], counted: tuple[int, ...], wait_s: float) -> None:
        results = self._values.store(values, wait_s, run.message.batch.ingress)
        batch, end_ns = run.message.batch, self._now_ns()
        busy_ns = run.busy_ns if len(run.run.kernels if run.run else ()) > 1 else 0
        done = Done(batch.batch, batch.cause, run.begin_ns, end_ns, results, counted, busy_ns)
        self._answer(batch.ingress, done)

    def _fail(self, run: _Run, error: BaseException) -> None:
        batch = run.message.batch
        reason = "no_memory" if isinstance(error, ArenaFull) else "error"
        detail = stage_failed(batch.stage, error)
        if not run.withdrawn:
            self._answer(
                batch.ingress, Failed(batch.batch, batch.cause, run.begin_ns, self._now_ns(), reason, detail)
            )

    def _note(self, run: _Run, kernel: int, why: str, begin_ns: int, end_ns: int) -> None:
        assert self._log is not None and run.run is not None
        batch = run.message.batch
        what = run.run.idents[kernel]
        record = KernelRecord(
            run.task, batch.stage, kernel, batch.priority, begin_ns, end_ns, run.begin_ns, what, why, self._name
        )
        self._log.add(record)


def _packed(kernels: list[KernelStats], cuts: list[Cut]) -> Learned:
    return Learned([pack(stats) for stats in kernels], [pack(cut) for cut in cuts])


def _unpacked(rows: list[bytes]) -> list[KernelStats]:
    """What is known of kernels; what cannot be read is not."""
    found = []
    for row in rows:
        try:
            found.append(unpack_stats(row))
        except ProfileError as error:
            print(f"passed over: {error}", file=sys.stderr, flush=True)
    return found
