"""Clients and tasks of a gated device, as `gated` keeps them."""

from __future__ import annotations

from .gateprograms import Program
from .gatewire import Begin, Cancel, Launch, Line, ToDevice

__all__ = ["NEVER_NS", "Broken", "Client", "Task", "class_of"]

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

    __slots__ = (
        "client",
        "done",
        "ident",
        "kernels",
        "launched",
        "number",
        "program",
        "quiet_ns",
        "ready_ns",
        "told",
    )

    def __init__(self, ident: int, client: Client, message: Begin, program: Program, now_ns: int) -> None:
        self.ident = ident
        self.client = client
        self.number = message.task
        self.program = program
        self.kernels = program.begin()
        self.launched = 0
        #: When each launched kernel became ready.
        self.ready_ns: list[int] = []
        #: Since when it has nothing to run; `NEVER_NS` while it has.
        self.quiet_ns = now_ns
        #: The beginning of its kernels' records.
        self.told = (ident, program.name, program.idents, message.priority, str(client.ident), self.ready_ns)


class Broken(Exception):
    """A client has broken the protocol."""


def class_of(client: Client, message: ToDevice) -> int:
    """The class of the task that a message is about; last what is about none."""
    if isinstance(message, Begin):
        return message.priority
    task = client.tasks.get(message.task) if isinstance(message, Launch | Cancel) else None
    return LAST_CLASS if task is None else task.told[3]
