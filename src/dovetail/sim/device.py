"""The simulated device: the Device machine, and a fluid backend that takes its times from a profile.

It keeps the worker contract to the letter (tests/contract runs the same suite against it and against real worker
processes). It has no clock of its own: whoever drives it calls `wake` at the times it asks for, be they virtual
(`sim`) or real (`live`, as an emulated device).

Rules of this file
- The machine decides; here its grants are carried out, its loads take their time, and both are told as the
  controller's events.
- A batch of a stage with a kernel sequence is as many kernels, which take the batch's time in the sequence's
  proportions. A batch of any other stage is one kernel.
- A load from host memory takes `Entry.load_ns`; one from outside takes `cold_factor` times that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ..control import (
    Action,
    BatchFailed,
    BatchFinished,
    Event,
    EvictModel,
    LoadFailed,
    LoadModel,
    ModelEvicted,
    ModelLoaded,
    RunBatch,
)
from ..device import Account, Device, DeviceTimes, KernelArbiter, ModelCache, Rules
from ..device.cache import names_of
from ..device.events import (
    TO_THE_END,
    AlarmRang,
    BatchWithdrawn,
    DeviceAction,
    Evict,
    Grant,
    GrantEnded,
    Load,
    LoadDone,
    ModelDropped,
    ModelHinted,
    ModelOrdered,
    PlannedBatch,
    Refuse,
    Revoke,
    SetAlarm,
)
from ..predict import Estimator, Predictor
from ..profile.table import ProfileTable
from ..state import WorkerRow, WorkerSpec
from ..state.run_batch import NEVER_NS, task_of
from ..workflow.graph import StageSpec
from .fluid import BatchRun, Contention, Fluid
from .sequences import KernelSequence
from .service import ProfiledService

__all__ = ["Branching", "SimDevice"]

#: Budget of a worker whose memory is not counted (`WorkerSpec.memory_bytes` of 0).
UNCOUNTED_BYTES = 1 << 62

#: (when, the device, what to hand to `wake` then)
Schedule = Callable[[int, "SimDevice", object], None]


class Branching(Protocol):
    """Says how many elements a simulated result has, and whether a simulated condition holds."""

    def counts(self, items: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
        """For each item (request, node, index) in turn, the counts of the node's counted outputs."""
        ...


class _Fetch(msgspec.Struct, eq=False):
    """A load on its way, and the action that led to it."""

    weights: str
    asked: RunBatch | LoadModel


class SimDevice:
    """One simulated worker."""

    def __init__(
        self,
        ident: int,
        spec: WorkerSpec,
        stages: Mapping[str, StageSpec],
        table: ProfileTable,
        schedule: Schedule,
        *,
        rng: random.Random | None = None,
        branching: Branching | None = None,
        service: Callable[[RunBatch], int] | None = None,
        contention: Contention | None = None,
        sequences: Mapping[str, KernelSequence] | None = None,
        rules: Rules | None = None,
        arbiter: KernelArbiter | None = None,
        account: Account | None = None,
        predictor: Predictor | None = None,
        reserve_bytes: int = 0,
        host_bytes: int | None = None,
        cold_factor: float = 1.0,
        starts_on_host: bool = True,
        unload_ns: Callable[[str], int] | None = None,
        load_ns: Mapping[str, int] | None = None,
    ) -> None:
        """`service` says how long a batch takes alone (the profile's time, if nothing else is given), `contention`
        how fast those flow that run together; `sequences` are the kernels of stages that can be stopped between them.

        `unload_ns` is how long a model takes out of the device; it counts with `Rules.fetch_blocks` only. With
        `starts_on_host` every model is in host memory from the beginning, as in Compass, as far as `host_bytes`
        (None: no bound) go. `load_ns` are load times by weights, where a profile has none.
        """
        self.ident = ident
        self.spec = spec
        #: It was lost: nobody hears of it any more.
        self.gone = False
        #: Time that it was at work, weighed by share: 100 ns at 50 % are 5,000.
        self.busy_pct_ns = 0
        #: Batches with a model that found it here when the device was free for them, as Compass counts; and the rest.
        self.hits = 0
        self.misses = 0
        #: Batches with a model that was already here when they were taken.
        self.here_when_taken = 0
        self.loads = 0
        self.evictions = 0
        #: It has run something.
        self.used = False
        self._stages = stages
        self._schedule = schedule
        self._branching = branching
        #: How long a batch takes alone.
        self.service = service or ProfiledService(table, spec.kind, rng).run_ns
        self._sequences = sequences or {}
        self._cold_factor = cold_factor
        self._loads_ns: dict[str, int] = dict(load_ns or {})
        self._fluid = Fluid(schedule, self, contention)
        #: Batches are single kernels, and none slows another one down.
        self._whole = contention is None and not self._sequences
        #: Weights by stage, of stages that have some.
        self._weights = {name: stage.weights for name, stage in stages.items() if stage.weights_bytes}
        self._runs: dict[int, BatchRun] = {}
        #: Loads that were asked for, until the model is there: orders are all answered, of hints the last.
        self._orders: dict[str, list[LoadModel]] = {}
        self._hints: dict[str, LoadModel] = {}
        #: The last wish to have a model gone.
        self._drops: dict[str, EvictModel] = {}
        rules = rules or Rules()
        cache = ModelCache(
            spec.memory_bytes or UNCOUNTED_BYTES,
            reserve_bytes=reserve_bytes,
            host_bytes=host_bytes,
            eviction=rules.eviction,
            names=names_of(stages.values()),
        )
        sizes: dict[str, int] = {}
        for stage in stages.values():
            sizes.setdefault(stage.weights, stage.weights_bytes)
            entry = table.entry(stage.name, spec.kind)
            if entry is not None:
                self._loads_ns.setdefault(stage.weights, entry.load_ns)
            if starts_on_host and stage.weights_bytes:
                cache.put_on_host(stage.weights, stage.weights_bytes)
        predictor = predictor or Estimator(table, stages=stages.values())
        times = DeviceTimes(predictor, spec.kind, sizes, cold_factor=cold_factor, unload_ns=unload_ns)
        models = {name: (stage.weights, stage.weights_bytes) for name, stage in stages.items()}
        self.machine = Device(ident, models, cache, times, rules, arbiter=arbiter, account=account)

    def row(self, now_ns: int) -> WorkerRow:
        """What it tells everybody about itself."""
        return self.machine.row(now_ns)

    # -- what it is asked ---------------------------------------------------------------------------------------

    def take(self, action: Action, now_ns: int) -> list[Event]:
        """Carry out an action; what can be answered at once is returned.

        A `LoadModel` that is a hint is answered when it leads to a load, or if the model can never be held.
        """
        if type(action) is RunBatch:
            # Asked now, while the requests are surely open; by the end of the batch some may have been closed.
            counts = () if self._branching is None else self._branching.counts(action.items)
            task = task_of(action.ingress, action.batch) if action.ingress else action.batch
            machine = self.machine
            weights = self._weights.get(action.stage) if self._weights else None
            if weights is not None and machine.cache.tier(weights) == "resident":
                self.here_when_taken += 1
            if not self._whole:
                return self._take(task, action, counts, now_ns)
            if not machine.begin_alone(action, now_ns):
                answers = machine.step(action, now_ns)
                if not _granted(answers, task):
                    self._runs[task] = BatchRun(task, action, counts)
                    return self._carry_out(answers, action, now_ns)
            # Most batches are whole and begin at once: nothing can happen to them but their end.
            self.used = True
            if weights is not None:
                self.hits += 1
            self._schedule(now_ns + self.service(action), self, (action, task, now_ns, counts))
            return []
        if isinstance(action, LoadModel):
            return self._load(action, now_ns)
        if isinstance(action, EvictModel):
            weights = self._stages[action.stage].weights
            self._drops[weights] = action
            return self._carry_out(self.machine.step(ModelDropped(weights, action.reason), now_ns), action, now_ns)
        return []

    def _take(self, task: int, action: RunBatch, counts: tuple[int, ...], now_ns: int) -> list[Event]:
        """A batch where kernels are told apart, or where those that run together slow each other down."""
        self._runs[task] = run = BatchRun(task, action, counts)
        run.share_pct = action.share_pct
        sequence = self._sequences.get(action.stage)
        event: RunBatch | PlannedBatch = action
        if sequence is not None:
            run.kind = sequence.bound
            run.ends_ns = sequence.ends_ns(self.service(action))
            idents = tuple(kernel.ident for kernel in sequence.kernels)
            event = PlannedBatch(action, sequence.name, idents, len(idents))
        return self._carry_out(self.machine.step(event, now_ns), action, now_ns)

    def _load(self, action: LoadModel, now_ns: int) -> list[Event]:
        stage = self._stages[action.stage]
        weights, nbytes = stage.weights, stage.weights_bytes
        cache = self.machine.cache
        if problem := cache.too_large(weights, nbytes):
            return [LoadFailed(now_ns, action.cause, self.ident, action.stage, problem)]
        if not action.keep:
            self._hints[weights] = action
            return self._carry_out(self.machine.step(ModelHinted(weights, nbytes), now_ns), action, now_ns)
        answers = self.machine.step(ModelOrdered(weights, nbytes), now_ns)
        if cache.tier(weights) == "resident":
            loaded = ModelLoaded(now_ns, action.cause, self.ident, action.stage, nbytes)
            return [loaded, *self._carry_out(answers, action, now_ns)]
        self._orders.setdefault(weights, []).append(action)
        return self._carry_out(answers, action, now_ns)

    def withdraw(self, task: int, now_ns: int) -> list[Event]:
        """Nobody waits for a batch (`task_of`) any more: if it has not begun, it goes."""
        known = self.machine.task(task)
        if known is None or known.begin_ns >= 0:
            return []
        del self._runs[task]
        return self._carry_out(self.machine.step(BatchWithdrawn(task), now_ns), None, now_ns)

    def wake(self, payload: object, now_ns: int) -> list[Event]:
        """A time that this device asked for has come."""
        if type(payload) is tuple:
            action, task, begin_ns, counts = payload
            self.busy_pct_ns += (now_ns - begin_ns) * action.share_pct
            finished = BatchFinished(now_ns, action.cause, action.batch, begin_ns, now_ns, counts, 0, action.ingress)
            if self.machine.end_alone(task):
                return [finished]
            answers = self.machine.step(GrantEnded(task, 1), now_ns)
            return [finished, *self._carry_out(answers, action, now_ns)] if answers else [finished]
        if type(payload) is BatchRun:
            # Otherwise its end was put off, or it has ended. Against the real clock a wake comes late, never early.
            return self._ended(payload, now_ns) if 0 <= payload.end_ns <= now_ns else []
        if type(payload) is _Fetch:
            return self._fetched(payload, now_ns)
        return self._carry_out(self.machine.step(AlarmRang(), now_ns), None, now_ns)

    # -- what the machine says ----------------------------------------------------------------------------------

    def _carry_out(
        self, answers: Iterable[DeviceAction], asked: RunBatch | LoadModel | EvictModel | None, now_ns: int
    ) -> list[Event]:
        """Do what the machine says; `asked` is what it was told by."""
        events: list[Event] = []
        for answer in answers:
            if type(answer) is Grant:
                self._begin(self._runs[answer.task], answer, now_ns)
            elif type(answer) is Load:
                run = self._runs.get(answer.task)
                wanted = self._wish(answer.weights) if run is None else run.action
                end_ns = now_ns + self.load_time_ns(answer.weights, answer.tier)
                self._schedule(end_ns, self, _Fetch(answer.weights, wanted))
            elif type(answer) is Evict:
                self.evictions += 1
                cause = self._cause(answer, asked)
                events.append(ModelEvicted(now_ns, cause, self.ident, answer.weights, answer.nbytes, answer.reason))
            elif type(answer) is Refuse:
                refused = self._runs.pop(answer.task).action
                why = (answer.reason, answer.detail, refused.ingress)
                events.append(BatchFailed(now_ns, refused.cause, refused.batch, now_ns, now_ns, *why))
            elif type(answer) is Revoke:
                self._stop(self._runs[answer.task], now_ns)
            elif type(answer) is SetAlarm:
                self._schedule(answer.at_ns, self, None)
        return events

    def _wish(self, weights: str) -> LoadModel:
        """The load that was asked for and that no batch needs."""
        orders = self._orders.get(weights)
        return orders[0] if orders else self._hints[weights]

    def _cause(self, evict: Evict, asked: RunBatch | LoadModel | EvictModel | None) -> int:
        """Of an eviction: the batch or the hint that needed the room, or the wish to have it gone."""
        action: Any = self._hints.get(evict.newcomer, asked) if evict.newcomer else self._drops.get(evict.weights)
        if evict.task in self._runs:
            action = self._runs[evict.task].action
        return 0 if action is None else action.cause

    def load_time_ns(self, weights: str, tier: str) -> int:
        """How long a load from host memory or from outside takes."""
        load_ns = self._loads_ns.get(weights, 0)
        return load_ns if tier == "host" else round(load_ns * self._cold_factor)

    def _fetched(self, fetch: _Fetch, now_ns: int) -> list[Event]:
        self.loads += 1
        weights = fetch.weights
        self._hints.pop(weights, None)
        orders = self._orders.pop(weights, None)
        nbytes = self.machine.cache.nbytes(weights)
        told: Sequence[RunBatch | LoadModel] = orders or [fetch.asked]
        events: list[Event] = [ModelLoaded(now_ns, a.cause, self.ident, a.stage, nbytes) for a in told]
        return events + self._carry_out(self.machine.step(LoadDone(weights), now_ns), fetch.asked, now_ns)

    # -- grants -------------------------------------------------------------------------------------------------

    def _begin(self, run: BatchRun, grant: Grant, now_ns: int) -> None:
        action = run.action
        at_ns = now_ns + grant.wait_ns
        if run.first_ns < 0:
            run.first_ns = at_ns
            self.used = True
            if action.stage in self._weights:
                if grant.hit:
                    self.hits += 1
                else:
                    self.misses += 1
        ends_ns = run.ends_ns
        if not ends_ns:
            # One kernel: it runs whole, from now on.
            work_ns = self.service(action)
            run.ends_ns = (work_ns,)
            self._fluid.begin(run, work_ns, at_ns)
            return
        run.first = first = grant.first
        run.stop = stop = len(ends_ns) if grant.last == TO_THE_END else grant.last + 1
        done_ns = ends_ns[first - 1] if first else 0
        if grant.until_ns < NEVER_NS:
            # Kernels begin until that time, the first one in any case.
            while stop - 1 > first and at_ns + ends_ns[stop - 2] - done_ns >= grant.until_ns:
                stop -= 1
            run.stop = stop
        self._fluid.begin(run, ends_ns[stop - 1] - done_ns, at_ns)

    def _stop(self, run: BatchRun, now_ns: int) -> None:
        """Let no further kernel begin."""
        ends_ns, first = run.ends_ns, run.first
        before_ns = ends_ns[first - 1] if first else 0
        done_ns = self._fluid.done_ns(run, now_ns)
        stop = first + 1
        while stop < run.stop and ends_ns[stop - 1] - before_ns <= done_ns:
            stop += 1
        if stop < run.stop:
            self._fluid.shorten(run, ends_ns[run.stop - 1] - ends_ns[stop - 1], now_ns)
            run.stop = stop

    def _ended(self, run: BatchRun, now_ns: int) -> list[Event]:
        action, task = run.action, run.task
        self._fluid.end(run, now_ns)
        took_ns = now_ns - run.begin_ns
        self.busy_pct_ns += took_ns * action.share_pct
        kernels, busy_ns = len(run.ends_ns), 0
        if kernels == 1:
            answers = self.machine.step(GrantEnded(task, 1), now_ns)
        else:
            over = run.stop == kernels
            answers = self.machine.step(GrantEnded(task, run.stop, over, run.spans(now_ns)), now_ns)
            if not over:
                run.busy_ns += took_ns
                return self._carry_out(answers, action, now_ns)
            busy_ns = run.busy_ns + took_ns if run.busy_ns else 0
        del self._runs[task]
        finished: Event = BatchFinished(
            now_ns, action.cause, action.batch, run.first_ns, now_ns, run.counts, busy_ns, action.ingress
        )
        return [finished, *self._carry_out(answers, action, now_ns)] if answers else [finished]


def _granted(answers: Sequence[DeviceAction], task: int) -> bool:
    """Whether the task has the device from now on, and that is all."""
    if len(answers) != 1:
        return False
    grant = answers[0]
    return type(grant) is Grant and grant.task == task and not grant.wait_ns
