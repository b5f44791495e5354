"""What is to be done: everything the controller ever asks for, in the imperative.

Rules of this file: an action is data; carrying it out is the driver's business. `cause` is the number of the step
that decided it. The shape of `RunBatch` (a window to start in and an expected duration) is Clockwork's (OSDI '20).
"""

from __future__ import annotations

import msgspec

__all__ = ["NEVER_NS", "Action", "Drained", "EvictModel", "LoadModel", "Reject", "Reply", "RunBatch", "SetTimer"]

#: A time that never comes: `latest_ns` of a batch without deadline.
NEVER_NS = (1 << 62) - 1


class _Action(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    cause: int


class RunBatch(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """Run these items of one stage together on this worker, starting inside the window or not at all."""

    batch: int
    worker: int
    stage: str
    #: (request, node, index) of each item.
    items: tuple[tuple[int, int, int], ...]
    cpus: int
    share_pct: int
    earliest_ns: int
    latest_ns: int
    expected_ns: int
    #: Place in the queue of a worker that keeps one: smaller starts first, then first come.
    order: int = 0
    #: Why on this worker, where that was a decision of its own.
    reason: str = ""
    #: A worker that keeps a queue refuses at once if it does not expect to start it by then; once it has taken it,
    #: only `latest_ns` counts. 0: it takes it.
    accept_ns: int = 0


class LoadModel(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """Bring a stage's model into the worker's memory."""

    worker: int
    stage: str


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


class Drained(_Action, frozen=True, gc=False, array_like=True, tag=True):
    """Nothing is open any more after a drain."""


Action = RunBatch | LoadModel | EvictModel | Reply | Reject | SetTimer | Drained
