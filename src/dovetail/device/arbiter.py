"""What an arbiter of kernels is told, and what it answers.

A task is a batch at work on the device; its kernels come one after the other. A kernel asks for a share of the
device; the law kept here is that the shares of started kernels never add up to more than the whole. An event without
the optional fields means what it always meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ..state.worker import FULL_SHARE

__all__ = [
    "AlarmRang", "ArbiterAction", "KernelArbiter", "KernelEvent", "KernelFinished", "KernelReady", "KernelRevoked",
    "KernelRunning", "SetAlarm", "StartKernel", "TaskBegan", "TaskExpected", "TaskGone", "TaskKnown",
]  # fmt: skip

#: A deadline that nobody gave.
NO_DEADLINE_NS = 1 << 62


class KernelReady(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A task's next kernel could start. Kernels of a task become ready in order, perhaps several before one starts.

    `kernel` is the kernel's position in the task's sequence, from 0; statistics are looked up by it.
    """

    at_ns: int
    task: int
    kernel: int
    share_pct: int = FULL_SHARE
    #: 1 is the highest class. Of no effect if `TaskBegan` came before.
    priority: int = 1
    #: Equal parts that it may be run in, one after the other. 1: it runs as a whole.
    parts: int = 1


class KernelFinished(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A started kernel has ended, or as many parts of it as were started.

    `begin_ns` and `end_ns` are when it was really on the device, where that is known better than by the times of the
    events (a device queue, a clock beside the kernel); -1 where it is not.
    """

    at_ns: int
    task: int
    kernel: int
    begin_ns: int = -1
    end_ns: int = -1
    #: It was the first of several that were granted at once; this one has not run. -1: it was the only one.
    upto: int = -1
    #: The next was launched before: it is ready too, and asks for the same share. Saves a `KernelReady` before this.
    next_ready: bool = False
    #: It was the task's last: the task is gone with it, and leaves no gap.
    over: bool = False

    @property
    def next_kernel(self) -> int:
        """The first kernel that has not run."""
        return self.kernel + 1 if self.upto < 0 else self.upto


class KernelRevoked(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A kernel that was started was taken back before it began: it is ready again, since when it was before."""

    at_ns: int
    task: int
    kernel: int


class KernelRunning(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A kernel is on the device already: it was started before anybody asked the arbiter."""

    at_ns: int
    task: int
    kernel: int
    share_pct: int
    begin_ns: int


class TaskGone(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A task is over, failed, cancelled or killed: whatever it held is free and what it waited for is void."""

    at_ns: int
    task: int


class TaskBegan(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A task has begun: from now on its kernels come, and its class counts."""

    at_ns: int
    task: int
    #: 1 is the highest class.
    priority: int = 1
    #: Who is charged for it: quotas are kept by client.
    client: str = ""
    #: Name of its kernel sequence; statistics are kept by that. Empty: nothing is known of its kernels.
    sequence: str = ""
    #: The largest share that one of its kernels asks for.
    share_pct: int = FULL_SHARE
    #: When it has to be done, for policies that order a class by slack.
    deadline_ns: int = NO_DEADLINE_NS
    #: The last of its kernels that ran before anybody asked the arbiter, and when that ended; -1: none did.
    position: int = -1
    free_ns: int = -1


class TaskKnown(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """It has turned out of which sequence the kernels of a task are; one of them may run already."""

    at_ns: int
    task: int
    sequence: str


class TaskExpected(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A hint: a task of this class is likely to begin at about `expected_ns`, e.g. the next stage of a workflow.

    The hint is void once a task of this number begins or is gone, or well after `expected_ns`.
    """

    at_ns: int
    task: int
    priority: int
    expected_ns: int


class AlarmRang(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A time that was asked for with `SetAlarm` has come. One too many does no harm."""

    at_ns: int


class StartKernel(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """Let this kernel start now."""

    task: int
    kernel: int
    #: Why it may: "turn" it is of the highest class that is there; "fill" it fits into a gap of a higher class;
    #: "beside" its share is free beside the higher class; "aged" it waited too long.
    why: str = "turn"
    #: So many parts of it and no more, if it may be run in parts: what is left is started later. 0: all that is left.
    parts: int = 0


class SetAlarm(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """Send `AlarmRang` at this time. A later `SetAlarm` takes the place of an earlier one."""

    at_ns: int


KernelEvent = (
    KernelReady | KernelFinished | KernelRevoked | KernelRunning
    | TaskBegan | TaskKnown | TaskExpected | TaskGone | AlarmRang
)  # fmt: skip
ArbiterAction = StartKernel | SetAlarm


class KernelArbiter(Protocol):
    """Answers when, for one device, for tasks with classes and kernel sequences."""

    @property
    def takes_turns(self) -> bool:
        """Whether tasks of one class take turns, kernel by kernel; else one runs after the other."""
        ...

    @property
    def classless(self) -> bool:
        """Whether classes do not count: then tasks of all of them take turns."""
        ...

    @property
    def by_launch(self) -> bool:
        """Whether the order of launches counts: then a kernel is told when it is launched, not when it is next."""
        ...

    def step(self, event: KernelEvent) -> Sequence[ArbiterAction]:
        """Take one event and say which kernels may start, and when to ask again."""
        ...

    def aged_due(self, now_ns: int) -> bool:
        """Whether a kernel of a lower class has waited for so long that it goes before all others."""
        ...

    def usual(self, task: int) -> bool:
        """Whether the gaps of a task are as they would be if it were alone, and so worth learning."""
        ...

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        ...
