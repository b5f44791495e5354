"""What the controller asks a scaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ..state import Cluster, Queue, Worker
from ..workflow.graph import StageSpec

__all__ = ["Adjustment", "Scaler"]


class Adjustment(msgspec.Struct, frozen=True):
    """Which models should come and go now, and when to ask again."""

    #: (worker, stage)
    loads: tuple[tuple[int, str], ...] = ()
    #: (worker, stage, reason); a model in use stays, whatever is said here.
    evictions: tuple[tuple[int, str, str], ...] = ()
    #: 0: only when work waits.
    next_ns: int = 0


class Scaler(Protocol):
    """Answers how many."""

    @property
    def adjusts(self) -> bool:
        """False for a scaler that decides once, when a worker joins; it is never asked again."""
        ...

    def residents(self, worker: Worker, stages: Sequence[StageSpec]) -> Sequence[StageSpec] | None:
        """Of the stages that a new worker could run, those whose models it should load and keep, in this order.

        None: it brings what its batches need, by itself.
        """
        ...

    def adjust(self, cluster: Cluster, starved: Sequence[Queue], now_ns: int) -> Adjustment:
        """Asked when work waits that could not be placed (`starved`), and at `next_ns`."""
        ...
