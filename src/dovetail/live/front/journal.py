"""The run log of a live system: as `record.log` writes it, but its troubles are its own.

A service must not end because a disk is full, nor wait because it is slow: a thread writes (`background`). The
first error is told and ends the log, which stays readable up to there. What would have been written after it is
dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from ...control import Action, Event
from ...record.log import LogWriter

__all__ = ["Journal"]


class Journal:
    """A log that never raises; without a writer it does nothing."""

    def __init__(self, writer: LogWriter | None, say: Callable[[str], None]) -> None:
        self._writer = writer
        self._say = say

    def step(self, event: Event, actions: list[Action], note: str) -> None:
        """Append one step."""
        if self._writer is not None:
            self._try(lambda writer: writer.step(event, actions, note))

    def flush(self) -> None:
        """Let readers see what was written."""
        self._try(lambda writer: writer.flush())

    def close(self) -> None:
        """End it for good."""
        self._try(lambda writer: writer.close())
        self._writer = None

    def _try(self, do: Callable[[LogWriter], None]) -> None:
        if self._writer is not None:
            try:
                do(self._writer)
            except Exception as error:  # a value that msgpack cannot hold, too
                self._writer = None
                self._say(f"{error}; serving goes on without a log")
