"""What the controller asks a scaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ..state import Cluster, Queue, Worker
from ..workflow.graph import StageSpec

__all__ = ["Adjustment", "Scaler", "SliceWish"]


class SliceWish(msgspec.Struct, frozen=True):
    """A slice that should be: so much of a worker for a stage, or (a quota of nought) no more."""

    stage: str
    worker: int
    share_pct: int
    quota_pct: int
    #: Largest batch that is in time in it.
    batch: int
    reason: str
    #: Number of the slice that is resized or closed; 0: a new one.
    slice: int = 0
    #: What it has is all that it may have; otherwise it may use what nobody else does.
    limits: bool = True


class Adjustment(msgspec.Struct, frozen=True):
    """Which models should come and go now, and when to ask again."""

    #: (worker, stage)
    loads: tuple[tuple[int, str], ...] = ()
    #: (worker, stage, reason); a model in use stays, whatever is said here.
    evictions: tuple[tuple[int, str, str], ...] = ()
    #: 0: only when work waits.
    next_ns: int = 0
    #: Slices that come, change or go.
    slices: tuple[SliceWish, ...] = ()
    #: Devices that there should be at least; None: as many as there are.
    devices: int | None = None
    #: Why so many.
    reason: str = ""
    #: (worker, reason): devices that are not needed any more. What runs there runs on.
    drains: tuple[tuple[int, str], ...] = ()


class Scaler(Protocol):
    """Answers how many."""

    @property
    def adjusts(self) -> bool:
        """False for a scaler that decides once, when a worker joins; it is never asked again."""
        ...

    @property
    def dry(self) -> bool:
        """It only says what it would do."""
        ...

    def manages(self, stage: StageSpec) -> bool:
        """Whether it sets the slices of a stage: its batches then run in these and nowhere else."""
        ...

    def residents(self, worker: Worker, stages: Sequence[StageSpec]) -> Sequence[StageSpec] | None:
        """Of the stages that a new worker could run, those whose models it should load and keep, in this order.

        None: it brings what its batches need, by itself.
        """
        ...

    def adjust(self, cluster: Cluster, starved: Sequence[Queue], now_ns: int) -> Adjustment:
        """Asked when work waits that could not be placed (`starved`), and at `next_ns`."""
        ...
