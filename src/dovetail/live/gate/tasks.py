"""Clients and tasks of a gated device, as `gated` keeps them."""

from __future__ import annotations

from collections.abc import Iterator

from ...device import KernelEvent, KernelFinished, KernelReady, TaskBegan
from ...profile.kernels import KernelStats
from .programs import Program
from .wire import Begin, Cancel, Launch, Line, ToDevice

__all__ = ["LAST_CLASS", "NEVER_NS", "Broken", "Client", "Task", "class_of"]

NEVER_NS = 1 << 62
LAST_CLASS = 1 << 30


class Client:
    """One client: its line, its programs and its tasks."""

    __slots__ = ("ident", "line", "programs", "tasks", "waiting")

    def __init__(self, ident: int, line: Line[ToDevice]) -> None:
        self.ident = ident
        self.line = line
        self.programs: dict[int, Program] = {}
        #: The client's number -> the task.
        self.tasks: dict[int, Task] = {}
        #: The client's number of a task -> what is to begin when that is over.
        self.waiting: dict[int, Begin] = {}

    def put_off(self, message: Begin) -> bool:
        """Keep what is to begin after a task that is there or waits itself."""
        if message.after not in self.tasks and self._before(message.after) is None:
            return False
        if message.after in self.waiting:
            raise Broken(f"two tasks were to begin after task {message.after}")
        self.waiting[message.after] = message
        return True

    def launch_later(self, message: Launch) -> None:
        """Kernels of a task were launched that waits, if it does."""
        before = self._before(message.task)
        if before is not None:
            self.waiting[before].launch = max(self.waiting[before].launch, message.upto)

    def give_up(self, number: int) -> bool:
        """Forget a task that waits; what was to begin after it begins after the one before it."""
        before = self._before(number)
        if before is None:
            return False
        del self.waiting[before]
        if number in self.waiting:
            self.waiting[before] = self.waiting.pop(number)
        return True

    def _before(self, number: int) -> int | None:
        return next((before for before, message in self.waiting.items() if message.task == number), None)


class Task:
    """One run of a program."""

    def __init__(self, ident: int, client: Client, message: Begin, program: Program, now_ns: int) -> None:
        self.ident = ident
        self.client = client
        self.number = message.task
        self.priority = message.priority
        self.program = program
        self.kernels = program.begin()
        self.began_ns = now_ns
        self.launched = 0
        #: How many of them the arbiter was told of.
        self.announced = 0
        #: When each launched kernel became ready.
        self.ready_ns: list[int] = []
        #: When its host asked for each.
        self.sent_ns: list[int] = []
        #: Since when it has nothing to run; `NEVER_NS` while it has.
        self.quiet_ns = now_ns
        #: The beginning of its kernels' records.
        self.told = (
            ident, program.name, program.idents, message.priority, str(client.ident), self.ready_ns, self.sent_ns
        )  # fmt: skip
        #: Begin and end of the kernels that ran; of how many of them the statistics know; and whether one runs.
        self.spans: list[tuple[int, int]] = []
        self.taught = 0
        self.running = False
        #: While it is alone: how many were let start.
        self.started = 0

    def began(self, at_ns: int) -> TaskBegan:
        """What the arbiter is told of it first."""
        client = str(self.client.ident)
        return TaskBegan(at_ns, self.ident, self.priority, client=client, sequence=self.program.name)

    def so_far(self, told_ns: int) -> Iterator[KernelEvent]:
        """What an arbiter has to know of a task that was alone until now; not before the time of its last event.

        Of kernels that are over only the last counts, and only if none runs: it says since when there is a gap. Of
        those that are to come none, unless it runs.
        """
        done = len(self.spans)
        yield self.began(max(told_ns, self.began_ns))
        if done and not self.running:
            begin_ns, end_ns = self.spans[-1]
            yield KernelReady(max(told_ns, self.ready_ns[done - 1]), self.ident, done - 1)
            yield KernelFinished(max(told_ns, end_ns), self.ident, done - 1, begin_ns, end_ns)
        if self.running:
            yield KernelReady(max(told_ns, self.ready_ns[done]), self.ident, done)
        self.announced = done + self.running

    def teach(self, stats: KernelStats, kernels: int) -> None:
        """Durations of the first kernels, and the gaps after them, save those that the statistics know."""
        if not self.taught:
            stats.observe_gap(-1, max(0, self.ready_ns[0] - self.began_ns) if self.ready_ns else 0)
        for position in range(self.taught, kernels):
            begin_ns, end_ns = self.spans[position]
            stats.observe(position, end_ns - begin_ns)
            if position + 1 < len(self.ready_ns):
                gap_ns = self.ready_ns[position + 1] - end_ns
                stats.observe_gap(position, max(0, gap_ns), early=gap_ns < 0)


class Broken(Exception):
    """A client has broken the protocol."""


def class_of(client: Client, message: ToDevice) -> int:
    """The class of the task that a message is about; last what is about none."""
    if isinstance(message, Begin):
        return message.priority
    task = client.tasks.get(message.task) if isinstance(message, Launch | Cancel) else None
    return LAST_CLASS if task is None else task.priority
