"""The Controller: one per ingress, a pure state machine. Events in, actions out; see `controller.py`."""

from .actions import (
    NEVER_NS,
    Action,
    Drained,
    EvictModel,
    LoadModel,
    Reject,
    Reply,
    RunBatch,
    SetTimer,
)
from .controller import Controller, Policy
from .events import (
    BatchFailed,
    BatchFinished,
    DrainStarted,
    Event,
    LoadFailed,
    ModelLoaded,
    RequestArrived,
    RequestCancelled,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)

__all__ = [
    "NEVER_NS",
    "Action",
    "BatchFailed",
    "BatchFinished",
    "Controller",
    "DrainStarted",
    "Drained",
    "Event",
    "EvictModel",
    "LoadFailed",
    "LoadModel",
    "ModelLoaded",
    "Policy",
    "Reject",
    "Reply",
    "RequestArrived",
    "RequestCancelled",
    "RunBatch",
    "SetTimer",
    "TimerFired",
    "WorkerJoined",
    "WorkerLost",
]
