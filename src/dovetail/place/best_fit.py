"""Best fit: the worker that has room and the least share left over."""

from __future__ import annotations

from collections.abc import Mapping

from ..state import Config, Queue, Worker

__all__ = ["BestFitPlacer"]


class BestFitPlacer:
    """The tightest worker that has room, in order of joining among equals.

    Packing tightly keeps whole devices free for large configurations; spreading out would strand them.
    """

    def choose(self, queue: Queue, config: Config, holders: Mapping[int, Worker], now_ns: int) -> Worker | None:
        """The tightest fit, or None."""
        fits = [w for w in holders.values() if w.free_pct >= config.share_pct and w.free_cpus >= config.cpus]
        return min(fits, key=lambda w: w.free_pct, default=None)
