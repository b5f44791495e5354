"""The Device machine: what one device does next. `step(event, now_ns) -> actions`.

Rules of this file
1. One way in and one way out. No clock, no randomness, no thread: time comes in with the step. Simulated, emulated
   and live workers have the same machine; what differs is who carries its actions out.
2. Everything starts by a grant. Batches start by class, then order, then objective, then arrival. One that waits for
   its model lets others start before it, but at most `Rules.overtakes` of them while there is no room for the model;
   one that waits for nothing but share lets none.
3. While all are of one class, a batch is granted whole. Where a higher class is there or expected, or quotas count,
   the kernel arbiter is asked (`dispatch`); what runs in a lower class is revoked and goes on later. An arbiter by
   which equals take turns is asked whenever there is a second task.
4. A batch ends once: it is refused, or what was granted of it last has ended it.
5. Shares of what runs never add up to more than the device. Models are `loading`'s business.

With `Rules.fetch_blocks` it is the worker of Compass instead: a batch takes the whole device when it comes up, its
model is fetched then, the cached set changes when the fetch ends, and copying out what was evicted comes after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..state import WorkerRow
from ..state.run_batch import NEVER_NS, RunBatch, task_of
from ..state.worker import FULL_SHARE
from ..units import format_ns
from .account import Account, Unlimited
from .arbiter import KernelArbiter
from .cache import ModelCache
from .dispatch import KernelDispatch
from .events import (
    TO_THE_END,
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
    Refuse,
    Revoke,
    SetAlarm,
    TaskPlanned,
)
from .gap import GapArbiter, GapSettings
from .loading import Loading
from .queue import WorkerQueue
from .rules import Rules
from .task import NO_OBJECTIVE_NS, Task, TaskState
from .times import DeviceTimes

__all__ = ["Device"]

#: Model of a stage that this worker does not know.
_UNKNOWN: Final = ("", -1)
_RUNNING: Final = TaskState.RUNNING
_STOPPING: Final = TaskState.STOPPING
_SUSPENDED: Final = TaskState.SUSPENDED


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
        account = account or Unlimited()
        if arbiter is None:
            limited = None if isinstance(account, Unlimited) else account
            arbiter = GapArbiter(times.kernels, GapSettings(order="slack"), account=limited, learn=False)
        grace_ns = arbiter.settings.grace_ns if isinstance(arbiter, GapArbiter) else 0
        self.dispatch = KernelDispatch(arbiter, account, grace_ns, revokes_one=rules.revokes_one)
        self._loading = Loading(cache, rules, times)
        self._queue = queue = WorkerQueue(cache, rules, self._loading.fetch_ns)
        self._loading.attach(queue)
        self._whole = not rules.fetch_blocks and not self.dispatch.limited
        self._arrivals = 0
        #: The batch that runs and is in no book, its number, and since when.
        self._alone: RunBatch | None = None
        self._alone_ident = 0
        self._alone_ns = 0
        #: Something is to be done when it ends.
        self._alone_matters = False
        #: The lowest class that was ever here; hints are of use to classes above it only.
        self._lowest = 1
        #: Tasks whose kernels a host launches one by one.
        self._hosted = 0
        #: When all will have ended, if that was asked since something changed.
        self._done_ns: int | None = None
        self._alarm_ns = NEVER_NS
        self._handlers: dict[type, Any] = {
            RunBatch: self._take,
            PlannedBatch: self._take_planned,
            GrantEnded: self._ended,
            TaskPlanned: self._planned,
            KernelsLaunched: self._launched,
            BatchWithdrawn: self._withdrawn,
            ModelHinted: self._hinted,
            ModelOrdered: self._ordered,
            ModelDropped: self._dropped,
            LoadDone: self._loaded,
            LoadBroke: self._load_broke,
            BudgetChanged: self._budget_changed,
            AlarmRang: self._alarm_rang,
        }

    def step(self, event: DeviceEvent, now_ns: int) -> list[DeviceAction]:
        """Take one event and say what is to be done."""
        alone = self._alone
        if alone is not None:
            if type(event) is GrantEnded and event.over and event.task == self._alone_ident:
                self._alone = None
                return self._alone_ended(alone, now_ns) if self._alone_matters else []
            self._write_down()
        elif type(event) is RunBatch and not self._queue.tasks and self._runs_alone(event, now_ns):
            return [Grant(self._alone_ident)]
        actions: list[DeviceAction] = self._handlers[type(event)](event, now_ns)
        return actions

    # -- a batch that nobody else is here with --------------------------------------------------------------------

    def _runs_alone(self, run: RunBatch, now_ns: int) -> bool:
        """Start a batch, if it is whole and can start at once: most do on a device that is not crowded.

        It is written into the books when something else happens before its end, and else never.
        """
        weights, nbytes = self._models.get(run.stage, _UNKNOWN)
        if (
            nbytes < 0
            or not self._whole
            or not run.earliest_ns <= now_ns <= run.latest_ns
            or (run.accept_ns and now_ns > run.accept_ns)
            or not 0 < run.share_pct <= FULL_SHARE
            or self.dispatch.hints
            or (nbytes and self.cache.tier(weights) != "resident")
        ):
            return False
        self._alone = run
        self._alone_ident = task_of(run.ingress, run.batch) if run.ingress else run.batch
        self._alone_ns = now_ns
        follows = run.follows
        if run.priority >= self._lowest:
            self._lowest, follows = run.priority, False
        loading = self._loading
        self._alone_matters = bool(nbytes or follows or self.cache.hints or loading.orders or loading.drops)
        return True

    def _alone_ended(self, run: RunBatch, now_ns: int) -> list[DeviceAction]:
        weights, nbytes = self._models[run.stage]
        if nbytes:
            self.cache.use(weights, now_ns)
        if run.follows and run.priority < self._lowest:
            self.dispatch.expect(run.priority, self._times.turnaround_ns(), now_ns)
            return self._go(now_ns)
        loading = self._loading
        return self._go(now_ns) if self.cache.hints or loading.orders or loading.drops else []

    def _write_down(self) -> None:
        """Something happens while a batch is alone: from now on it is one among others."""
        run, begin_ns = self._alone, self._alone_ns
        if run is not None:
            self._alone = self._done_ns = None
            weights, nbytes = self._models[run.stage]
            task = Task(self._alone_ident, run, weights, nbytes, self._key(run), begin_ns)
            self._queue.run_at_once(task, begin_ns)

    def _key(self, run: RunBatch) -> tuple[int, int, int, int]:
        """Its place in the queue."""
        self._arrivals += 1
        if self.rules.in_order:
            return 0, run.order, 0, self._arrivals
        return run.priority, run.order, run.objective_ns or NO_OBJECTIVE_NS, self._arrivals

    # -- batches ------------------------------------------------------------------------------------------------

    def _take_planned(self, event: PlannedBatch, now_ns: int) -> list[DeviceAction]:
        return self._take(event.run, now_ns, event)

    def _take(self, run: RunBatch, now_ns: int, plan: PlannedBatch | None = None) -> list[DeviceAction]:
        """A batch has come.

        It is refused if it is not expected to start by `latest_ns`, or by `accept_ns`; whether it then does start by
        `accept_ns` is not looked at any more, since a batch that could start now is better run than sent on.
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
        if plan is not None:
            self._plan(task, plan)
        self._done_ns = None
        if (
            self._whole
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
            and not dispatch.hints
            and not self._hosted
        ):
            queue.run_at_once(task, now_ns)
            if plan is not None:
                self._hosted += task.launched < task.kernels
            if share_pct < FULL_SHARE and len(queue.running) > 1:
                self._crowd()
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
            self._hosted += task.launched < task.kernels
        if run.earliest_ns > now_ns:
            return [SetAlarm(run.earliest_ns), *self._go(now_ns)]
        actions: list[DeviceAction] = []
        if dispatch.hints:
            # Entered before the hint is void: in between a lower kernel could start.
            if self._contended(now_ns):
                self._enter(now_ns, actions)
            self._times.observe_turnaround(dispatch.came(priority, now_ns))
        return actions + self._go(now_ns)

    def _planned(self, event: TaskPlanned, now_ns: int) -> list[DeviceAction]:
        task = self._queue.tasks.get(event.task)
        if task is None or task.kernel:
            return []
        self._forget_host(task)
        self._plan(task, event)
        self._hosted += task.launched < task.kernels
        if task.entered:
            self.dispatch.leave(task, now_ns)
        return self._go(now_ns)

    def _plan(self, task: Task, plan: TaskPlanned | PlannedBatch) -> None:
        """The kernels of a task are known."""
        if not 0 <= plan.launched <= len(plan.idents):
            raise ValueError(f"{plan.launched} of {len(plan.idents)} kernels of task {task.ident} are launched")
        task.idents, task.launched = plan.idents, plan.launched
        task.kernels = len(plan.idents) or 1
        task.sequence = self._times.sequence(plan.sequence, plan.idents)

    def _launched(self, event: KernelsLaunched, now_ns: int) -> list[DeviceAction]:
        task = self._queue.tasks.get(event.task)
        if task is None or event.upto <= task.launched:
            return []
        before = task.launched
        idle = task.kernel == before and task.state is not _RUNNING and task.state is not _STOPPING
        self._forget_host(task)
        task.launched = min(event.upto, task.kernels)
        self._hosted += task.launched < task.kernels
        if idle and self.dispatch.usual(task):
            self._times.observe_gap(task.sequence, task.kernel - 1, now_ns - task.since_ns)
        if task.entered:
            self.dispatch.launched(task, before, idle, now_ns)
        return self._go(now_ns)

    def _forget_host(self, task: Task) -> None:
        self._hosted -= task.launched < task.kernels

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
            if self._hosted:
                self._forget_host(task)
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

    def _withdrawn(self, event: BatchWithdrawn, now_ns: int) -> list[DeviceAction]:
        task = self._queue.tasks.get(event.task)
        if task is None:
            return []
        self._forget(task, now_ns)
        return self._go(now_ns)

    def _forget(self, task: Task, now_ns: int) -> None:
        """Take a batch off the books, wherever it is."""
        self._forget_host(task)
        if task.entered:
            self.dispatch.leave(task, now_ns)
        if self._loading.fetching is task:
            self._loading.fetching = None
        if task.ident in self._queue.running:
            self._queue.release(task, now_ns)
        else:
            self._queue.remove(task, now_ns)

    def _alarm_rang(self, event: AlarmRang, now_ns: int) -> list[DeviceAction]:
        if now_ns >= self._alarm_ns:
            self._alarm_ns = NEVER_NS
        if self.dispatch.entered:
            self.dispatch.ring(now_ns)
        return self._go(now_ns)

    # -- models -------------------------------------------------------------------------------------------------

    def _hinted(self, event: ModelHinted, now_ns: int) -> list[DeviceAction]:
        if not event.nbytes or not self.rules.prefetch or self.cache.too_large(event.weights, event.nbytes):
            return []
        self._loading.hint(event.weights, event.nbytes, now_ns)
        return self._go(now_ns)

    def _ordered(self, event: ModelOrdered, now_ns: int) -> list[DeviceAction]:
        self._loading.order(event.weights, event.nbytes)
        return self._go(now_ns)

    def _dropped(self, event: ModelDropped, now_ns: int) -> list[DeviceAction]:
        actions = self._loading.drop(event.weights, event.reason)
        return actions + self._go(now_ns)

    def _budget_changed(self, event: BudgetChanged, now_ns: int) -> list[DeviceAction]:
        return self._loading.set_budget(event.usable_bytes, event.reason) + self._go(now_ns)

    def _loaded(self, event: LoadDone, now_ns: int) -> list[DeviceAction]:
        actions, victims = self._loading.done(event.weights)
        task = self._loading.fetching
        if task is not None and task.weights == event.weights:
            self._loading.fetching = None
            if now_ns > task.run.latest_ns:
                self._queue.release(task, now_ns)
                actions.append(_too_late(task, now_ns))
            else:
                wait_ns = sum(self._times.unload_ns(victim.weights) for victim in victims)
                task.state = _RUNNING
                task.begin_ns = task.since_ns = now_ns + wait_ns
                actions.append(Grant(task.ident, hit=False, wait_ns=wait_ns))
        return actions + self._go(now_ns)

    def _load_broke(self, event: LoadBroke, now_ns: int) -> list[DeviceAction]:
        actions = self._loading.broke(event.weights)
        waits = (TaskState.EARLY, TaskState.QUEUED, TaskState.FETCHING)
        for task in [t for t in self._queue.tasks.values() if t.weights == event.weights and t.nbytes]:
            if task.state in waits:
                self._forget(task, now_ns)
                actions.append(Refuse(task.ident, "not_loaded", event.detail[:MAX_DETAIL_CHARS]))
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
        return WorkerRow(self.worker, now_ns, wait_ns, max(now_ns, self._done_ns), resident, free_bytes)

    def task(self, ident: int) -> Task | None:
        """A batch that was taken and has not ended."""
        self._write_down()
        return self._queue.tasks.get(ident)

    @property
    def idle(self) -> bool:
        """Whether no batch is here."""
        return self._alone is None and not self._queue.tasks

    # -- what is decided ----------------------------------------------------------------------------------------

    def _go(self, now_ns: int) -> list[DeviceAction]:
        queue = self._queue
        self._done_ns = None
        actions: list[DeviceAction] = []
        if queue.early:
            queue.admit(now_ns)
        if self.rules.fetch_blocks:
            self._come_up(now_ns, actions)
        elif self._contended(now_ns):
            self._arbitrate(now_ns, actions)
        else:
            if self.dispatch.entered and not self._in_gap():
                self.dispatch.leave_all(now_ns)
            if queue.waiting:
                self._start(now_ns, actions)
        if self._loading.busy:
            self._loading.go(now_ns, actions)
        return actions

    def _contended(self, now_ns: int) -> bool:
        """Whether anybody could be in the way of anybody else: then the kernel arbiter decides."""
        classes, dispatch = self._queue.classes, self.dispatch
        if self.rules.in_order:
            return False
        if len(classes) > 1 or dispatch.limited:
            return bool(classes)
        if (self._hosted or dispatch.takes_turns) and len(self._queue.waiting) + len(self._queue.running) > 1:
            return True
        return bool(dispatch.hints) and any(dispatch.expects_above(priority, now_ns) for priority in classes)

    def _in_gap(self) -> bool:
        """Whether the only task is between two kernels: the arbiter keeps it, since a filler may come."""
        waiting = self._queue.waiting
        return len(waiting) == 1 and waiting[0].entered and waiting[0].kernel == waiting[0].launched

    def _start(self, now_ns: int, actions: list[DeviceAction]) -> None:
        """Start whatever can be: all are of one class."""
        queue, rules, tier = self._queue, self.rules, self.cache.tier
        passed: list[Task] = []
        for task in queue.waiting[:]:
            if not queue.free_pct:
                break
            place = tier(task.weights) if task.nbytes and task.state is not _SUSPENDED else "resident"
            if now_ns > task.run.latest_ns and task.state is not _SUSPENDED:
                self._forget(task, now_ns)
                actions.append(_too_late(task, now_ns))
            elif place != "resident":
                task.missed = task.missed or task.share_pct <= queue.free_pct
                if rules.in_order or (place != "loading" and task.overtaken >= rules.overtakes):
                    break
                if place != "loading":
                    passed.append(task)
            elif task.kernel == task.launched:
                continue  # its host has not launched the next
            elif task.share_pct > queue.free_pct:
                break
            else:
                self._grant(task, TO_THE_END, "turn", now_ns, actions)
                for earlier in passed:
                    earlier.overtaken += 1

    def _grant(self, task: Task, last: int, why: str, now_ns: int, actions: list[DeviceAction]) -> None:
        """Let kernels of a waiting task run."""
        queue = self._queue
        queue.occupy(task, now_ns)
        if task.begin_ns < 0:
            task.begin_ns = now_ns
        task.first, task.last, task.since_ns, task.why = task.kernel, last, now_ns, why
        task.crowded = False
        if len(queue.running) > 1:
            self._crowd()
        until_ns = self.dispatch.account.until_ns(task.client, task.share_pct, now_ns)
        actions.append(Grant(task.ident, task.kernel, last, until_ns, why, 0, not task.missed))

    def _crowd(self) -> None:
        """Several run beside each other: how long their kernels take says nothing of each."""
        for task in self._queue.running.values():
            task.crowded = True

    def _arbitrate(self, now_ns: int, actions: list[DeviceAction]) -> None:
        """Start what the kernel arbiter lets start, and revoke what is in the way."""
        dispatch, tasks, running = self.dispatch, self._queue.tasks, self._queue.running
        self._enter(now_ns, actions)
        earlier = bool(running)
        while dispatch.starts:
            starts, dispatch.starts = dispatch.starts, []
            for start in starts:
                task = tasks.get(start.task)
                if task is not None and task.entered and task.ident not in running:
                    last = TO_THE_END if dispatch.entitled(task, now_ns) else start.kernel
                    self._grant(task, last, start.why, now_ns, actions)
        if earlier:
            for task in dispatch.in_the_way(now_ns):
                task.state = _STOPPING
                actions.append(Revoke(task.ident))
        if now_ns < dispatch.alarm_ns and dispatch.alarm_ns != self._alarm_ns:
            self._alarm_ns = dispatch.alarm_ns
            actions.append(SetAlarm(dispatch.alarm_ns))

    def _enter(self, now_ns: int, actions: list[DeviceAction]) -> None:
        """Tell the arbiter of what runs, and of what could."""
        dispatch, queue = self.dispatch, self._queue
        for task in queue.running.values():
            if not task.entered:
                dispatch.adopt(task, now_ns)
        for task in queue.waiting[:]:
            if task.state is not _SUSPENDED:
                if now_ns > task.run.latest_ns:
                    self._forget(task, now_ns)
                    actions.append(_too_late(task, now_ns))
                    continue
                if task.nbytes and self.cache.tier(task.weights) != "resident":
                    task.missed = True
                    if task.entered:
                        dispatch.leave(task, now_ns)
                    continue
            if not task.entered:
                dispatch.enter(task, now_ns)

    def _come_up(self, now_ns: int, actions: list[DeviceAction]) -> None:
        """`Rules.fetch_blocks`: give the device to the first batch, and fetch its model."""
        queue, cache = self._queue, self.cache
        while queue.waiting and not queue.running:
            task = queue.waiting[0]
            fetch_ns = self._loading.fetch_ns(task.weights, now_ns) if task.nbytes else 0
            if now_ns + fetch_ns > task.run.latest_ns:
                self._forget(task, now_ns)
                actions.append(_too_late(task, now_ns))
            elif not task.nbytes or cache.tier(task.weights) == "resident":
                queue.occupy(task, now_ns)
                task.begin_ns = task.since_ns = now_ns
                actions.append(Grant(task.ident, hit=not task.missed))
            else:
                task.missed = True
                if not self._loading.fetch(task, now_ns, actions):
                    return  # something is loading ahead, and there is room once it has come
                queue.occupy(task, now_ns, TaskState.FETCHING)

    def validate(self) -> None:
        """Check every invariant; for tests."""
        queue = self._queue
        if self._alone is not None:
            weights, nbytes = self._models[self._alone.stage]
            assert not queue.tasks and self._alone_ns >= 0, "it is alone"
            assert not nbytes or self.cache.tier(weights) == "resident", f"{self._alone_ident}: no model"
        queue.validate()
        self._loading.validate()
        tasks = list(queue.tasks.values())
        assert self._hosted == sum(t.launched < t.kernels for t in tasks), "tasks whose hosts launch one by one"
        for task in tasks:
            here = "loading" if task.state is TaskState.FETCHING else "resident"
            begun = task.ident in queue.running or task.state is _SUSPENDED
            assert not (begun and task.nbytes) or self.cache.tier(task.weights) == here, f"{task.ident}: no model"
            assert 0 <= task.kernel <= task.launched <= task.kernels, f"kernels of task {task.ident}"
        if self.dispatch.entered:
            self.dispatch.arbiter.validate()


#: Length of a reason at most; logs hold one for each refusal.
MAX_DETAIL_CHARS = 160


def _too_late(task: Task, now_ns: int) -> Refuse:
    late_ns = max(0, now_ns - task.run.latest_ns)
    return Refuse(task.ident, "too_late", f"it could not start in time; it is {format_ns(late_ns)} late")
