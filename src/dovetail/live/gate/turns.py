"""Whose kernel is next on a gated device: by the arbiter, or by nobody's leave while a task is alone.

Rules of this file
- No clock, socket or kernel: times come in, kernels that may start lie in `starts`.
- A task that is alone needs no arbiter: it runs as fast as it launches, and only when a second one comes the arbiter
  is told of it (`Task.so_far`). After a kernel the arbiter's code is no longer in the cache and costs 30 to 40 µs.
  One that is left alone is taken away from the arbiter again (`leave_alone`).
- Times told to the arbiter never go back. A launch counts from when it could be read, not from when it was, which is
  when a kernel ended: else fillers would make gaps look longer, and more would be filled.
- Until a kernel of a lower class begins it can be taken back, in favour of a higher one (`take_back`).
"""

from __future__ import annotations

from collections import Counter, deque

from ...arbiters import find_arbiter, make_arbiter
from ...device import AlarmRang, KernelEvent, KernelFinished, KernelReady, StartKernel, TaskGone
from ...profile.kernels import KernelStats
from ...units import MS, US
from .tasks import NEVER_NS, Task
from .wire import GatePolicy

__all__ = ["Turns"]

#: Gap filling on a processor, where a kernel takes ten times as long as on a GPU and this code is cold after each:
#: what a filler costs beside its duration (measured: to start it, and from its end to the beginning of the next), and
#: credit for some kernels, so that one long wait does not keep the next gaps empty. Chosen on pairs that are not
#: among those reported.
OVERHEAD_NS = 60 * US
BURST_NS = 3 * MS
BUDGET = 0.02
#: From so many observations on a program is well known.
WELL_KNOWN = 32


class Turns:
    """The tasks of a device, and what may start."""

    def __init__(self, policy: GatePolicy, stats: dict[str, KernelStats], *, learn_every: int = 1) -> None:
        self.stats = stats
        #: Of the runs of a well-known program that is alone, one in so many is learned from: it takes some 8 µs a
        #: kernel, in which nothing runs.
        self._learn_every = learn_every
        self._runs: Counter[str] = Counter()
        self.tasks: dict[int, Task] = {}
        #: Kernels that may start, in order; those of tasks that are gone are to be passed over.
        self.starts: deque[StartKernel] = deque()
        #: When `ring` is to be called.
        self.alarm_ns = NEVER_NS
        #: The task that is alone on the device and that the arbiter does not know of.
        self._lone: Task | None = None
        #: Time of the last event that the arbiter was told.
        self._told_ns = 0
        self.set_policy(policy)

    def set_policy(self, policy: GatePolicy) -> None:
        """Another arbiter; there must be no tasks."""
        assert not self.tasks
        self._policy = policy
        self._by_class = find_arbiter(policy.name).by_class
        self._arbiter = make_arbiter(
            policy.name,
            self.stats,
            learn=policy.learn,
            ageing_ns=policy.ageing_ns,
            budget=BUDGET,
            burst_ns=BURST_NS,
            overhead_ns=OVERHEAD_NS,
        )
        self.starts.clear()
        self.alarm_ns = NEVER_NS

    def when(self, sent_ns: int, now_ns: int) -> int:
        """When something came that is read now; never before what the arbiter knows already."""
        return max(self._told_ns, min(sent_ns, now_ns))

    def begin(self, task: Task) -> None:
        """A task has begun."""
        if self._lone is not None:
            self._introduce(self._lone)
        if self.tasks:
            self._tell(task.began(max(self._told_ns, task.began_ns)))
        else:
            self._lone = task
        self.tasks[task.ident] = task

    def launch(self, task: Task) -> None:
        """More kernels of a task were launched."""
        if task is self._lone:
            self._go_on(task)
        else:
            self._announce(task)

    def goes_on(self, task: Task, begin_ns: int, end_ns: int) -> bool:
        """Whether a task whose kernel has ended is alone and has launched the next, which then begins at once."""
        if task is not self._lone or task.started == task.launched:
            return False
        task.spans.append((begin_ns, end_ns))
        task.started += 1
        return True

    def ended(self, task: Task, position: int, begin_ns: int, end_ns: int, now_ns: int) -> None:
        """A kernel has ended."""
        over = position + 1 == len(task.kernels)
        if over:
            del self.tasks[task.ident]
        task.spans.append((begin_ns, end_ns))
        if task is not self._lone:
            # Before the end of this one is told: that there is a next is not to look like a gap.
            self._announce(task)
            self._tell(KernelFinished(now_ns, task.ident, position, begin_ns, end_ns))
            if over:
                self._tell(TaskGone(now_ns, task.ident))
            return
        if over:
            self._lone = None
            self._learn(task, len(task.spans))
        else:
            self._go_on(task)

    def gone(self, task: Task, now_ns: int) -> None:
        """A task is over before its time."""
        del self.tasks[task.ident]
        if task is self._lone:
            self._lone = None
            self._learn(task, len(task.spans))
        else:
            self._tell(TaskGone(now_ns, task.ident))

    def leave_alone(self, now_ns: int) -> None:
        """If there is one task, with kernels that are launched, and none runs: it needs no arbiter any more."""
        if self._lone is not None or len(self.tasks) != 1:
            return
        task = next(iter(self.tasks.values()))
        if task.running or task.launched == len(task.spans):
            return  # in a gap somebody may come to fill it
        self._tell(TaskGone(max(self._told_ns, now_ns), task.ident))
        self.starts.clear()
        self._lone = task
        task.started = task.taught = len(task.spans)
        self._go_on(task)

    def yields(self, start: StartKernel) -> bool:
        """Whether a start that has not begun is to be taken back if a higher class comes."""
        task = self.tasks.get(start.task)
        return task is not None and task.priority > 1 and self._by_class and start.why != "aged"

    def take_back(self, above: int, now_ns: int) -> None:
        """Do not start what is below this class after all; the arbiter chooses again, knowing what came since."""
        if self._lone is not None:
            return
        for start in [s for s in self.starts if self.yields(s) and self.tasks[s.task].priority > above]:
            task = self.tasks[start.task]
            self.starts.remove(start)
            # To the arbiter the task begins anew, at this kernel: it has no word for a kernel that did not start.
            self._tell(task.began(max(self._told_ns, now_ns)))
            task.announced = start.kernel
            self._announce(task)

    def ring(self, now_ns: int) -> None:
        """The time of the alarm has come."""
        self.alarm_ns = NEVER_NS
        self._tell(AlarmRang(now_ns))

    def _tell(self, event: KernelEvent) -> None:
        self._told_ns = event.at_ns
        for action in self._arbiter.step(event):
            if isinstance(action, StartKernel):
                self.starts.append(action)
            else:
                self.alarm_ns = action.at_ns

    def _announce(self, task: Task) -> None:
        """Tell the arbiter of a task's next kernel, if it is launched; of all launched ones where their order counts.

        To tell of all takes some 7 µs each, in which nothing runs. While one runs its successor can wait.
        """
        if self._policy.name == "fifo":
            last = task.launched
        else:
            last = task.announced if task.running else min(task.launched, task.announced + 1)
        for position in range(task.announced, last):
            task.announced = position + 1
            self._tell(KernelReady(max(self._told_ns, task.ready_ns[position]), task.ident, position))

    def _go_on(self, task: Task) -> None:
        """Let the next kernel of the task that is alone start, if it is launched and none was let start."""
        if task.started == len(task.spans) < task.launched and not task.running:
            self.starts.append(StartKernel(task.ident, task.started))
            task.started += 1

    def _introduce(self, task: Task) -> None:
        """There is a second task: from now on the arbiter decides."""
        self._lone = None
        # The last one, if none runs, the arbiter is told of and learns by itself.
        self._learn(task, len(task.spans) - (not task.running))
        starts = self.starts
        starts.clear()
        for event in task.so_far(self._told_ns):
            self._tell(event)
        # It lets start again what has run or runs.
        first = len(task.spans) + task.running
        again = [start for start in starts if start.kernel >= first]
        starts.clear()
        starts.extend(again)
        self._announce(task)

    def _learn(self, task: Task, kernels: int) -> None:
        name = task.program.name
        stats = self.stats.get(name)
        if not self._policy.learn or stats is None or kernels <= task.taught:
            return
        self._runs[name] += 1
        # The last of them was seen the least.
        if stats.durations[kernels - 1].count < WELL_KNOWN or self._runs[name] % self._learn_every == 0:
            task.teach(stats, kernels)
