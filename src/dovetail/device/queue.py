"""What a device has taken: queued, queued for later, running. It keeps the sums, and counts who needs which model.

Rule of this file: it decides nothing. Every batch is in one place. Its model is wanted while it waits for its first
turn, and pinned from when it begins until it ends, be it suspended in between.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Final

from ..state.worker import FULL_SHARE
from .cache import ModelCache
from .forecast import forecast
from .rules import Rules
from .task import Task, TaskState

__all__ = ["WorkerQueue"]

#: Batches that `done_ns` looks at one by one; those behind them are taken to fill the device without gaps.
FORECAST_BATCHES: Final = 32
_QUEUED: Final = TaskState.QUEUED
_EARLY: Final = TaskState.EARLY
_RUNNING: Final = TaskState.RUNNING
_OVER: Final = TaskState.OVER


class WorkerQueue:
    """Batches that were taken and have not ended."""

    def __init__(self, cache: ModelCache, rules: Rules, fetch_ns: Callable[[str, int], int]) -> None:
        """`fetch_ns(weights, now)` says how long it takes until a model could be here; 0 if it is."""
        self.tasks: dict[int, Task] = {}
        #: What may start or go on, by key.
        self.waiting: list[Task] = []
        #: What may not start yet, by time.
        self.early: list[Task] = []
        #: What has a grant, or fetches its model in place of one.
        self.running: dict[int, Task] = {}
        #: When each load on its way is expected to end.
        self.load_ends: dict[str, int] = {}
        self.free_pct = FULL_SHARE
        #: Sums of expected times.
        self.queued_ns = 0
        self.running_ns = 0
        #: Class -> batches that wait or run.
        self.classes: dict[int, int] = {}
        self._queued_pct_ns = 0
        self._cache = cache
        self._rules = rules
        self._fetch_ns = fetch_ns

    def line(self) -> Iterator[Task]:
        """What waits, in the order in which it is expected to start."""
        return chain(self.waiting, self.early)

    def room(self) -> tuple[int, int]:
        """The share that nothing runs in and nothing waits for, and when the next should end; 0 if none runs."""
        ends = [task.begin_ns + task.expected_ns for task in self.running.values() if task.begin_ns >= 0]
        return 0 if self.waiting else max(0, self.free_pct), min(ends, default=0)

    def needs(self) -> dict[str, int]:
        """The position of the first batch that needs it, for each model that is needed."""
        needs: dict[str, int] = {}
        for position, task in enumerate(self.line()):
            if task.nbytes and task.weights not in needs:
                needs[task.weights] = position
        return needs

    # -- from place to place ----------------------------------------------------------------------------------

    def add(self, task: Task, now_ns: int) -> None:
        """From outside into the queue."""
        self.tasks[task.ident] = task
        self._enter_queue(task)
        if task.nbytes:
            self._cache.want(task.weights, task.nbytes)
        if task.run.earliest_ns > now_ns:
            task.state = _EARLY
            insort(self.early, task, key=_by_time)
        else:
            self._count(task.priority, +1)
            insort(self.waiting, task, key=_by_key)

    def admit(self, now_ns: int) -> None:
        """What may start from now on joins the queue."""
        while self.early and self.early[0].run.earliest_ns <= now_ns:
            task = self.early.pop(0)
            task.state = _QUEUED
            self._count(task.priority, +1)
            insort(self.waiting, task, key=_by_key)

    def run_at_once(self, task: Task, now_ns: int) -> None:
        """From outside to what runs: nothing waits, its share is free and its model is here."""
        classes, priority = self.classes, task.priority
        self.tasks[task.ident] = self.running[task.ident] = task
        classes[priority] = classes.get(priority, 0) + 1
        task.state = _RUNNING
        task.begin_ns = now_ns
        self.running_ns += task.expected_ns
        self.free_pct -= task.share_pct
        if task.nbytes:
            self._cache.pin(task.weights, now_ns)

    def occupy(self, task: Task, now_ns: int, state: TaskState = TaskState.RUNNING) -> None:
        """From the queue to what runs."""
        waiting = self.waiting
        del waiting[0 if waiting[0] is task else bisect_left(waiting, task.key, key=_by_key)]
        self._leave_queue(task)
        if task.nbytes and task.state is _QUEUED:
            self._cache.unwant(task.weights)
            self._cache.pin(task.weights, now_ns)
        task.state = state
        self.running[task.ident] = task
        self.running_ns += task.expected_ns
        self.free_pct -= task.share_pct

    def suspend(self, task: Task, busy_ns: int) -> None:
        """From what runs back into the queue, after so much of its time."""
        del self.running[task.ident]
        self.running_ns -= task.expected_ns
        self.free_pct += task.share_pct
        task.expected_ns = max(0, task.expected_ns - busy_ns)
        task.state = TaskState.SUSPENDED
        self._enter_queue(task)
        waiting = self.waiting
        if waiting and task.key < waiting[-1].key:
            insort(waiting, task, key=_by_key)
        else:
            waiting.append(task)

    def release(self, task: Task, now_ns: int) -> None:
        """From what runs to outside."""
        classes, priority = self.classes, task.priority
        task.state = _OVER
        del self.running[task.ident], self.tasks[task.ident]
        classes[priority] -= 1
        if not classes[priority]:
            del classes[priority]
        self.running_ns -= task.expected_ns
        self.free_pct += task.share_pct
        if task.nbytes:
            self._cache.unpin(task.weights, now_ns)

    def remove(self, task: Task, now_ns: int) -> None:
        """From the queue to outside."""
        if task.state is _EARLY:
            self.early.remove(task)
        else:
            del self.waiting[bisect_left(self.waiting, task.key, key=_by_key)]
            self._count(task.priority, -1)
        self._leave_queue(task)
        if task.nbytes:
            if task.state is TaskState.SUSPENDED:
                self._cache.unpin(task.weights, now_ns)
            else:
                self._cache.unwant(task.weights)
        task.state = TaskState.OVER
        del self.tasks[task.ident]

    def _enter_queue(self, task: Task) -> None:
        self.queued_ns += task.expected_ns
        self._queued_pct_ns += task.expected_ns * task.share_pct

    def _leave_queue(self, task: Task) -> None:
        self.queued_ns -= task.expected_ns
        self._queued_pct_ns -= task.expected_ns * task.share_pct

    def _count(self, priority: int, change: int) -> None:
        count = self.classes.get(priority, 0) + change
        if count:
            self.classes[priority] = count
        else:
            del self.classes[priority]

    # -- estimates --------------------------------------------------------------------------------------------

    def expected_start_ns(self, task: Task, now_ns: int) -> int:
        """When a batch that is not in the queue yet would start, behind what runs and what comes before it.

        What runs in a lower class and can be stopped makes way.
        """
        line = [t for t in self.waiting if t.key < task.key]
        line.append(task)
        running = [t for t in self.running.values() if t.priority <= task.priority or not t.divisible]
        starts, _ = forecast(running, line, self._fetch_ns, self.load_ends, self._rules, now_ns)
        return starts[task.ident]

    def done_ns(self, now_ns: int) -> int:
        """When all of it will have ended."""
        first = list(islice(self.line(), FORECAST_BATCHES))
        _, done_ns = forecast(self.running.values(), first, self._fetch_ns, self.load_ends, self._rules, now_ns)
        rest_pct_ns = self._queued_pct_ns - sum(t.expected_ns * t.share_pct for t in first)
        return done_ns + rest_pct_ns // FULL_SHARE

    def validate(self) -> None:
        """Check every invariant, those of the memory too."""
        queued = list(self.line())
        running = list(self.running.values())
        waits = {TaskState.QUEUED, TaskState.SUSPENDED}
        runs = {TaskState.RUNNING, TaskState.STOPPING, TaskState.FETCHING}
        assert self.waiting == sorted(self.waiting, key=_by_key), "the queue is in order"
        assert {t.ident for t in [*queued, *running]} == set(self.tasks), "every batch is somewhere"
        assert len(queued) + len(running) == len(self.tasks), "every batch is in one place"
        assert all(t.state in waits for t in self.waiting) and all(t.state in runs for t in running), "states"
        assert all(t.state is TaskState.EARLY for t in self.early), "states of those that are early"
        assert self.free_pct == FULL_SHARE - sum(t.share_pct for t in running) >= 0, "shares within the device"
        assert self.queued_ns == sum(t.expected_ns for t in queued), "sum of what is queued"
        assert self._queued_pct_ns == sum(t.expected_ns * t.share_pct for t in queued), "area of what is queued"
        assert self.running_ns == sum(t.expected_ns for t in running), "sum of what runs"
        assert self.classes == Counter(t.priority for t in [*self.waiting, *running]), "classes"
        assert not self._rules.fetch_blocks or len(running) <= 1, "one batch at a time"
        wants = Counter(t.weights for t in queued if t.nbytes and t.state is not TaskState.SUSPENDED)
        pinned = [*running, *(t for t in queued if t.state is TaskState.SUSPENDED)]
        self._cache.validate(wants, Counter(t.weights for t in pinned if t.nbytes))


def _by_key(task: Task) -> tuple[int, int, int, int]:
    return task.key


def _by_time(task: Task) -> tuple[int, tuple[int, int, int, int]]:
    return task.run.earliest_ns, task.key
