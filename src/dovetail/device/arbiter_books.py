"""What an arbiter knows of its tasks: which are here, which of their kernels are ready, started, or have ended.

Rule of this file: it decides nothing. It keeps shares, tells the account of quotas what began and ended, and learns
from what was seen. Who ran beside whom is known exactly here, and is told to the predictor (`pairs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..predict.interference import Beside, Load
from ..predict.interference.load import FOREVER_NS
from ..predict.kernel_pairs import KernelPairs
from ..profile.kernels import KernelStats
from ..state.worker import FULL_SHARE
from .account import Account
from .arbiter import (
    KernelFinished,
    KernelReady,
    KernelRevoked,
    KernelRunning,
    TaskBegan,
    TaskExpected,
    TaskGone,
    TaskKnown,
)
from .arbiter_tasks import ArbiterSettings, ArbiterTask, Crowded, Started, Waiting
from .tokens import TokenAccount

__all__ = ["ArbiterBooks"]


class ArbiterBooks:
    """The tasks of one device, as an arbiter knows them."""

    def __init__(
        self,
        stats: Mapping[str, KernelStats] | None = None,
        settings: ArbiterSettings | None = None,
        *,
        account: Account | None = None,
        learn: bool = False,
        pairs: KernelPairs | None = None,
    ) -> None:
        self.settings = settings or ArbiterSettings()
        self.takes_turns = self.settings.order == "turn"
        self.classless = False
        self.by_launch = False
        #: Sequence -> what is known of its kernels. It may be filled later; with `learn` it is kept up to date.
        self.stats: Mapping[str, KernelStats] = {} if stats is None else stats
        #: Why something that is ready does not run although there is room; empty while nothing is held back.
        self.hold = ""
        self.used_pct = 0
        #: Who may start at all, and who goes first among equals, where quotas count.
        self.account: Account = account or TokenAccount()
        self._learn = learn
        #: What kernels beside each other cost each other, where somebody learns it.
        self.pairs = pairs
        self._tasks: dict[int, ArbiterTask] = {}
        self._expected: dict[int, TaskExpected] = {}
        #: Kernels that run beside one of another task, and so take longer than they do.
        self._crowded: dict[tuple[int, int], Crowded] = {}
        self._starts = 0
        self._alarm_ns = -1
        #: Ranks are those of the account.
        self._by_quota = False
        #: When the last aged kernel was started.
        self._aged_ns = -(1 << 62)

    def _begin(self, event: TaskBegan) -> ArbiterTask:
        # A new task has its turn before those that were started before, and after the new ones before it.
        task = ArbiterTask(event, self.stats.get(event.sequence), self._starts - (1 << 40), self.settings.order)
        self._tasks[event.task] = task
        self.account.entered(task.client, event.at_ns)
        return task

    def _known(self, event: TaskKnown) -> None:
        task = self._tasks.get(event.task)
        if task is not None:
            task.stats = self.stats.get(event.sequence)

    def _ready(self, event: KernelReady) -> None:
        if not 0 < event.share_pct <= FULL_SHARE:
            raise ValueError(f"kernel {event.kernel} of task {event.task} asks for {event.share_pct} % of a device")
        if event.parts < 1:
            raise ValueError(f"kernel {event.kernel} of task {event.task} is to run in {event.parts} parts")
        task = self._tasks.get(event.task)
        if task is None:
            began = TaskBegan(event.at_ns, event.task, event.priority, share_pct=event.share_pct)
            task = self._begin(began)
        if self._learn and task.stats is not None and event.kernel == task.last_ready + 1 and self.usual(event.task):
            # Ready before the one before it had ended: the device need not have waited at all.
            early = bool(task.started or task.ready)
            task.stats.observe_gap(event.kernel - 1, 0 if early else event.at_ns - task.free_ns, early=early)
        if event.share_pct < FULL_SHARE and task.stats is not None:
            task.stats.shares[event.kernel] = event.share_pct
        task.last_ready = event.kernel
        task.ready.append(Waiting(event.kernel, event.share_pct, event.at_ns, event.parts, event.parts))

    def _finished(self, event: KernelFinished) -> None:
        task = self._tasks.get(event.task)
        started = None if task is None else task.started.pop(event.kernel, None)
        if task is None or started is None:
            return  # of a task that is gone: what it held is free already
        begin_ns = started.start_ns if event.begin_ns < 0 else event.begin_ns
        end_ns = event.at_ns if event.end_ns < 0 else event.end_ns
        self._release(task)
        if not (task.ready and task.ready[0].kernel == event.kernel):
            task.position = max(event.kernel, event.upto - 1)
            task.last_ready = max(task.last_ready, task.position)
        task.free_ns = end_ns
        self.account.finished(task.client, started.share_pct, begin_ns, end_ns)
        crowded = self._crowded.pop((event.task, event.kernel), None)
        if crowded is not None:
            crowded.begin_ns, crowded.end_ns = begin_ns, end_ns
            if started.part == 1.0:
                self._tell_beside(task, crowded, event.kernel, event.next_kernel)
            self._slowed(task, crowded.loads(), end_ns - begin_ns)
            crowded.others.clear()  # those who still run remember it, and it remembers nobody
        elif (
            self._learn
            and started.part == 1.0
            and event.upto < 0
            and task.stats is not None
            and event.kernel < len(task.stats.kernels)
        ):
            task.stats.observe(event.kernel, end_ns - begin_ns)

    def _adopt(self, event: KernelRunning) -> None:
        """A kernel that runs already: nothing is decided about it."""
        task = self._tasks[event.task]
        task.last_ready = max(task.last_ready, event.kernel)
        task.started[event.kernel] = Started(
            event.share_pct, event.begin_ns, "turn", ready_ns=event.begin_ns, before_ns=task.last_start_ns
        )
        self._release(task)
        self._starts += 1
        task.turn = self._starts
        task.last_start_ns = event.begin_ns
        self.account.started(task.client, event.share_pct, event.begin_ns)

    def _take_back(self, event: KernelRevoked) -> None:
        """A start that did not come to pass: the kernel is the task's next again."""
        task = self._tasks.get(event.task)
        started = None if task is None else task.started.pop(event.kernel, None)
        if task is None or started is None:
            return
        self._release(task)
        self._leave_crowd(event.task, event.kernel, event.at_ns, ran=False)
        self.account.finished(task.client, started.share_pct, event.at_ns, event.at_ns)
        task.ready.appendleft(Waiting(event.kernel, started.share_pct, started.ready_ns))
        task.last_start_ns = started.before_ns
        if started.why == "aged":
            self._aged_ns = -(1 << 62)

    def _gone(self, event: TaskGone) -> None:
        self._expected.pop(event.task, None)
        task = self._tasks.pop(event.task, None)
        if task is not None:
            for kernel, started in task.started.items():
                self._leave_crowd(task.ident, kernel, event.at_ns)
                self.account.finished(task.client, started.share_pct, started.start_ns, event.at_ns)
            task.started.clear()
            self.account.left(task.client, event.at_ns)
            self._release(task)

    def _release(self, task: ArbiterTask) -> None:
        """Account for the share that the task's started kernels hold, after one was started or has ended."""
        held_pct = max([s.share_pct for s in task.started.values()]) if task.started else 0
        self.used_pct += held_pct - task.used_pct
        task.used_pct = held_pct

    def usual(self, task: int) -> bool:
        """Whether the task's next gap is one to learn from."""
        return True

    def _slowed(self, task: ArbiterTask, others: Sequence[Load], took_ns: int) -> None:
        """A kernel that ran beside those of others took so long."""

    # -- who runs beside whom -----------------------------------------------------------------------------------

    def _crowd(self, task: ArbiterTask, kernel: int, room_pct: int, now_ns: int) -> None:
        """A kernel begins. Those that leave it room run beside it, and the others before or after it."""
        own: Crowded | None = None
        for other in self._tasks.values():
            for number, started in other.started.items() if other is not task else ():
                if started.share_pct > room_pct:
                    continue
                own = own or self._crowded.setdefault((task.ident, kernel), Crowded(task.load, now_ns))
                theirs = self._crowded.setdefault((other.ident, number), Crowded(other.load, started.start_ns))
                own.others.append(theirs)
                theirs.others.append(own)

    def _leave_crowd(self, task: int, kernel: int, now_ns: int, *, ran: bool = True) -> None:
        """A kernel is gone and nobody says how long it took, or it never ran."""
        crowded = self._crowded.pop((task, kernel), None)
        if crowded is not None:
            crowded.end_ns = now_ns
            for other in crowded.others if not ran else ():
                if crowded in other.others:
                    other.others.remove(crowded)
            crowded.others.clear()

    def _tell_beside(self, task: ArbiterTask, crowded: Crowded, first: int, upto: int) -> None:
        """Tell what these kernels took, and who was beside them when."""
        stats, load = task.stats, crowded.load
        if self.pairs is None or stats is None or load is None or not all(map(stats.known, range(first, upto))):
            return
        alone_ns = sum(stats.durations[kernel].mean_ns for kernel in range(first, upto))
        begin_ns, beside = crowded.begin_ns, []
        for other in crowded.others:
            if other.load is None:
                return  # it did something, and who knows what
            since_ns = other.begin_ns - begin_ns
            until_ns = FOREVER_NS if other.end_ns < 0 else other.end_ns - begin_ns
            if until_ns > max(0, since_ns):
                beside.append(Beside(other.load, since_ns, until_ns))
        self.pairs.observe(load, round(alone_ns), crowded.end_ns - begin_ns, beside)
