"""The workers that Compass was built for and drawn with, as rules of our one Device machine."""

from __future__ import annotations

from ...device import Rules

__all__ = ["AUTHORS_SIMULATOR", "COMPASS"]

#: The Compass worker as in the authors' Cascade branch of 12 Aug 2023: one model ahead out of three tasks, never by
#: eviction. The values behind the paper's figures are unknown.
COMPASS = Rules(
    in_order=True, fetch_blocks=True, look_ahead=3, prefetch=1, prefetch_evicts="nothing", hints_evict=False
)
#: The worker of the authors' simulator: first in, first out, no prefetch, and the running task left out of the wait.
AUTHORS_SIMULATOR = Rules(
    eviction="fifo",
    in_order=True,
    fetch_blocks=True,
    look_ahead=0,
    prefetch=0,
    prefetch_evicts="nothing",
    hints_evict=False,
    counts_running=False,
)
