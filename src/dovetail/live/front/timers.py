"""The controller's timers, on the clock of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...control import Event, SetTimer, TimerFired
from ...units import SECOND

__all__ = ["Timers"]


class Timers:
    """Timers that have not fired, by number."""

    def __init__(self, now_ns: Callable[[], int], post: Callable[[Event], None]) -> None:
        self._now_ns = now_ns
        self._post = post
        self._handles: dict[int, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._handles)

    def set(self, action: SetTimer) -> None:
        """Let it fire at its time."""
        delay_s = max(0, action.at_ns - self._now_ns()) / SECOND
        self._handles[action.timer] = self._loop.call_later(delay_s, self._fire, action)

    def _fire(self, action: SetTimer) -> None:
        now = self._now_ns()
        if now < action.at_ns:  # the loop's clock is a float and may be a hair early
            self.set(action)
            return
        del self._handles[action.timer]
        self._post(TimerFired(now, action.cause, action.timer))

    def cancel(self, timer: int) -> None:
        """It is of no use any more, if it ever was set."""
        handle = self._handles.pop(timer, None)
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        """None of them fires any more."""
        for handle in self._handles.values():
            handle.cancel()
