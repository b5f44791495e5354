"""One step under way: its time, its number, what it has led to so far, and the timers that are set."""

from __future__ import annotations

from .actions import Action, SetTimer

__all__ = ["Step"]


class Step:
    """What every part of the controller reads and writes while it takes an event."""

    __slots__ = ("_last_timer", "now_ns", "number", "out", "timers")

    def __init__(self) -> None:
        self.now_ns = 0
        #: Number of the current step; the cause of whatever it leads to.
        self.number = 0
        self.out: list[Action] = []
        #: Timer -> what it is for: a request that expires, a queue that was held (of no name: a worker is about to be
        #: free), or (None) the scaler.
        self.timers: dict[int, int | str | None] = {}
        self._last_timer = 0

    def set_timer(self, at_ns: int, purpose: int | str | None, reason: str = "") -> int:
        """Ask to be told when this time has come; the timer's number."""
        self._last_timer += 1
        self.timers[self._last_timer] = purpose
        self.out.append(SetTimer(self.number, self._last_timer, at_ns, reason))
        return self._last_timer
