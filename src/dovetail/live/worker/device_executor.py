"""Batches on this machine's cores: the Device machine, and whoever does what it says.

Rules of this file
- The machine decides, under one lock; nothing that takes long is done while it is held.
- A lane is one of the worker's threads while it carries out a grant (`lanes`). There are as many as cores, and
  onnxruntime lets go of the interpreter lock while it computes. What a share is here: a number of threads in a
  session of its own. It is not fenced; the operating system divides the cores between all that run.
- Loads run in threads of their own (`loaders`). What was learned goes to the front now and then (`learning`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from ...device import Device, DeviceTimes, GapArbiter, GapSettings, ModelCache, TokenAccount, TokenSettings, events
from ...device.cache import names_of
from ...predict import Estimator
from ...profile.table import ProfileTable
from ...record.kernels import KernelLog
from ...state.run_batch import RunBatch, cause_of, task_of
from ...units import MS, US
from ...workflow.app import App
from ..kernels.batch_run import BatchRun, WholeRun
from ..links import wire
from ..links.wire import Evict, Evicted, FromWorker, Hello, Load, Loaded, LoadFailure, Ready, Run, State
from .executor import Answer, BadMessage, Values, WakeAt, Work, either, state_of
from .lanes import Lanes, TakenBatch
from .learning import TELL_NS, Learning, unpacked
from .loaders import Loaders
from .models import Models
from .moving import Moving
from .tracebacks import Tracebacks
from .watched import WatchedKernels

__all__ = ["DeviceExecutor"]

#: How often its state goes out. Where several ingresses share the worker it also goes whenever there is no work.
STATE_NS = 100 * MS
#: Loads of one worker at the same time.
LOADERS = 2
#: Gap filling on a processor: what a filler costs beside its duration (measured: to start it, and from its end to the
#: beginning of the next), delay that a class may suffer by it, and credit for some kernels. Chosen on pairs of models
#: that are not among those reported (docs/results/fikit.md).
OVERHEAD_NS, BUDGET, BURST_NS = 60 * US, 0.02, 3 * MS
#: A worker that has run nothing for so long gives back the memory that its batches worked in [our choice]. The next
#: batch clears these pages anew: some milliseconds.
REST_NS = 1000 * MS
#: How often it is looked whether an idle worker's state has changed, once in that time.
IDLE_LOOKS = 20


class _Tell:
    """Handed to `wake` when it is time to tell what was learned."""


class _TellState:
    """Handed to `wake` when it is time to tell how the worker is, though nothing happens; how often it looks then."""

    def __init__(self, looks: int) -> None:
        self.looks = looks


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
        self._predictor.learn(unpacked(hello.known))
        for measured in models.measured.values():
            self._predictor.observe_load(measured.weights, hello.spec.kind, measured.load_ns)
        self._kind = hello.spec.kind
        sizes = {weights: models.nbytes(weights) for weights in models.stages}
        times = DeviceTimes(self._predictor, hello.spec.kind, sizes)
        settings = GapSettings(
            order="slack", ageing_ns=hello.ageing_ns, budget=BUDGET, burst_ns=BURST_NS, overhead_ns=OVERHEAD_NS
        )
        account = TokenAccount(TokenSettings(mode=hello.quotas))
        self._machine = Device(
            hello.worker,
            {s.name: (s.weights, sizes[s.weights] if s.weights_bytes or hello.strict else 0) for s in stages},
            cache,
            times,
            arbiter=GapArbiter(times.kernels, settings, account=account, learn=False, pairs=times.pairs),
        )
        self._moving = Moving(account, self._machine, partial(answer, hello.ingress))
        self._lock = threading.Lock()
        self._batches: dict[int, TakenBatch] = {}
        #: Grants that wait for a lane.
        self._granted: deque[tuple[TakenBatch, events.Grant]] = deque()
        self._busy = 0
        self._hits = self._misses = self._loads_done = self._evictions = 0
        self._state_ns = -STATE_NS
        #: When a grant ended last.
        self._ran_ns = 0
        #: It will be told later.
        self._state_due = False
        #: What it was told last, beside the row.
        self._told: tuple[int, ...] = ()
        self._ingresses = {hello.ingress}
        log = KernelLog(hello.kernel_log) if hello.kernel_log else None
        self._kernel_log, self._watched = log, WatchedKernels(log, answer)
        self._learning = learning = Learning(self._predictor, models, self._lock, partial(answer, hello.ingress))
        self._lanes = Lanes(self._name, models, values, answer, now_ns, self._planned, log, Tracebacks(now_ns))
        tell = (answer, now_ns, self._load_ended, hand, learning.want_cut)
        self._loaders = Loaders(self._name, 1 if app else LOADERS, models, *tell, self._ingresses, self._lock)
        self._tells = app is None and hello.kernels != "never"
        if self._tells:
            wake_at(now_ns() + TELL_NS, _Tell())

    def introduce(self) -> tuple[list[FromWorker], Ready]:
        """What goes before the introduction, and the introduction."""
        return self._models.first_words, self._models.introduce()

    # -- what the worker is asked -------------------------------------------------------------------------------

    def run(self, message: Run, now_ns: int) -> Work | None:
        """Run a batch when the device has room for it, and answer."""
        batch = message.batch
        if to_cut := self._models.saw(batch.stage, batch.priority):
            self._learning.want_cut(to_cut)
        taken = TakenBatch(task_of(batch.ingress, batch.batch), message, now_ns)
        if taken.task in self._batches:
            raise BadMessage(f"batch {batch.batch} of ingress {batch.ingress} was taken before")
        expected = self._models.expected(message)
        event: RunBatch | events.PlannedBatch = batch
        if expected is not None:
            # Known before its first turn, so that it may fill a gap, or is kept out of one that is too short.
            taken.expected, idents = expected
            event = events.PlannedBatch(batch, taken.expected, idents, len(idents))
        with self._lock:
            self._batches[taken.task] = taken
            return self._perform(self._machine.step(event, now_ns), task_of(batch.ingress, batch.cause), now_ns)

    def load(self, message: Load, ingress: int, now_ns: int) -> Work | None:
        """A model is wanted here: by order, or as a hint. A hint is answered if it leads to a load or never can."""
        spec = self._models.specs[message.stage]
        weights = spec.weights
        if weights not in self._models.stages:
            problem = f"{self._name} runs no {spec.kind} stages"
            self._answer(ingress, LoadFailure(message.stage, problem, message.cause))
            return None
        nbytes = self._models.nbytes(weights)
        cause = task_of(ingress, message.cause)
        cache = self._machine.cache
        if problem := cache.too_large(weights, nbytes):
            self._answer(ingress, LoadFailure(message.stage, problem, message.cause))
            return None
        with self._lock:
            if not message.keep:
                self._loaders.hinted(weights, ingress, message)
                return self._perform(self._machine.step(events.ModelHinted(weights, nbytes), now_ns), cause, now_ns)
            answers = self._machine.step(events.ModelOrdered(weights, nbytes), now_ns)
            if cache.tier(weights) == "resident":
                self._answer(ingress, Loaded(message.stage, nbytes, message.cause))
            else:
                self._loaders.ordered(weights, ingress, message)
            return self._perform(answers, cause, now_ns)

    def evict(self, message: Evict, ingress: int, now_ns: int) -> Work | None:
        """A model is not wanted any more; it goes when nothing runs on it or waits for it."""
        weights = self._models.specs[message.stage].weights
        with self._lock:
            dropped = events.ModelDropped(weights, message.reason or "the controller wants it gone")
            return self._perform(self._machine.step(dropped, now_ns), task_of(ingress, message.cause), now_ns)

    def told(self, message: wire.Recut | wire.Watch | wire.Standing, ingress: int, now_ns: int) -> Work | None:
        """How models are best cut; whether an ingress wants to know which kernels run; or a client that moves."""
        if isinstance(message, wire.Recut):
            for cut, files in zip(message.cuts, message.files, strict=True):
                self._loaders.put(partial(self._models.recut, cut, files))
        elif isinstance(message, wire.Watch):
            self._watch(ingress, message.on)
        else:
            with self._lock:
                return self._perform(self._moving.told(message, now_ns), 0, now_ns)
        return None

    def _watch(self, ingress: int, on: bool) -> None:
        self._lanes.log = self._watched if self._watched.watch(ingress, on) else self._kernel_log

    def join(self, ingress: int) -> None:
        """One more to tell how the worker is."""
        with self._lock:
            self._ingresses.add(ingress)

    def owes(self, ingress: int) -> bool:
        """Whether a batch of an ingress has not ended."""
        with self._lock:
            running = any(batch.message.batch.ingress == ingress for batch in self._batches.values())
        return running or self._lanes.owes(ingress)

    def leave(self, ingress: int, now_ns: int) -> Work | None:
        """An ingress is gone: what it asked for and has not begun is withdrawn, the rest ends unheard."""
        work: Work | None = None
        with self._lock:
            self._ingresses.discard(ingress)
            self._watch(ingress, on=False)
            theirs = [b for b in self._batches.values() if b.message.batch.ingress == ingress]
            for batch in theirs:
                batch.withdrawn = True
                known = self._machine.task(batch.task)
                if known is not None and known.begin_ns < 0:
                    del self._batches[batch.task]
                    more = self._perform(self._machine.step(events.BatchWithdrawn(batch.task), now_ns), 0, now_ns)
                    work = either(work, more, self._hand)
        return work

    def wake(self, payload: object, now_ns: int) -> Work | None:
        """A time that was asked for has come."""
        if isinstance(payload, _Tell):
            self._wake_at(now_ns + TELL_NS, payload)
            self._loaders.put(self._learning.tell)
            return None
        if isinstance(payload, _TellState):
            with self._lock:
                self._look_again(payload, now_ns)
            return None
        with self._lock:
            return self._perform(self._machine.step(events.AlarmRang(), now_ns), 0, now_ns)

    def state(self, now_ns: int) -> State:
        """What it says of itself."""
        with self._lock:
            return self._state(now_ns)

    def close(self) -> None:
        """Write what ran, and tell what was learned."""
        self._lanes.rest()
        if self._tells:
            self._learning.close()

    # -- what the machine says ----------------------------------------------------------------------------------

    def _perform(self, answers: Iterable[events.DeviceAction], cause: int, now_ns: int) -> Work | None:
        """Do what the machine says, under the lock; a grant for the thread that asks, if there is a lane for it.

        `cause` is the step that led to it, with its ingress (`task_of`).
        """
        for answer in answers:
            if type(answer) is events.Grant:
                batch = self._batches[answer.task]
                batch.revoked = False
                self._granted.append((batch, answer))
                if not answer.first and self._models.nbytes(self._models.specs[batch.message.batch.stage].weights):
                    self._hits += answer.hit
                    self._misses += not answer.hit
            elif type(answer) is events.Revoke:
                self._batches[answer.task].revoked = True
            elif type(answer) is events.Refuse:
                refused = self._batches.pop(answer.task)
                self._lanes.refuse(refused.message, answer.reason, answer.detail, now_ns)
            elif type(answer) is events.SetAlarm:
                self._wake_at(answer.at_ns, None)
            elif type(answer) is events.Load:
                needs = self._batches.get(answer.task)
                self._loaders.begin(answer.weights, None if needs is None else needs.message.batch)
            elif type(answer) is events.Evict:
                self._evicted(answer, cause)
        if now_ns - self._state_ns >= STATE_NS or (len(self._ingresses) > 1 and now_ns > self._state_ns):
            self._tell_state(now_ns)
        if not self._state_due and self._machine.idle:
            # A lone ingress knows what it has asked for: a packet for each batch would cost it more than it tells.
            self._state_due = True
            self._wake_at(self._state_ns + STATE_NS, _TellState(IDLE_LOOKS))
        mine: Work | None = None
        while self._granted and self._busy < self.lanes:
            self._busy += 1
            mine = either(mine, partial(self._lane, *self._granted.popleft()), self._hand)
        return mine

    def _evicted(self, evict: events.Evict, cause: int) -> None:
        self._evictions += 1
        self._models.evict(evict.weights)
        self._loaders.put(self._models.free)
        if evict.task in self._batches:
            batch = self._batches[evict.task].message.batch
            cause = task_of(batch.ingress, batch.cause)
        elif (asked := self._loaders.hint(evict.newcomer)) is not None:
            cause = task_of(*asked)
        for ingress in self._ingresses:
            here = cause_of(cause, ingress)
            self._answer(ingress, Evicted(evict.weights, evict.nbytes, evict.reason, here))

    def _look_again(self, due: _TellState, now_ns: int) -> None:
        """Tell how the worker is if that has changed, and look again: results are freed after their batch."""
        known = self._known()
        if known != self._told:
            self._tell_state(now_ns)
        looks = due.looks - 1
        if not looks and self._machine.idle:
            if now_ns - self._ran_ns < REST_NS:
                looks = 1
            else:
                self._loaders.put(self._models.rest)
                self._loaders.put(self._values.rest)
        self._state_due = looks > 0
        if self._state_due:
            self._wake_at(now_ns + STATE_NS, _TellState(looks))

    def _known(self) -> tuple[int, ...]:
        usable_bytes = self._machine.cache.usable_bytes
        return (self._hits, self._misses, self._loads_done, self._evictions, self._values.used_bytes, usable_bytes)

    def _tell_state(self, now_ns: int) -> None:
        self._told = self._known()
        state = self._state(now_ns)
        for ingress in self._ingresses:
            self._answer(ingress, state)

    def _state(self, now_ns: int) -> State:
        self._state_ns = now_ns
        counts = (self._hits, self._misses, self._loads_done, self._evictions)
        return state_of(self._machine, now_ns, counts, len(self._ingresses), self._values)

    # -- what has happened --------------------------------------------------------------------------------------

    def _lane(self, batch: TakenBatch, grant: events.Grant) -> None:
        """Carry out a grant, and those that were waiting for it to end."""
        while True:
            # The answer first: a client waits for it. Whoever comes next waits for the machine a little longer.
            ended = self._lanes.carry_out(batch, grant)
            if ended.over:
                batch.plan = None  # it refers to the model, which may be evicted now and has to be gone then
            now_ns = self._now_ns()
            with self._lock:
                if ended.over:
                    self._batches.pop(batch.task, None)
                self._ran_ns = now_ns
                answers = self._machine.step(ended, now_ns)
                if (resized := self._models.resized()) is not None:
                    answers += self._machine.step(events.BudgetChanged(*resized), now_ns)
                self._moving.look(now_ns)
                self._busy -= 1
                work = self._perform(answers, 0, now_ns)
            if work is None:
                if self._machine.idle:
                    self._lanes.rest()
                return
            assert isinstance(work, partial)
            batch, grant = work.args

    def _planned(self, batch: TakenBatch, plan: BatchRun | WholeRun) -> None:
        """The kernels of a batch that begins are known."""
        message, known = batch.message, list[events.DeviceEvent]()
        if (model := self._models.unknown(message, plan)) is not None:
            self._learning.want_cut([model])
        if (resized := self._models.resized(message.batch.stage, plan)) is not None:
            known.append(events.BudgetChanged(*resized))
        if (plan.name != batch.expected or not (plan.name or len(plan.kernels) == 1)) and (
            len(plan.kernels) > 1 or batch.expected or self._models.asks(message, len(plan.kernels))
        ):
            known.append(events.TaskPlanned(batch.task, plan.name, tuple(plan.idents), len(plan.idents)))
        if not known:
            return
        with self._lock:
            now_ns = self._now_ns()
            answers = [answer for event in known for answer in self._machine.step(event, now_ns)]
            work = self._perform(answers, task_of(message.batch.ingress, message.batch.cause), now_ns)
        if resized is not None:
            self._models.free()  # what has to go for it is gone before it begins
        if work is not None:
            self._hand(work)

    def _load_ended(self, weights: str, problem: str, took_ns: int) -> Work | None:
        """A load has ended, well or not; under the lock."""
        now_ns = self._now_ns()
        if problem:
            return self._perform(self._machine.step(events.LoadBroke(weights, problem), now_ns), 0, now_ns)
        self._loads_done += 1
        self._predictor.observe_load(weights, self._kind, took_ns)
        return self._perform(self._machine.step(events.LoadDone(weights), now_ns), 0, now_ns)
