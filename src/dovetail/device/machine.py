"""The Device machine: what one device does next. `step(event, now_ns) -> actions`.

Rules of this file
1. One way in and one way out. No clock, no randomness, no thread: time comes in with the step. Simulated, emulated
   and live workers have the same machine; what differs is who carries its actions out. `begin_alone` and `end_alone`
   are steps, too: the two commonest ones, for which a simulation need not make an event and an action.
2. Everything starts by a grant. What starts, and what makes way, is `starting`'s business; models are `loading`'s.
3. A batch ends once: it is refused, or what was granted of it last has ended it.
4. Shares of what runs never add up to more than the device.

With `Rules.fetch_blocks` it is the worker of Compass instead: a batch takes the whole device when it comes up, its
model is fetched then, the cached set changes when the fetch ends, and copying out what was evicted comes after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..state import WorkerRow
from ..state.run_batch import FULL_QUOTA, NEVER_NS, RunBatch, task_of
from ..state.worker import FULL_SHARE
from ..units import format_ns
from .account import Account
from .arbiter import KernelArbiter
from .cache import ModelCache
from .dispatch import KernelDispatch
from .events import (
    AlarmRang,
    BatchWithdrawn,
    BudgetChanged,
    DeviceAction,
    DeviceEvent,
    Grant,
    GrantEnded,
    KernelsLaunched,
    LoadBroke,
    LoadDone,
    ModelDropped,
    ModelHinted,
    ModelOrdered,
    PlannedBatch,
    QuotaChanged,
    Refuse,
    SetAlarm,
    TaskPlanned,
)
from .gap import GapArbiter, GapSettings
from .loading import Loading
from .priority import PriorityArbiter
from .queue import WorkerQueue
from .rules import Rules
from .starting import Starting
from .task import NO_OBJECTIVE_NS, Task, TaskState
from .times import DeviceTimes
from .tokens import TokenAccount

__all__ = ["Device"]

#: Model of a stage that this worker does not know.
_UNKNOWN: Final = ("", -1)
_RUNNING, _STOPPING = TaskState.RUNNING, TaskState.STOPPING
_SLACK: Final = GapSettings(order="slack")


class Device:
    """Says what a device does next."""

    def __init__(
        self,
        worker: int,
        models: Mapping[str, tuple[str, int]],
        cache: ModelCache,
        times: DeviceTimes,
        rules: Rules | None = None,
        *,
        arbiter: KernelArbiter | None = None,
        account: Account | None = None,
    ) -> None:
        """`models` are weights and bytes by stage; `times` says how long loads, kernels and turn-arounds take."""
        self.worker = worker
        self.cache = cache
        self.rules = rules = rules or Rules()
        self._models = models
        self._times = times
        if arbiter is None:
            arbiter = GapArbiter(times.kernels, _SLACK, account=account, learn=False, pairs=times.pairs)
        if account is None:
            account = arbiter.account if isinstance(arbiter, PriorityArbiter) else TokenAccount()
        self._account = account
        #: Where quotas are kept; None: not in this way, or the arbiter does not ask for them.
        self._tokens = account if isinstance(account, TokenAccount) and isinstance(arbiter, PriorityArbiter) else None
        grace_ns = arbiter.settings.grace_ns if isinstance(arbiter, GapArbiter) else 0
        self.dispatch = KernelDispatch(arbiter, account, grace_ns, revokes_one=rules.revokes_one)
        self._loading = Loading(cache, rules, times)
        self._queue = queue = WorkerQueue(cache, rules, self._loading.fetch_ns)
        self._loading.attach(queue)
        self._starting = Starting(queue, cache, rules, self.dispatch, self._loading, times)
        self._tasks, self._expected, self._fetch_blocks = queue.tasks, self.dispatch.hints, rules.fetch_blocks
        self._arrivals = 0
        self._alone: RunBatch | None = None  # it is in no book; its number, since when, whether its end matters
        self._alone_task, self._alone_ns, self._alone_matters = -1, 0, False
        self._models_wait = False  # models were to come or go when that was last looked at
        self._lowest = 1  # the lowest class that was ever here; hints are of use to classes above it only
        self._done_ns: int | None = None  # when all will have ended, if that was asked since something changed
        #: What comes often; the rest is `_changed`'s.
        self._handlers: dict[type, Any] = {
            RunBatch: self._take,
            PlannedBatch: self._take_planned,
            GrantEnded: self._ended,
            TaskPlanned: self._planned,
            KernelsLaunched: self._launched,
        }

    def step(self, event: DeviceEvent, now_ns: int) -> list[DeviceAction]:
        """Take one event and say what is to be done."""
        alone = self._alone
        if alone is not None:
            if type(event) is GrantEnded and event.task == self._alone_task and event.over:
                self._alone = None
                return self._alone_ended(alone, now_ns) if self._alone_matters else []
            self._write_down()
        elif type(event) is RunBatch and self.begin_alone(event, now_ns):
            return [Grant(self._alone_task)]
        # Before anything is told to the arbiter: it would let what is late start, and others beside it.
        late = self._starting.refuse_late(now_ns, event) if self.dispatch.entered else []
        actions: list[DeviceAction] = self._handlers.get(type(event), self._changed)(event, now_ns)
        return [*late, *actions, *self._go(now_ns)] if late else actions

    # -- a batch that nobody else is here with --------------------------------------------------------------------

    def begin_alone(self, run: RunBatch, now_ns: int) -> bool:
        """Start a batch, if it is whole and can start at once: most do on a device that is not crowded.

        As `step` with this batch and `Grant` as its only answer; False: nothing has happened. It is written into the
        books when something else happens before its end.
        """
        if self._alone is not None or self._tasks or self._fetch_blocks or self._account.active:
            return False
        weights, nbytes = self._models.get(run.stage, _UNKNOWN)
        priority = run.priority
        if (
            nbytes < 0
            or now_ns < run.earliest_ns
            or now_ns > run.latest_ns
            or (run.accept_ns and now_ns > run.accept_ns)
            or not 0 < run.share_pct <= FULL_SHARE
            or run.quota_pct < FULL_QUOTA
            or (nbytes and self.cache.tier(weights) != "resident")
            or (self._expected and self.dispatch.expects_above(priority, now_ns))
        ):
            return False
        if self._expected:
            self._times.observe_turnaround(self.dispatch.came(priority, now_ns))
        self._alone = run
        self._alone_task = task_of(run.ingress, run.batch) if run.ingress else run.batch
        self._alone_ns = now_ns
        if priority > self._lowest:
            self._lowest = priority
        self._alone_matters = nbytes > 0 or self._models_wait or (run.follows and priority < self._lowest)
        return True

    def end_alone(self, task: int) -> bool:
        """As `step` with the end of a batch that is alone and no answer; False: nothing has happened."""
        if self._alone is None or task != self._alone_task or self._alone_matters:
            return False
        self._alone = None
        return True

    def _alone_ended(self, run: RunBatch, now_ns: int) -> list[DeviceAction]:
        weights, nbytes = self._models[run.stage]
        if nbytes:
            self.cache.use(weights, now_ns)
        if run.follows and run.priority < self._lowest:
            self.dispatch.expect(run.priority, self._times.turnaround_ns(), now_ns)
        return self._go(now_ns) if self._loading.busy else []

    def _write_down(self) -> None:
        """Something happens while a batch is alone: from now on it is one among others."""
        run, begin_ns = self._alone, self._alone_ns
        if run is not None:
            self._alone = self._done_ns = None
            weights, nbytes = self._models[run.stage]
            task = Task(self._alone_task, run, weights, nbytes, self._key(run), begin_ns)
            self._queue.run_at_once(task, begin_ns)

    def _key(self, run: RunBatch) -> tuple[int, int, int, int]:
        """Its place in the queue."""
        self._arrivals += 1
        if self.rules.in_order:
            return 0, run.order, 0, self._arrivals
        return run.priority, run.order, run.objective_ns or NO_OBJECTIVE_NS, self._arrivals

    def _go(self, now_ns: int) -> list[DeviceAction]:
        self._done_ns = None
        actions = self._starting.go(now_ns)
        self._models_wait = self._loading.busy
        return actions

    # -- batches ------------------------------------------------------------------------------------------------

    def _take_planned(self, event: PlannedBatch, now_ns: int) -> list[DeviceAction]:
        return self._take(event.run, now_ns, event)

    def _take(self, run: RunBatch, now_ns: int, plan: PlannedBatch | None = None) -> list[DeviceAction]:
        """A batch has come. It is refused if it is not expected to start by `latest_ns`, or by `accept_ns`.

        Whether it then starts by `accept_ns` is not looked at: what could start now is better run than sent on.
        """
        queue, cache, dispatch = self._queue, self.cache, self.dispatch
        ident = task_of(run.ingress, run.batch) if run.ingress else run.batch
        if ident in queue.tasks:
            raise ValueError(f"batch {run.batch} of ingress {run.ingress} was taken before")
        model = self._models.get(run.stage)
        if model is None:
            return [Refuse(ident, "not_loaded", f"this worker knows no stage {run.stage!r}")]
        weights, nbytes = model
        share_pct, priority = run.share_pct, run.priority
        if not 0 < share_pct <= FULL_SHARE:
            return [Refuse(ident, "no_share", f"a share of {share_pct} % is not to be had on one device")]
        task = Task(ident, run, weights, nbytes, self._key(run), now_ns)
        if self._tokens is not None and (run.quota_pct < FULL_QUOTA or self._account.active):
            self._tokens.told(task.client, run.quota_pct, now_ns)
        if plan is not None:
            task.plan(plan, self._times)
        self._done_ns = None
        if (
            not (self._account.active or self.rules.fetch_blocks)
            and not queue.waiting
            and share_pct <= queue.free_pct
            and run.earliest_ns <= now_ns <= run.latest_ns
            and (not run.accept_ns or now_ns <= run.accept_ns)
            and (not nbytes or cache.tier(weights) == "resident")
            and task.launched
            and (
                not queue.classes
                or (len(queue.classes) == 1 and priority in queue.classes and not dispatch.takes_turns)
            )
            and not (dispatch.hints and dispatch.expects_above(priority, now_ns))
            and not self._starting.hosted
        ):
            if dispatch.hints:
                self._times.observe_turnaround(dispatch.came(priority, now_ns))
            queue.run_at_once(task, now_ns)
            if plan is not None:
                self._starting.hosted += task.launched < task.kernels
            if share_pct < FULL_SHARE and len(queue.running) > 1:
                self._starting.crowd()
            if priority > self._lowest:
                self._lowest = priority
            return [Grant(ident)]
        if problem := cache.too_large(weights, nbytes):
            return [Refuse(ident, "no_memory", problem)]
        limit_ns = min(run.latest_ns, run.accept_ns or NEVER_NS)
        if limit_ns < NEVER_NS:
            start_ns = queue.expected_start_ns(task, now_ns)
            if start_ns > limit_ns:
                late = format_ns(start_ns - limit_ns)
                return [Refuse(ident, "too_late", f"with the work before it, it would start {late} too late")]
        self._lowest = max(self._lowest, priority)
        queue.add(task, now_ns)
        if plan is not None:
            self._starting.hosted += task.launched < task.kernels
        if run.earliest_ns > now_ns:
            return [SetAlarm(run.earliest_ns), *self._go(now_ns)]
        actions: list[DeviceAction] = []
        if dispatch.hints:
            # Entered before the hint is void: in between a lower kernel could start.
            if self._starting.contended(now_ns):
                self._starting.enter(now_ns, actions)
            self._times.observe_turnaround(dispatch.came(priority, now_ns))
        return actions + self._go(now_ns)

    def _planned(self, event: TaskPlanned, now_ns: int) -> list[DeviceAction]:
        task = self._queue.tasks.get(event.task)
        if task is None or task.kernel:
            return []
        self._starting.hosted -= task.launched < task.kernels
        task.plan(event, self._times)
        self._starting.hosted += task.launched < task.kernels
        if task.entered and task.launched:
            self.dispatch.known(task, now_ns)
        elif task.entered:
            self.dispatch.leave(task, now_ns)  # until its host has launched one
        return self._go(now_ns)

    def _launched(self, event: KernelsLaunched, now_ns: int) -> list[DeviceAction]:
        task = self._queue.tasks.get(event.task)
        if task is None or event.upto <= task.launched:
            return []
        before = task.launched
        idle = task.kernel == before and task.state is not _RUNNING and task.state is not _STOPPING
        self._starting.hosted -= task.launched < task.kernels
        task.launched = min(event.upto, task.kernels)
        self._starting.hosted += task.launched < task.kernels
        if idle and self.dispatch.usual(task):
            self._times.observe_gap(task.sequence, task.kernel - 1, now_ns - task.since_ns)
        if task.entered:
            self.dispatch.launched(task, before, idle, now_ns)
        return self._go(now_ns)

    def _ended(self, event: GrantEnded, now_ns: int) -> list[DeviceAction]:
        """What was granted has ended."""
        queue = self._queue
        task = queue.running[event.task]
        self._done_ns = None
        first, spans = task.first, event.spans
        begin_ns, end_ns = (spans[0][0], spans[-1][1]) if spans else (task.since_ns, now_ns)
        if spans and task.sequence and not task.crowded:
            gaps = event.gaps if event.gaps and self.dispatch.usual(task) else ()
            self._times.observe_kernels(task.sequence, first, spans, gaps)
        task.kernel = event.upto
        if event.over:
            if self._starting.hosted:
                self._starting.hosted -= task.launched < task.kernels
            queue.release(task, now_ns)
            follows = task.run.follows and task.priority < self._lowest
            if follows:
                # Told before the end: in between a lower kernel could start.
                self.dispatch.expect(task.priority, self._times.turnaround_ns(), now_ns)
            if task.entered:
                self.dispatch.ended(task, first, True, begin_ns, end_ns, now_ns)
            busy = queue.waiting or queue.early or self.dispatch.entered or self._loading.busy
            if not busy and not follows:
                return []  # nothing could start that could not before
        else:
            busy_ns = sum(end - begin for begin, end in spans) if spans else now_ns - begin_ns
            task.since_ns = end_ns
            queue.suspend(task, busy_ns)
            if task.entered:
                self.dispatch.ended(task, first, False, begin_ns, end_ns, now_ns)
        return self._go(now_ns)

    def _changed(self, event: DeviceEvent, now_ns: int) -> list[DeviceAction]:
        """Something else has changed what can start or be loaded."""
        starting, loading = self._starting, self._loading
        actions: list[DeviceAction] = []
        if type(event) is AlarmRang:
            starting.rang(now_ns)
        elif type(event) is LoadDone:
            actions = starting.loaded(event.weights, now_ns)
        elif type(event) is LoadBroke:
            actions = starting.broke(event.weights, event.detail, now_ns)
        elif type(event) is BatchWithdrawn:
            if (task := self._queue.tasks.get(event.task)) is None:
                return []
            starting.forget(task, now_ns)
        elif type(event) is ModelHinted:
            if not event.nbytes or not self.rules.prefetch or self.cache.too_large(event.weights, event.nbytes):
                return []
            loading.hint(event.weights, event.nbytes, now_ns)
        elif type(event) is ModelOrdered:
            loading.order(event.weights, event.nbytes)
        elif type(event) is ModelDropped:
            actions = loading.drop(event.weights, event.reason)
        elif type(event) is QuotaChanged:
            assert self._tokens is not None, "this device keeps no quotas that change"
            self._tokens.change(event, now_ns)
        elif type(event) is BudgetChanged:
            actions = loading.set_budget(event.usable_bytes, event.reason)
        else:
            raise TypeError(f"{type(event).__name__} is no event of a device")
        return actions + self._go(now_ns)

    # -- what is asked ------------------------------------------------------------------------------------------

    def row(self, now_ns: int) -> WorkerRow:
        """What this worker tells everybody about itself."""
        self._write_down()
        cache, queue = self.cache, self._queue
        if self.rules.fetch_blocks:
            resident = cache.listed("resident", "leaving")
            free_bytes = max(0, cache.usable_bytes - sum(map(cache.nbytes, resident)))
        else:
            resident, free_bytes = cache.listed("resident", "loading"), cache.free_bytes
        if self._done_ns is None:
            self._done_ns = queue.done_ns(now_ns) if queue.tasks else 0
        wait_ns = queue.queued_ns + (queue.running_ns if self.rules.counts_running else 0)
        done_ns = max(now_ns, self._done_ns)
        return WorkerRow(self.worker, now_ns, wait_ns, done_ns, resident, free_bytes, *queue.room())

    def task(self, ident: int) -> Task | None:
        """A batch that was taken and has not ended."""
        self._write_down()
        return self._queue.tasks.get(ident)

    @property
    def idle(self) -> bool:
        """Whether no batch is here."""
        return self._alone is None and not self._queue.tasks

    def validate(self) -> None:
        """Check every invariant; for tests."""
        if self._alone is not None:
            weights, nbytes = self._models[self._alone.stage]
            assert not self._queue.tasks and self._alone_ns >= 0, "it is alone"
            assert not nbytes or self.cache.tier(weights) == "resident", f"{self._alone_task}: no model"
        self._queue.validate()
        self._loading.validate()
        self._starting.validate()
