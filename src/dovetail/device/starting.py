"""What starts on a device, what makes way and what is loaded: what `machine` decides after every event.

Rules of this file
- Batches start by class, then order, then objective, then arrival. One that waits for its model lets others start
  before it, but at most `Rules.overtakes` of them while there is no room for the model; one that waits for nothing
  but share lets none.
- While all are of one class, a batch is granted whole. Where a higher class is there or expected, or quotas count,
  the kernel arbiter is asked (`dispatch`); what runs in a lower class is revoked and goes on later. An arbiter by
  which equals take turns is asked whenever there is a second task.
- What cannot start any more within its window is refused.
"""

from __future__ import annotations

from ..state.run_batch import NEVER_NS
from ..units import format_ns
from .cache import ModelCache
from .dispatch import KernelDispatch
from .events import TO_THE_END, BatchWithdrawn, DeviceAction, DeviceEvent, Grant, Refuse, Revoke, SetAlarm
from .loading import Loading
from .queue import WorkerQueue
from .rules import Rules
from .task import Task, TaskState
from .times import DeviceTimes

__all__ = ["Starting", "too_late"]

#: Length of a reason at most; logs hold one for each refusal.
MAX_DETAIL_CHARS = 160
_RUNNING, _STOPPING, _SUSPENDED = TaskState.RUNNING, TaskState.STOPPING, TaskState.SUSPENDED


class Starting:
    """Decides what has a grant."""

    def __init__(
        self,
        queue: WorkerQueue,
        cache: ModelCache,
        rules: Rules,
        dispatch: KernelDispatch,
        loading: Loading,
        times: DeviceTimes,
    ) -> None:
        self._queue = queue
        self._cache = cache
        self._rules = rules
        self._dispatch = dispatch
        self._loading = loading
        self._times = times
        #: Tasks whose kernels a host launches one by one.
        self.hosted = 0
        self._alarm_ns = NEVER_NS

    def rang(self, now_ns: int) -> None:
        """An alarm has rung."""
        if now_ns >= self._alarm_ns:
            self._alarm_ns = NEVER_NS
        if self._dispatch.entered:
            self._dispatch.ring(now_ns)

    def forget(self, task: Task, now_ns: int) -> None:
        """Take a batch off the books, wherever it is."""
        self.hosted -= task.launched < task.kernels
        if task.entered:
            self._dispatch.leave(task, now_ns)
        if self._loading.fetching is task:
            self._loading.fetching = None
        if task.ident in self._queue.running:
            self._queue.release(task, now_ns)
        else:
            self._queue.remove(task, now_ns)

    # -- models -------------------------------------------------------------------------------------------------

    def loaded(self, weights: str, now_ns: int) -> list[DeviceAction]:
        """A load has ended; with `Rules.fetch_blocks` its batch begins, when evicted models have been copied out."""
        actions, victims = self._loading.done(weights)
        task = self._loading.fetching
        if task is not None and task.weights == weights:
            self._loading.fetching = None
            if now_ns > task.run.latest_ns:
                self._queue.release(task, now_ns)
                actions.append(too_late(task, now_ns))
            else:
                wait_ns = sum(self._times.unload_ns(victim.weights) for victim in victims)
                task.state = _RUNNING
                task.begin_ns = task.since_ns = now_ns + wait_ns
                actions.append(Grant(task.ident, hit=False, wait_ns=wait_ns))
        return actions

    def broke(self, weights: str, detail: str, now_ns: int) -> list[DeviceAction]:
        """A load has failed, and so has what waited for it."""
        actions = self._loading.broke(weights)
        waits = (TaskState.EARLY, TaskState.QUEUED, TaskState.FETCHING)
        for task in [t for t in self._queue.tasks.values() if t.weights == weights and t.nbytes]:
            if task.state in waits:
                self.forget(task, now_ns)
                actions.append(Refuse(task.ident, "not_loaded", detail[:MAX_DETAIL_CHARS]))
        return actions

    # -- what is decided ----------------------------------------------------------------------------------------

    def go(self, now_ns: int) -> list[DeviceAction]:
        """Start what can be started now, stop what is in the way, load what is needed."""
        queue = self._queue
        actions: list[DeviceAction] = []
        if queue.early:
            queue.admit(now_ns)
        if self._rules.fetch_blocks:
            self._come_up(now_ns, actions)
        elif self.contended(now_ns):
            self._arbitrate(now_ns, actions)
        else:
            if self._dispatch.entered and not self._in_gap():
                self._dispatch.leave_all(now_ns)
            if queue.waiting:
                self._start(now_ns, actions)
        if self._loading.busy:
            self._loading.go(now_ns, actions)
        return actions

    def contended(self, now_ns: int) -> bool:
        """Whether anybody could be in the way of anybody else: then the kernel arbiter decides."""
        classes, dispatch = self._queue.classes, self._dispatch
        if self._rules.in_order:
            return False
        if len(classes) > 1 or dispatch.limited:
            return bool(classes)
        if (self.hosted or dispatch.takes_turns) and len(self._queue.waiting) + len(self._queue.running) > 1:
            return True
        return bool(dispatch.hints) and any(dispatch.expects_above(priority, now_ns) for priority in classes)

    def _in_gap(self) -> bool:
        """Whether the only task is between two kernels: the arbiter keeps it, since a filler may come."""
        waiting = self._queue.waiting
        return len(waiting) == 1 and waiting[0].entered and waiting[0].kernel == waiting[0].launched

    def _start(self, now_ns: int, actions: list[DeviceAction]) -> None:
        """Start whatever can be: all are of one class."""
        queue, rules, tier = self._queue, self._rules, self._cache.tier
        passed: list[Task] = []
        for task in queue.waiting[:]:
            if not queue.free_pct:
                break
            place = tier(task.weights) if task.nbytes and task.state is not _SUSPENDED else "resident"
            if now_ns > task.run.latest_ns and task.state is not _SUSPENDED:
                self.forget(task, now_ns)
                actions.append(too_late(task, now_ns))
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
            self.crowd()
        until_ns = self._dispatch.account.until_ns(task.client, task.share_pct, now_ns)
        actions.append(Grant(task.ident, task.kernel, last, until_ns, why, not task.missed))

    def crowd(self) -> None:
        """Several run beside each other: how long their kernels take says nothing of each."""
        for task in self._queue.running.values():
            task.crowded = True

    def _arbitrate(self, now_ns: int, actions: list[DeviceAction]) -> None:
        """Start what the kernel arbiter lets start, and revoke what is in the way."""
        dispatch, tasks, running = self._dispatch, self._queue.tasks, self._queue.running
        self.enter(now_ns, actions)
        earlier = bool(running)
        while dispatch.starts:
            starts, dispatch.starts = dispatch.starts, []
            for start in starts:
                task = tasks.get(start.task)
                if task is not None and task.entered and task.ident not in running:
                    whole = not (start.why == "fill" and dispatch.limited) and dispatch.entitled(task, now_ns)
                    last = TO_THE_END if whole else start.kernel
                    self._grant(task, last, start.why, now_ns, actions)
        if earlier:
            for task in dispatch.in_the_way(now_ns):
                task.state = _STOPPING
                actions.append(Revoke(task.ident))
        if now_ns < dispatch.alarm_ns and dispatch.alarm_ns != self._alarm_ns:
            self._alarm_ns = dispatch.alarm_ns
            actions.append(SetAlarm(dispatch.alarm_ns))

    def enter(self, now_ns: int, actions: list[DeviceAction]) -> None:
        """Tell the arbiter of what runs, and of what could."""
        dispatch, queue = self._dispatch, self._queue
        for task in queue.running.values():
            if not task.entered:
                dispatch.adopt(task, now_ns)
        actions += self.refuse_late(now_ns)
        for task in queue.waiting:
            if task.nbytes and task.state is not _SUSPENDED and self._cache.tier(task.weights) != "resident":
                task.missed = True
                if task.entered:
                    dispatch.leave(task, now_ns)
            elif not task.entered:
                dispatch.enter(task, now_ns)

    def refuse_late(self, now_ns: int, event: DeviceEvent | None = None) -> list[DeviceAction]:
        """Refuse what cannot start any more within its window, but for what is being withdrawn."""
        late = [t for t in self._queue.waiting if now_ns > t.run.latest_ns and t.state is not _SUSPENDED]
        if type(event) is BatchWithdrawn:
            late = [task for task in late if task.ident != event.task]
        for task in late:
            self.forget(task, now_ns)
        return [too_late(task, now_ns) for task in late]

    def _come_up(self, now_ns: int, actions: list[DeviceAction]) -> None:
        """`Rules.fetch_blocks`: give the device to the first batch, and fetch its model."""
        queue, cache = self._queue, self._cache
        while queue.waiting and not queue.running:
            task = queue.waiting[0]
            fetch_ns = self._loading.fetch_ns(task.weights, now_ns) if task.nbytes else 0
            if now_ns + fetch_ns > task.run.latest_ns:
                self.forget(task, now_ns)
                actions.append(too_late(task, now_ns))
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
        tasks = list(self._queue.tasks.values())
        assert self.hosted == sum(t.launched < t.kernels for t in tasks), "tasks whose hosts launch one by one"
        for task in tasks:
            here = "loading" if task.state is TaskState.FETCHING else "resident"
            begun = task.ident in self._queue.running or task.state is _SUSPENDED
            assert not (begun and task.nbytes) or self._cache.tier(task.weights) == here, f"{task.ident}: no model"
            assert 0 <= task.kernel <= task.launched <= task.kernels, f"kernels of task {task.ident}"
        if self._dispatch.entered:
            self._dispatch.arbiter.validate()


def too_late(task: Task, now_ns: int) -> Refuse:
    """The batch could not start within its window."""
    late_ns = max(0, now_ns - task.run.latest_ns)
    return Refuse(task.ident, "too_late", f"it could not start in time; it is {format_ns(late_ns)} late")
