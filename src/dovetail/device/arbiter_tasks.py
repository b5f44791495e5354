"""A task as the arbiters of this package remember it, and the settings that they have in common."""

from __future__ import annotations

from collections import deque
from typing import Final, Literal, NamedTuple

import msgspec

from ..predict.interference import Load
from ..profile.kernels import KernelStats
from ..units import US
from .arbiter import NO_DEADLINE_NS, TaskBegan

__all__ = ["ArbiterSettings", "ArbiterTask", "Crowded", "Offer", "Started", "Waiting"]


#: Above every class.
MET: Final = 1 << 32


class ArbiterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Knobs of every arbiter that knows classes."""

    #: How many kernels of a task may be started before the first has finished, while it is its class's turn. 1 where
    #: a start is a start; more where a start is a launch into the device's own queue, which must not run dry.
    ahead: int = 1
    #: Of classes below the first, only if all of these together are expected to take no longer than this: whoever
    #: comes from above would find them in the queue.
    ahead_ns: int = 50 * US
    #: The device takes launched kernels by class (streams with priorities): what was launched ahead still waits for
    #: whoever comes from above. So lower classes may do it with any kernel, and a higher one is launched at once, to
    #: be the next that the device takes.
    by_class: bool = False
    #: A task of a lower class that has waited so long for a start gets one, whether it fits or not; there is at least
    #: this much time between two such starts. 0: never. This is the bound on starvation, and on what it costs.
    ageing_ns: int = 0
    #: Tasks of one class: "turn" by turn, or the one with the earliest deadline first and the others in its gaps.
    order: Literal["turn", "slack"] = "turn"


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A kernel that could start."""

    kernel: int
    share_pct: int
    ready_ns: int
    #: Parts that it may be run in, and how many of them have not been started.
    parts: int = 1
    left: int = 1

    @property
    def rest(self) -> float:
        """What of the kernel has not been started."""
        return self.left / self.parts


class Started(msgspec.Struct, frozen=True, gc=False):
    """A kernel that was started and has not finished."""

    share_pct: int
    start_ns: int
    why: str
    #: What part of the kernel it is.
    part: float = 1.0
    #: Since when it could have been started, and when one of its task was last started before it.
    ready_ns: int = 0
    before_ns: int = 0


class Crowded:
    """A started kernel that runs beside others: as they feel it, when it ran, and who they are."""

    __slots__ = ("begin_ns", "end_ns", "load", "others")

    def __init__(self, load: Load | None, begin_ns: int) -> None:
        self.load = load
        self.begin_ns = begin_ns
        #: Below nought: it has not ended.
        self.end_ns = -1
        self.others: list[Crowded] = []

    def loads(self) -> tuple[Load, ...]:
        """All neighbours that are known, each once."""
        return tuple(dict.fromkeys(other.load for other in self.others if other.load is not None))


class Offer(NamedTuple):
    """What it is worth to start a task's next kernel, or so many parts of it; 0: all that is left."""

    worth: float
    parts: int = 0


class ArbiterTask:
    """A task that has begun and is not gone."""

    __slots__ = (
        "client", "deadline_ns", "free_ns", "ident", "last_ready", "last_start_ns", "overtaken", "place", "position",
        "priority", "rank", "ready", "share_pct", "started", "stats", "turn", "used_pct",
    )  # fmt: skip

    def __init__(self, event: TaskBegan, stats: KernelStats | None, turn: int, order: str) -> None:
        self.ident = event.task
        self.priority = event.priority
        self.client = event.client
        self.stats = stats
        self.share_pct = event.share_pct
        self.deadline_ns = event.deadline_ns
        #: Place among those of its class.
        self.place = event.deadline_ns if order == "slack" else NO_DEADLINE_NS
        #: Lower goes first; equal ranks take turns.
        self.rank: tuple[int, ...] = (event.priority, self.place)
        #: Others of its class that started while it waited for share (`PriorityArbiter._back_fill`).
        self.overtaken = 0
        self.ready: deque[Waiting] = deque()
        self.started: dict[int, Started] = {}
        #: Position of the last kernel that finished, and since when the next is waited for.
        self.position = event.position
        self.free_ns = event.at_ns if event.free_ns < 0 else event.free_ns
        self.last_ready = event.position
        #: When a kernel of it was last started, and which start that was; turns go by it.
        self.last_start_ns = event.at_ns
        self.turn = turn
        #: Share that its started kernels hold: they run one after the other, so the largest.
        self.used_pct = 0

    @property
    def load(self) -> Load | None:
        """Its kernels as those feel them who run beside them; None if they are not known."""
        return None if self.stats is None else Load(self.stats.name, 1, self.share_pct)

    @property
    def in_parts(self) -> bool:
        """Whether its next is the rest of a kernel of which a part is at work: only one part is, at a time."""
        return bool(self.ready) and self.ready[0].kernel in self.started

    def rank_by(self, quota: tuple[bool, int] | None, several: bool = False) -> None:
        """Where quotas count, whoever has had what it asked for comes after those that have not.

        If there are several classes: within one it is enough to go by how far each has come. Whether a request is met
        within a window is coarse, if kernels are long.
        """
        if quota is None:
            self.rank = (self.priority, self.place)
        else:
            met, behind = quota
            self.rank = (self.priority + MET * (met and several), behind, self.place)

    @property
    def since_ns(self) -> int:
        """Since when its next kernel waits, counted from its last start if that is later."""
        return max(self.ready[0].ready_ns, self.last_start_ns)

    def started_and_next_ns(self) -> float:
        """How long the kernels that were started and the next one are expected to take; endless if unknown."""
        stats, kernels = self.stats, [*self.started, self.ready[0].kernel]
        if stats is None or not all(map(stats.known, kernels)):
            return float("inf")
        return sum(stats.durations[k].mean_ns for k in kernels)

    @property
    def active(self) -> bool:
        """Whether a kernel of it is at work, waits or is still to come."""
        if self.ready or self.started:
            return True
        return self.stats is None or not self.stats.is_last(self.last_ready)
