"""A planner to derive others from: the real one may be compiled, and then nothing interpreted can derive from it."""

from __future__ import annotations

from typing import Any

from dovetail.schedule import FirstCome


class AlmostFirstCome:
    """First come, first served, but for what a subclass says."""

    def __init__(self) -> None:
        self.plain = FirstCome()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)
