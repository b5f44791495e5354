"""A batch on its way through a device, and the states that it can be in."""

from __future__ import annotations

from enum import Enum

from ..state.run_batch import RunBatch
from .events import TO_THE_END, PlannedBatch, TaskPlanned
from .times import DeviceTimes

__all__ = ["NO_OBJECTIVE_NS", "TRANSITIONS", "Task", "TaskState"]

#: Batches without an objective go after those of their class and order that have one.
NO_OBJECTIVE_NS = 1 << 62


class TaskState(Enum):
    """Where a batch stands."""

    #: Its window has not opened.
    EARLY = "early"
    #: It waits for its model, or for its turn.
    QUEUED = "queued"
    #: The fetch of its model occupies the device (`Rules.fetch_blocks` only).
    FETCHING = "fetching"
    #: It has a grant.
    RUNNING = "running"
    #: It has a grant that was revoked: it goes on to the end of a kernel.
    STOPPING = "stopping"
    #: It has begun, and waits for its next turn.
    SUSPENDED = "suspended"
    #: It has ended, or was refused.
    OVER = "over"


#: What may follow what; `tests/device/test_machine_laws.py` holds every run to it.
TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    TaskState.EARLY: frozenset({TaskState.QUEUED, TaskState.OVER}),
    TaskState.QUEUED: frozenset({TaskState.FETCHING, TaskState.RUNNING, TaskState.OVER}),
    TaskState.FETCHING: frozenset({TaskState.RUNNING, TaskState.OVER}),
    TaskState.RUNNING: frozenset({TaskState.STOPPING, TaskState.SUSPENDED, TaskState.OVER}),
    TaskState.STOPPING: frozenset({TaskState.SUSPENDED, TaskState.OVER}),
    TaskState.SUSPENDED: frozenset({TaskState.RUNNING, TaskState.OVER}),
    TaskState.OVER: frozenset(),
}


class Task:
    """A batch that was taken and has not ended."""

    #: When it began or is expected to; -1 before.
    begin_ns = -1
    #: It could have started but for its model.
    missed = False
    #: Batches that started before it while it waited for room for its model.
    overtaken = 0
    #: Its kernels, and how many they are; () while nothing is known of them: it is one.
    idents: tuple[str, ...] = ()
    sequence = ""
    kernels = 1
    launched = 1
    #: The first kernel that has not run.
    kernel = 0
    #: Another one had a grant while it had its own: its kernels took longer than they do.
    crowded = False
    #: Kernels of its grant, and why it has it.
    first = 0
    last = TO_THE_END
    why = "turn"
    #: The kernel arbiter was told of it.
    entered = False

    def __init__(
        self, ident: int, run: RunBatch, weights: str, nbytes: int, key: tuple[int, int, int, int], now_ns: int
    ) -> None:
        self.ident = ident
        self.run = run
        self.weights = weights
        self.nbytes = nbytes
        #: Place in the queue: (class, order, objective, arrival).
        self.key = key
        self.priority = run.priority
        self.share_pct = run.share_pct
        self.expected_ns = run.expected_ns
        self.state = TaskState.QUEUED
        #: Since when it waits, or has its grant.
        self.since_ns = now_ns

    def plan(self, plan: TaskPlanned | PlannedBatch, times: DeviceTimes) -> None:
        """Its kernels are known."""
        if not 0 <= plan.launched <= len(plan.idents):
            raise ValueError(f"{plan.launched} of {len(plan.idents)} kernels of task {self.ident} are launched")
        self.idents, self.launched = plan.idents, plan.launched
        self.kernels = len(plan.idents) or 1
        self.sequence = times.sequence(plan.sequence, plan.idents)

    @property
    def client(self) -> str:
        """Who is charged for it."""
        return self.run.client or self.run.stage

    @property
    def divisible(self) -> bool:
        """Whether a grant over all that is left can be stopped before its end."""
        return self.kernels > 1
