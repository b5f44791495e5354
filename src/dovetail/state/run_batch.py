"""The one record of a batch: what was decided about it, from the controller to the kernel.

It is an action of the controller, a line of the log, part of a message to a worker and an event of the Device
machine, always as it is here: nobody works out on the way what the decision already knew. The shape (a window to
start in and an expected duration) is Clockwork's (OSDI '20).

Rule of this file: field order is the log format. Append, never reorder.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["FULL_QUOTA", "NEVER_NS", "RunBatch", "cause_of", "task_of"]

#: A time that never comes: `latest_ns` of a batch without deadline.
NEVER_NS: Final = (1 << 62) - 1
#: Quotas are whole per cents of the time of a device.
FULL_QUOTA: Final = 100
#: Batches of one ingress at most; those of another are numbered beyond.
_MOST_BATCHES: Final = 48


class RunBatch(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """Run these items of one stage together on this worker, starting inside the window or not at all."""

    cause: int
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
    #: Place among those of its class in the worker's queue: smaller starts first.
    order: int = 0
    #: Why on this worker, where that was a decision of its own.
    reason: str = ""
    #: The worker refuses at once if it does not expect to start it by then; once it has taken it, only `latest_ns`
    #: counts. 0: it takes it.
    accept_ns: int = 0
    #: The highest class in it; 1 is the highest of all.
    priority: int = 1
    #: When the most urgent request of that class should be answered; 0: whenever.
    objective_ns: int = 0
    #: Spread of `expected_ns`: standard deviation over mean.
    spread: float = 0.0
    #: Part of the device's time that its client may use.
    quota_pct: int = FULL_QUOTA
    #: Who is charged for it; empty: its stage.
    client: str = ""
    #: A model of a request of that class follows as soon as this batch has ended.
    follows: bool = False
    #: Which ingress decided it; workers may serve several, which number their batches for themselves.
    ingress: int = 0


def task_of(ingress: int, batch: int) -> int:
    """The number under which a device that serves several ingresses knows a batch of one, or a step."""
    return (ingress << _MOST_BATCHES) + batch


def cause_of(number: int, ingress: int) -> int:
    """The step of an ingress that is behind a number of `task_of`; 0 if that was a step of another one."""
    owner, step = divmod(number, 1 << _MOST_BATCHES)
    return step if owner == ingress else 0
