"""What the controller asks a predictor."""

from __future__ import annotations

from typing import Protocol

from ..state import Batch, Config, Worker
from ..workflow.graph import StageSpec

__all__ = ["Predictor"]


class Predictor(Protocol):
    """Answers how long."""

    def duration_ns(self, stage: StageSpec, items: int, config: Config, worker: Worker) -> int:
        """Expected run time of `items` items of `stage` in `config` on `worker` as it is now."""
        ...

    def observe(self, batch: Batch, duration_ns: int) -> None:
        """A batch took this long."""
        ...
