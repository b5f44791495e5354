"""What happens: everything the controller is ever told, in the past tense.

Rules of this file: an event is data and carries its own time; the controller has no other clock. `cause` is the
number of the step whose action led to the event, 0 if it came from outside. Field order is the log format:
append, never reorder, and raise `log.VERSION` when a meaning changes.
"""

from __future__ import annotations

import msgspec

from ..state import WorkerRow, WorkerSpec

__all__ = [
    "BatchFailed",
    "BatchFinished",
    "DrainStarted",
    "Event",
    "LoadFailed",
    "MemoryChanged",
    "ModelEvicted",
    "ModelLoaded",
    "PeerStateReceived",
    "RequestArrived",
    "RequestCancelled",
    "RequestRefused",
    "SliceChanged",
    "TimerFired",
    "WorkerJoined",
    "WorkerLost",
]


class _Event(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    at_ns: int
    cause: int


class RequestArrived(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """A client asks for a workflow."""

    request: int
    graph: int
    #: 1 is the highest; 0 takes the workflow's own class.
    priority: int = 0
    #: When it should be answered; 0 takes the workflow's objective.
    objective_ns: int = 0
    #: When an answer is of no use any more; 0 is never.
    deadline_ns: int = 0
    #: Counts of the inputs that are mapped over or tested, in the order of `Graph.counted_inputs`.
    counts: tuple[int, ...] = ()
    #: Whether it may be refused, or given up, because it would be late; else it is served late.
    sheddable: bool = True


class RequestRefused(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """A client asked and was turned away at once: the front had no memory for it, or no worker."""

    request: int
    graph: int
    #: 0: its class was not known yet, and counts as the workflow's own.
    priority: int
    reason: str
    #: When the client was told to come back; 0 is never.
    retry_after_ns: int = 0


class RequestCancelled(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """The client gave up."""

    request: int


class BatchFinished(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """A worker has run a batch."""

    batch: int
    begin_ns: int
    end_ns: int
    #: For each item in turn, the counts of the node's counted outputs.
    counts: tuple[int, ...] = ()
    #: How long it had the device, if others ran in between; 0: all the time from begin to end.
    busy_ns: int = 0
    #: Which ingress decided it.
    ingress: int = 0
    #: The worker ran no batch of this stage with so many items before: it took longer than the next one will.
    first: bool = False


class BatchFailed(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """A worker could not run a batch. `reason` is one of: error, too_late, not_loaded, no_share, no_memory."""

    batch: int
    begin_ns: int
    end_ns: int
    reason: str
    detail: str = ""
    #: Which ingress decided it.
    ingress: int = 0


class ModelLoaded(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """A worker holds a stage's model."""

    worker: int
    stage: str
    nbytes: int
    #: How long the load itself took; 0: nobody measured it.
    load_ns: int = 0


class LoadFailed(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """A worker could not load a stage's model."""

    worker: int
    stage: str
    detail: str


class ModelEvicted(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """A worker that keeps its own memory has let a model go, and why."""

    worker: int
    #: `StageSpec.weights` of the stages that share it.
    weights: str
    nbytes: int
    reason: str


class MemoryChanged(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """A worker that keeps its own memory has more or less of it for models than before."""

    worker: int
    nbytes: int


class PeerStateReceived(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """The state table, as far as it has changed since this controller last read it."""

    rows: tuple[WorkerRow, ...]


class WorkerJoined(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """A worker is ready for actions. A worker that comes back is a new worker with a new number."""

    worker: int
    spec: WorkerSpec


class WorkerLost(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """A worker is gone, with everything that ran on it."""

    worker: int
    detail: str
    #: It hung or crashed at its work, so what it worked on is to blame; else somebody took it away.
    at_fault: bool = False
    #: Another one is started in its place without being asked for.
    replaced: bool = False


class TimerFired(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """A timer that the controller set has come due."""

    timer: int


class DrainStarted(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """Take nothing new; finish what was admitted."""


class SliceChanged(_Event, frozen=True, gc=False, array_like=True, tag=True):
    """Somebody wants a client to have another slice from now on."""

    client: str
    share_pct: int
    quota_pct: int
    #: The worker that its batches go to from now on; 0: any.
    worker: int = 0


Event = (
    RequestArrived
    | RequestRefused
    | RequestCancelled
    | BatchFinished
    | BatchFailed
    | ModelLoaded
    | LoadFailed
    | ModelEvicted
    | MemoryChanged
    | PeerStateReceived
    | WorkerJoined
    | WorkerLost
    | TimerFired
    | DrainStarted
    | SliceChanged
)
