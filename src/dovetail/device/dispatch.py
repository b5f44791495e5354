"""Whose kernel is next, where that is a question: tasks of several classes, expected ones, quotas.

Rules of this file
- While a device has tasks of one class only, nobody asks here: they run one after the other, or beside each other as
  shares allow (`machine`). When a second class comes, a higher one is expected, or quotas count, tasks are entered
  with the kernel arbiter, which says what starts. A cold step of an arbiter takes 30 to 40 µs, so what it starts is
  granted to the end wherever nobody would be in the way (`entitled`), and revoked when somebody is.
- Tasks of one class run one after the other, in the order of the queue: taking turns would end all of them late. Some
  arbiters see that otherwise (`takes_turns`, `classless`), and are asked whenever there is more than one task.
- After a batch whose requests go on here, the next of its class is expected as long after its end as usual. Kernels
  of lower classes that would still run then are held back for that moment, or fill the time until then. An arbiter
  that knows of no task is not told: it hears what is expected with its first task, if it is expected then.
- Times that the arbiter is told never go back.
"""

from __future__ import annotations

from collections import deque

import msgspec

from ..units import MS
from .account import Account
from .arbiter import (
    AlarmRang,
    KernelArbiter,
    KernelEvent,
    KernelFinished,
    KernelReady,
    KernelRevoked,
    KernelRunning,
    StartKernel,
    TaskBegan,
    TaskExpected,
    TaskGone,
    TaskKnown,
)
from .events import TO_THE_END
from .task import Task, TaskState

__all__ = ["KernelDispatch"]

#: What came later than this after a hint has nothing to do with it.
LATEST_NS = 5 * MS
#: Hints that are open at once at most; the oldest is forgotten first.
MOST_HINTS = 64
_LIMIT = 1 << 64
_RUNNING, _STOPPING = TaskState.RUNNING, TaskState.STOPPING


class _Hint(msgspec.Struct, gc=False, eq=False):
    number: int
    priority: int
    since_ns: int
    expected_ns: int
    #: The arbiter knows of it.
    told: bool = False


class KernelDispatch:
    """The tasks that an arbiter knows of, what it lets start, and what is expected."""

    def __init__(self, arbiter: KernelArbiter, account: Account, grace_ns: int, *, revokes_one: bool = False) -> None:
        self.arbiter = arbiter
        self.account = account
        #: Any two tasks are in each other's way, of whatever class they are.
        self.takes_turns = arbiter.takes_turns
        self._classless = arbiter.classless
        self._by_launch = arbiter.by_launch
        self._revokes_one = revokes_one and not arbiter.classless
        #: Kernels that the arbiter lets start, to be granted.
        self.starts: list[StartKernel] = []
        #: When it wants to be asked again; 0: not by time.
        self.alarm_ns = 0
        self._grace_ns = grace_ns
        #: Tasks that the arbiter knows of.
        self.entered: dict[int, Task] = {}
        #: What is expected.
        self.hints: deque[_Hint] = deque(maxlen=MOST_HINTS)
        self._hinted = 0
        self._told_ns = 0

    @property
    def limited(self) -> bool:
        """Whether quotas count: every kernel is asked for."""
        return self.account.active

    # -- tasks --------------------------------------------------------------------------------------------------

    def enter(self, task: Task, now_ns: int) -> None:
        """A task that waits: the arbiter decides from now on."""
        self._begin(task, now_ns)
        self._announce(task, task.kernel, now_ns)

    def adopt(self, task: Task, now_ns: int) -> None:
        """A task that runs."""
        self._begin(task, now_ns)
        at_ns = self._at(now_ns)
        self._tell(KernelRunning(at_ns, task.ident, task.first, task.share_pct, min(task.since_ns, at_ns)))
        if self._by_launch:
            self._announce(task, task.first + 1, now_ns)

    def known(self, task: Task, now_ns: int) -> None:
        """The kernels of a task are known now. It stays where it is: in between another one could start."""
        self._tell(TaskKnown(self._at(now_ns), task.ident, task.sequence))
        if self._by_launch:
            self._announce(task, 1, now_ns)

    def _announce(self, task: Task, first: int, now_ns: int) -> None:
        """Launched kernels from this one on are ready: the next of them, or all if their order counts."""
        last = task.launched if self._by_launch else min(first + 1, task.launched)
        for kernel in range(first, last):
            self._tell(KernelReady(self._at(now_ns), task.ident, kernel, task.share_pct))

    def _begin(self, task: Task, now_ns: int) -> None:
        if not self.entered and self.hints:
            for hint in self.hints:
                self._tell_hint(hint, now_ns)
        task.entered = True
        self.entered[task.ident] = task
        _, order, objective_ns, arrival = task.key
        # One number for the place in the queue, so that equals go one after the other.
        place = (order * _LIMIT + objective_ns) * _LIMIT + arrival
        in_gap = 0 < task.kernel == task.launched
        self._tell(
            TaskBegan(
                self._at(now_ns),
                task.ident,
                task.priority,
                client=task.client,
                sequence=task.sequence,
                share_pct=task.share_pct,
                deadline_ns=place,
                position=task.kernel - 1,
                free_ns=task.since_ns if in_gap else -1,
            )
        )

    def launched(self, task: Task, before: int, idle: bool, now_ns: int) -> None:
        """The host has launched more kernels from `before` on: of a task that had none, the next is ready."""
        if self._by_launch:
            self._announce(task, before, now_ns)
        elif idle:
            self._tell(KernelReady(self._at(now_ns), task.ident, before, task.share_pct))

    def ended(self, task: Task, first: int, over: bool, begin_ns: int, end_ns: int, now_ns: int) -> None:
        """A grant has ended; `task.kernel` is the first that has not run."""
        at_ns = self._at(now_ns)
        if over:
            del self.entered[task.ident]
            task.entered = False
            self._tell(KernelFinished(at_ns, task.ident, first, begin_ns, end_ns, task.kernel, over=True))
        elif task.kernel == first:
            self._tell(KernelRevoked(at_ns, task.ident, first))
        else:
            next_ready = task.kernel < task.launched and not self._by_launch
            upto = -1 if task.kernel == first + 1 else task.kernel
            self._tell(KernelFinished(at_ns, task.ident, first, begin_ns, end_ns, upto, next_ready))

    def leave(self, task: Task, now_ns: int) -> None:
        """A task is gone, or needs no arbiter any more."""
        if self.entered.pop(task.ident, None) is not None:
            task.entered = False
            self._tell(TaskGone(self._at(now_ns), task.ident))

    def leave_all(self, now_ns: int) -> None:
        """Nobody is in anybody's way any more."""
        for task in list(self.entered.values()):
            self.leave(task, now_ns)
        self.starts.clear()
        self.alarm_ns = 0

    def usual(self, task: Task) -> bool:
        """Whether the gaps of a task are worth learning."""
        return not task.entered or self.arbiter.usual(task.ident)

    def entitled(self, task: Task, now_ns: int) -> bool:
        """Whether a grant may cover all that is left of a task: nobody would be in the way."""
        if task.launched < task.kernels or self.expects_above(task.priority, now_ns):
            return False
        if self.limited:
            return not self._higher_waits(task, now_ns) and not self.arbiter.aged_due(now_ns)
        key, priority, in_turn = task.key, task.priority, self.takes_turns
        for other in self.entered.values():
            if other is task or other.state is _RUNNING or other.state is _STOPPING:
                continue
            if self._classless or (other.priority <= priority if in_turn else other.key < key):
                return False
        return not self.arbiter.aged_due(now_ns)

    def _higher_waits(self, task: Task, now_ns: int) -> bool:
        """Quotas count: whether one of a higher class waits that may start, and is not further with what it asked.

        Those of the same class wait for the end of the token.
        """
        account = self.account
        met, _ = account.rank(task.client, now_ns)
        return any(
            other.priority < task.priority and other.state is not _RUNNING and other.state is not _STOPPING
            and account.may_start(other.client, other.share_pct, now_ns)
            and account.rank(other.client, now_ns)[0] <= met
            for other in self.entered.values()
        )  # fmt: skip

    def in_the_way(self, now_ns: int) -> list[Task]:
        """Tasks that can be stopped, and whose grant goes to the end though they are no longer entitled to that.

        With `Rules.revokes_one` also those with a grant of one kernel, if one of a higher class is ready.
        """
        found = []
        for task in self.entered.values():
            if task.state is not _RUNNING:
                continue
            if task.last == TO_THE_END:
                if task.divisible and not self.entitled(task, now_ns):
                    found.append(task)
            elif self._revokes_one and task.why != "aged":
                above = (t for t in self.entered.values() if t.priority < task.priority and t.state is not _RUNNING)
                if any(t.kernel < t.launched and t.state is not _STOPPING for t in above):
                    found.append(task)
        return found

    # -- what is expected ---------------------------------------------------------------------------------------

    def expect(self, priority: int, turnaround_ns: int, now_ns: int) -> None:
        """A batch of this class has ended, and its requests go on here."""
        self._hinted -= 1
        hint = _Hint(self._hinted, priority, now_ns, now_ns + turnaround_ns)
        self.hints.append(hint)
        if self.entered:
            self._tell_hint(hint, now_ns)

    def came(self, priority: int, now_ns: int) -> int:
        """A batch of this class has come: the oldest hint of its class was about it. How long it took; -1: none."""
        while self.hints and now_ns - self.hints[0].since_ns > LATEST_NS:
            self._void(self.hints.popleft(), now_ns)
        for hint in self.hints:
            if hint.priority == priority:
                self.hints.remove(hint)
                self._void(hint, now_ns)
                return now_ns - hint.since_ns
        return -1

    def _tell_hint(self, hint: _Hint, now_ns: int) -> None:
        if not hint.told and now_ns <= hint.expected_ns + self._grace_ns:
            hint.told = True
            self._tell(TaskExpected(self._at(now_ns), hint.number, hint.priority, hint.expected_ns))

    def _void(self, hint: _Hint, now_ns: int) -> None:
        if hint.told:
            self._tell(TaskGone(self._at(now_ns), hint.number))

    def expects_above(self, priority: int, now_ns: int) -> bool:
        """Whether a task of a higher class is expected."""
        return any(h.priority < priority and now_ns <= h.expected_ns + self._grace_ns for h in self.hints)

    def ring(self, now_ns: int) -> None:
        """Time has passed."""
        self._tell(AlarmRang(self._at(now_ns)))

    # -- the arbiter --------------------------------------------------------------------------------------------

    def _at(self, now_ns: int) -> int:
        return max(now_ns, self._told_ns)

    def _tell(self, event: KernelEvent) -> None:
        self._told_ns = event.at_ns
        for action in self.arbiter.step(event):
            if type(action) is StartKernel:
                self.starts.append(action)
            else:
                self.alarm_ns = action.at_ns  # type: ignore[union-attr]
