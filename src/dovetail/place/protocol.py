"""What the controller asks a placer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..state import Config, Queue, Worker

__all__ = ["Placer"]


class Placer(Protocol):
    """Answers where."""

    def choose(self, queue: Queue, config: Config, holders: Mapping[int, Worker], now_ns: int) -> Worker | None:
        """A worker among `holders` (those that hold the queue's model) with the share free, or None to wait."""
        ...
