"""Clients and tasks of a gated device, as `gated` keeps them."""

from __future__ import annotations

from collections.abc import Iterator

from ..device import KernelEvent, KernelFinished, KernelReady, TaskBegan
from ..profile.kernels import KernelStats
from .gateprograms import Program
from .gatewire import Begin, Cancel, Launch, Line, ToDevice

__all__ = ["LAST_CLASS", "NEVER_NS", "Broken", "Client", "Task", "class_of"]

NEVER_NS = 1 << 62
LAST_CLASS = 1 << 30


class Client:
    """One client: its line, its programs and its tasks."""

    __slots__ = ("ident", "line", "programs", "tasks")

    def __init__(self, ident: int, line: Line[ToDevice]) -> None:
        self.ident = ident
        self.line = line
        self.programs: dict[int, Program] = {}
        #: The client's number -> the task.
        self.tasks: dict[int, Task] = {}


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
        #: While it is alone: begin and end of the kernels that ran, whether one runs, and how many were let start.
        self.spans: list[tuple[int, int]] = []
        self.running = False
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
        """Durations of the first kernels that ran while it was alone, and the gaps after them."""
        stats.observe_gap(-1, max(0, self.ready_ns[0] - self.began_ns) if self.ready_ns else 0)
        for position, (begin_ns, end_ns) in enumerate(self.spans[:kernels]):
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
