"""What a worker's desk is told and what it answers: batches that it has taken, and the few things it can ask for.

Rules of this file: data only. `Rules` holds every switch by which a rival's worker differs from ours, so that there
is one desk and no fork of it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "AUTHORS_SIMULATOR",
    "COMPASS",
    "NOBODY",
    "DeskAction",
    "Evict",
    "Load",
    "Refuse",
    "Rules",
    "Start",
    "Ticket",
    "Wake",
]

#: `batch` of a load or an eviction that no batch asked for, but a hint.
NOBODY = -1


class Rules(msgspec.Struct, frozen=True):
    """How a desk goes about its work. The defaults are ours."""

    #: Who goes first: what the queue needs last ("look-ahead"), or what was loaded first ("fifo").
    eviction: Literal["look-ahead", "fifo"] = "look-ahead"
    #: Loads at the same time. Two keep a copy engine busy while the next file is being read; unmeasured.
    loads: int = 2
    #: Nothing starts before what came before it has started.
    in_order: bool = False
    #: How many batches may start before one that waits for room for its model. Bounds starvation; unmeasured.
    overtakes: int = 8
    #: One batch at a time, and the fetch of its model occupies the device (Compass; see `Desk`).
    fetch_blocks: bool = False
    #: Queued batches that are looked at for models to load before they have come up; 0 looks at none.
    look_ahead: int = 16
    #: Models that may be loading ahead in this way at a time; 0 switches loading ahead off.
    prefetch: int = 2
    #: What loading ahead may evict: nothing, what no batch needs, or also what is needed later. With Compass' models
    #: and batches sent at random, "later" was no faster and loaded up to 1.4 times as much; it pays with `in_order`.
    prefetch_evicts: Literal["nothing", "idle", "later"] = "idle"
    #: A hint may evict what is neither queued for nor hinted at; otherwise it takes free room only.
    hints_evict: bool = True
    #: `WorkerRow.wait_ns` counts the batch that runs, whole.
    counts_running: bool = True


#: The Compass worker as in the authors' Cascade branch of 12 Aug 2023: one model ahead out of three tasks, never by
#: eviction. The values behind the paper's figures are unknown.
COMPASS = Rules(
    in_order=True, fetch_blocks=True, look_ahead=3, prefetch=1, prefetch_evicts="nothing", hints_evict=False
)
#: The worker of the authors' simulator: first in, first out, no prefetch, and the running task left out of the wait.
AUTHORS_SIMULATOR = Rules(
    eviction="fifo",
    in_order=True,
    fetch_blocks=True,
    look_ahead=0,
    prefetch=0,
    prefetch_evicts="nothing",
    hints_evict=False,
    counts_running=False,
)


class Ticket(msgspec.Struct, eq=False):
    """A batch that was taken and has not ended."""

    batch: int
    weights: str
    nbytes: int
    share_pct: int
    #: Place in the queue: (order, arrival).
    key: tuple[int, int]
    expected_ns: int
    earliest_ns: int
    #: 0 is never.
    latest_ns: int
    #: It could have started but for its model.
    missed: bool = False
    #: Batches that started before it while it waited for room for its model.
    overtaken: int = 0
    #: When it began or is expected to; -1 while it is queued or its fetch occupies the device.
    begin_ns: int = -1


class Start(msgspec.Struct, frozen=True, gc=False):
    """Run the batch, once `wait_ns` have gone by (copying evicted models out; only with `Rules.fetch_blocks`)."""

    batch: int
    #: Its model was there when the device was free for it.
    hit: bool
    wait_ns: int = 0


class Load(msgspec.Struct, frozen=True, gc=False):
    """Bring a model into the device's memory, from host memory ("host") or from outside ("absent")."""

    weights: str
    tier: str
    #: The batch that needs it, or `NOBODY`.
    batch: int


class Evict(msgspec.Struct, frozen=True, gc=False):
    """Let a model go; `reason` is for people."""

    weights: str
    nbytes: int
    reason: str
    #: The batch that needs the room, or `NOBODY`.
    batch: int
    #: The model that comes in its place; empty if somebody merely wanted it gone.
    newcomer: str = ""
    #: Host memory keeps a copy.
    to_host: bool = True


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """The batch is not going to run here. `reason` is one of those of `control.BatchFailed`."""

    batch: int
    reason: str
    detail: str


class Wake(msgspec.Struct, frozen=True, gc=False):
    """Call `Desk.tick` at this time."""

    at_ns: int


DeskAction = Start | Load | Evict | Refuse | Wake
