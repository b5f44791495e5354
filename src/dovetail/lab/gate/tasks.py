"""Clients and tasks of a gated device, as `device` keeps them."""

from __future__ import annotations

from typing import Any

from ...device.events import Grant
from ...record.kernels import KernelRecord
from .programs import Program
from .wire import Begin, Cancel, Launch, Line, ToDevice

__all__ = ["LAST_CLASS", "NEVER_NS", "Broken", "Client", "Task", "class_of", "record_of"]

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
        self.launched = 0
        #: How many of them the machine was told of.
        self.known = 0
        #: When each launched kernel became ready.
        self.ready_ns: list[int] = []
        #: When its host asked for each.
        self.sent_ns: list[int] = []
        #: Its host launches kernels one by one.
        self.hosted = False
        #: Since when it has nothing to run; `NEVER_NS` while it has.
        self.quiet_ns = now_ns
        #: The beginning of its kernels' records.
        self.told = (
            ident, program.name, program.idents, message.priority, str(client.ident), self.ready_ns, self.sent_ns
        )  # fmt: skip
        #: The first kernel that has not run, and whether that is at work.
        self.kernel = 0
        self.running = False
        #: What the machine lets it run, whether that was taken back, and begin and end of its kernels that have run.
        self.grant: Grant | None = None
        self.revoked = False
        self.spans: list[tuple[int, int]] = []

    def launch(self, upto: int, sent_ns: int, arrived_ns: int) -> None:
        """Kernels before this position were launched."""
        more = upto - self.launched
        if more < 0 or upto > len(self.kernels):
            raise Broken(f"kernels before {upto} were launched of a task that has {len(self.kernels)}")
        if more:
            self.ready_ns += [arrived_ns] * more
            self.sent_ns += [sent_ns] * more
            self.launched = upto
            self.quiet_ns = NEVER_NS

    def gaps(self) -> tuple[int, ...]:
        """How long after the end of each kernel of the grant its host launched the next, as far as it has."""
        if not self.hosted:
            return ()
        next_ns = self.ready_ns[self.kernel - len(self.spans) + 1 : self.kernel + 1]
        if not next_ns:
            return ()
        return tuple(ready_ns - end_ns for ready_ns, (_, end_ns) in zip(next_ns, self.spans, strict=False))


class Broken(Exception):
    """A client has broken the protocol."""


def class_of(client: Client, message: ToDevice) -> int:
    """The class of the task that a message is about; last what is about none."""
    if isinstance(message, Begin):
        return message.priority
    task = client.tasks.get(message.task) if isinstance(message, Launch | Cancel) else None
    return LAST_CLASS if task is None else task.priority


def record_of(told: tuple[Any, ...]) -> KernelRecord:
    """A kernel that ran, from `Task.told` and what else there is to say of it; made when somebody asks."""
    task, name, whats, priority, client, readies, sents, kernel, begin_ns, end_ns, why = told
    ready_ns, what, sent_ns = readies[kernel], whats[kernel], sents[kernel]
    return KernelRecord(task, name, kernel, priority, begin_ns, end_ns, ready_ns, what, why, client, sent_ns=sent_ns)
