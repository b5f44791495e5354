"""What the controller asks a scaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..state import Worker
from ..workflow.graph import StageSpec

__all__ = ["Scaler"]


class Scaler(Protocol):
    """Answers how many."""

    def residents(self, worker: Worker, stages: Sequence[StageSpec]) -> Sequence[StageSpec]:
        """Stages whose model a worker that has just joined should load, in this order."""
        ...
