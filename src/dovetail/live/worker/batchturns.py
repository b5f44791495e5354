"""Whose kernel is next on a worker that serves: batches by class, then by deadline, and hints of what is to come.

Rules of this file
- As in `turns`: no clock, no kernel. All kernels of a batch are launched when it comes, so a batch leaves no gaps to
  be filled, and no delay is bought (`budget` 0).
- Batches of one class run one after the other, that with the earliest deadline first: taking turns would end all of
  them late. Those without a deadline go after those with one, in the order in which they came.
- With ageing, a start of a lower class that was let through is not taken back from one that has waited so long: to
  the arbiter it begins anew then, and so would its wait.
- What is learned is added to what was known before, and kept apart as well: that is what there is to be told
  (`news`), and others who learn the same can add it to theirs.
- After a batch whose requests go on here, the next of its class is expected as long after its end as usual. Kernels
  of lower classes that would still run then are held back for that moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from ...device import GapArbiter, GapSettings, TaskBegan, TaskExpected, TaskGone
from ...device.arbiter import NO_DEADLINE_NS
from ...profile.kernels import KernelStats
from ...units import MS, US
from ..gate.tasks import Client, Task
from ..gate.turns import Turns
from ..gate.wire import Begin, GatePolicy

__all__ = ["MOST_SEQUENCES", "BatchTask", "BatchTurns"]

#: From the end of a batch to the arrival of its requests' next one, until some were seen.
TURNAROUND_NS = 400 * US
#: What came later than this after a hint has nothing to do with it.
LATEST_NS = 5 * MS
#: Weight of the newest observation in the running mean.
WEIGHT = 1 / 8
#: Hints that are open at once at most; the oldest is forgotten first.
MOST_HINTS = 64
#: Sequences that statistics are kept of; of others nothing is known.
MOST_SEQUENCES = 512
#: Batches without a deadline go by their order after all others.
_NO_DEADLINE = NO_DEADLINE_NS // 2
_CLIENT = Client(0, cast(Any, None))


class BatchTask(Task):
    """A batch as `Turns` knows tasks; all its kernels are launched at once."""

    def __init__(
        self,
        ident: int,
        priority: int,
        deadline_ns: int,
        name: str,
        kernels: Sequence[Callable[[], object]],
        idents: Sequence[str],
        now_ns: int,
    ) -> None:
        program: Any = SimpleNamespace(name=name, idents=idents, busy=True, begin=lambda: kernels)
        super().__init__(ident, _CLIENT, Begin(ident, 0, priority, len(kernels), now_ns), program, now_ns)
        self.deadline_ns = deadline_ns
        #: Since when its next kernel waits.
        self.waits_ns = now_ns

    def began(self, at_ns: int) -> TaskBegan:
        """What the arbiter is told of it first."""
        return TaskBegan(at_ns, self.ident, self.priority, sequence=self.program.name, deadline_ns=self.deadline_ns)


class _Learning(KernelStats):
    """Statistics that also keep apart what was observed since the last `news`."""

    since: KernelStats | None = None

    @classmethod
    def of(cls, stats: KernelStats) -> _Learning:
        """The same, with nothing observed yet."""
        return cls(*msgspec.structs.astuple(stats))

    def observe(self, position: int, duration_ns: int) -> None:
        """A kernel took so long."""
        super().observe(position, duration_ns)
        self._latest().observe(position, duration_ns)

    def observe_gap(self, after: int, gap_ns: int, *, early: bool = False) -> None:
        """The next kernel was ready so long after the end of this one."""
        super().observe_gap(after, gap_ns, early=early)
        self._latest().observe_gap(after, gap_ns, early=early)

    def _latest(self) -> KernelStats:
        if self.since is None:
            self.since = KernelStats.empty(self.name, self.kernels, min_count=self.min_count)
            self.since.early = self.early
        return self.since


class _Hint(msgspec.Struct, frozen=True):
    number: int
    priority: int
    since_ns: int
    expected_ns: int


class BatchTurns(Turns):
    """The batches of a worker, and what may start."""

    def __init__(self, known: Mapping[str, KernelStats] | None = None, *, ageing_ns: int = 0) -> None:
        self.settings = GapSettings(budget=0.0, order="slack", ageing_ns=ageing_ns)
        #: What others have learned of sequences that did not come here yet.
        self._known = dict(known or {})
        #: How long after the end of a batch its requests' next one comes.
        self.turnaround_ns = float(TURNAROUND_NS)
        self._hints: deque[_Hint] = deque(maxlen=MOST_HINTS)
        self._hinted = 0
        self._taken = 0
        #: When a start was last left to one that had waited long.
        self._left_ns = -(1 << 62)
        super().__init__(GatePolicy("ours", learn=True), {})

    def set_policy(self, policy: GatePolicy) -> None:
        """Only the arbiter of this file is of use here."""
        super().set_policy(policy)
        self._arbiter = GapArbiter(self.stats, self.settings)

    def take(
        self,
        ident: int,
        priority: int,
        objective_ns: int,
        name: str,
        kernels: Sequence[Callable[[], object]],
        idents: Sequence[str],
        came_ns: int,
        now_ns: int,
    ) -> BatchTask:
        """A batch has come: from now on its kernels have their turns."""
        self._taken += 1
        name = self._sequence(name, idents)
        # The number breaks ties: equals go one after the other.
        deadline_ns = (min(objective_ns, _NO_DEADLINE) if objective_ns > 0 else _NO_DEADLINE) + self._taken
        task = BatchTask(ident, priority, deadline_ns, name, kernels, idents, self.when(came_ns, now_ns))
        self.begin(task)
        task.ready_ns += [task.began_ns] * len(kernels)
        task.sent_ns += [came_ns] * len(kernels)
        task.launched = len(kernels)
        self.launch(task)
        # Not before: between a hint that is void and the task that it was about, a lower kernel could start.
        self._came(priority, came_ns, now_ns)
        return task

    def _sequence(self, name: str, idents: Sequence[str]) -> str:
        stats = self.stats.get(name)
        if not name or (stats is None and len(self.stats) >= MOST_SEQUENCES):
            return ""
        if stats is None and (before := self._known.pop(name, None)) is not None:
            stats = self.stats[name] = _Learning.of(before)
        if stats is None or stats.stale(idents) is not None:
            self.stats[name] = _Learning.of(KernelStats.empty(name, idents))
        return name

    def news(self, most: int) -> list[KernelStats]:
        """What was observed since this was last asked, of so many sequences; the others come first next time."""
        found = []
        for name in [n for n, s in self.stats.items() if isinstance(s, _Learning) and s.since is not None][:most]:
            stats = self.stats[name] = self.stats.pop(name)
            assert isinstance(stats, _Learning) and stats.since is not None
            found.append(stats.since)
            stats.since = None
        return found

    def begin(self, task: Task) -> None:
        """A task has begun; one that may have to wait for an expected task is not left alone."""
        if self.tasks or not self._awaited(task):
            super().begin(task)
            return
        self.tasks[task.ident] = task
        self._tell(task.began(max(self._told_ns, task.began_ns)))

    def ended(self, task: Task, position: int, begin_ns: int, end_ns: int, now_ns: int) -> None:
        """A kernel has ended."""
        if isinstance(task, BatchTask):
            task.waits_ns = end_ns
        super().ended(task, position, begin_ns, end_ns, now_ns)

    def take_back(self, above: int, now_ns: int) -> None:
        """Do not start what is below this class after all, unless it has waited for as long as is declared."""
        ageing_ns, tasks = self.settings.ageing_ns, self.tasks
        if ageing_ns and now_ns - self._left_ns >= ageing_ns:
            for start in self.starts:
                task = tasks.get(start.task)
                if isinstance(task, BatchTask) and task.priority > above and now_ns - task.waits_ns >= ageing_ns:
                    self._left_ns = now_ns
                    return
        super().take_back(above, now_ns)

    def _awaited(self, task: Task) -> bool:
        grace_ns = self.settings.grace_ns
        return any(h.priority < task.priority and task.began_ns <= h.expected_ns + grace_ns for h in self._hints)

    def expect(self, priority: int, since_ns: int, now_ns: int) -> None:
        """A batch of this class has ended at `since_ns`, and its requests go on here."""
        self._hinted -= 1
        hint = _Hint(self._hinted, priority, since_ns, since_ns + round(self.turnaround_ns))
        self._hints.append(hint)
        if self._lone is not None and self._lone.priority > priority:
            self._introduce(self._lone)
        self._tell(TaskExpected(max(self._told_ns, now_ns), hint.number, priority, hint.expected_ns))

    def _came(self, priority: int, came_ns: int, now_ns: int) -> None:
        """A batch of this class has come: the oldest hint of its class was about it."""
        while self._hints and came_ns - self._hints[0].since_ns > LATEST_NS:
            self._hints.popleft()
        for hint in self._hints:
            if hint.priority == priority and hint.since_ns <= came_ns:
                self._hints.remove(hint)
                self.turnaround_ns += WEIGHT * (came_ns - hint.since_ns - self.turnaround_ns)
                self._tell(TaskGone(max(self._told_ns, now_ns), hint.number))
                return
