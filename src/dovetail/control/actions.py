"""What is to be done: everything the controller ever asks for, in the imperative.

Rules of this file: an action is data; carrying it out is the driver's business. `cause` is the number of the step
that decided it. `RunBatch` is `state.run_batch`: devices take it as it is.
"""

from __future__ import annotations

import msgspec

from ..state.run_batch import NEVER_NS, RunBatch

__all__ = [
    "NEVER_NS", "Action", "Drained", "EvictModel", "LoadModel", "Reject", "Reply", "RunBatch", "SetSlice", "SetTimer",
    "StartWorker", "StopWorker",
]  # fmt: skip


class _Action(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    cause: int


class LoadModel(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """Bring a stage's model into the worker's memory."""

    worker: int
    stage: str
    #: It is to stay there until `EvictModel`; otherwise it is a hint, which lapses.
    keep: bool = False


class EvictModel(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """Remove a stage's model from the worker's memory, for the reason given."""

    worker: int
    stage: str
    reason: str


class Reply(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """Answer the request with its results. `outcome` is ok or late."""

    request: int
    graph: int
    priority: int
    outcome: str
    arrived_ns: int
    cost_usd: float


class Reject(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """Answer the request without results. `outcome` is shed, expired, failed or cancelled."""

    request: int
    graph: int
    priority: int
    outcome: str
    arrived_ns: int
    cost_usd: float
    reason: str
    #: When it would be worth trying again; 0 if never.
    retry_after_ns: int = 0


class SetTimer(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """Tell the controller when this time has come."""

    timer: int
    at_ns: int
    #: Why work is held back until then, if that is what the timer is for.
    reason: str = ""


class SetSlice(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """A slice of a worker is a stage's from now on, for the reason given: it is new, or has another size.

    A share and quota of nought: it is closed, and gone when its batch has ended. Batches that run in it say so to
    their device, so that nothing has to be carried out.
    """

    worker: int
    stage: str
    slice: int
    share_pct: int
    quota_pct: int
    batch: int
    reason: str
    #: It is only said what would be done.
    dry: bool = False


class StartWorker(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """One more device is needed; `WorkerJoined` tells when it is there."""

    reason: str
    #: It is only said what would be done.
    dry: bool = False


class StopWorker(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """A device is not needed any more. It runs nothing, and nobody will hear of it again."""

    worker: int
    reason: str
    #: It is only said what would be done.
    dry: bool = False


class Drained(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """Nothing is open any more after a drain."""


Action = RunBatch | LoadModel | EvictModel | Reply | Reject | SetTimer | SetSlice | StartWorker | StopWorker | Drained
