"""Profiles as the predictor reads them: the time of a stage on a kind of device, by batch and resources.

An entry is either a fitted curve over batch and share (catalogue devices) or a grid of measured points over batch and
cores (the profiler). Both answer the same question, so nobody above needs to know which it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import msgspec

from ..errors import ProfileError
from .curve import Curve

__all__ = ["Entry", "Point", "ProfileTable"]


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One measured configuration."""

    batch: int
    cpus: int
    mean_ns: int
    #: Standard deviation over mean.
    spread: float
    runs: int


class Entry(msgspec.Struct, frozen=True):
    """What is known of one stage on one kind of device."""

    stage: str
    kind: str
    curve: Curve | None = None
    points: tuple[Point, ...] = ()
    load_ns: int = 0
    memory_bytes: int = 0
    #: Standard deviation over mean of a single run; what simulated devices scatter by.
    spread: float = 0.0
    source: str = ""
    #: Work of one item on one processor core before and after the device's; cores share the items of a batch.
    host_ns: int = 0

    def latency_ns(self, items: int, cpus: int, share_pct: int) -> int:
        """Mean run time of a batch of `items`."""
        if self.curve is not None:
            return self.host_ns * -(-items // max(1, cpus)) + self.curve.latency_ns(items, share_pct)
        usable = max((p.cpus for p in self.points if p.cpus <= max(1, cpus)), default=0)
        row = sorted((p.batch, p.mean_ns) for p in self.points if p.cpus == usable)
        if not row:
            raise ProfileError(
                f"the profile of stage {self.stage!r} on {self.kind!r} has no points; profile it again"
            )
        batches = [b for b, _ in row]
        at = bisect_left(batches, items)
        if at < len(row) and row[at][0] == items:
            return row[at][1]
        if len(row) == 1:
            return row[0][1] * items // row[0][0]
        at = min(max(at, 1), len(row) - 1)
        (b0, t0), (b1, t1) = row[at - 1], row[at]
        return max(1, t0 + (t1 - t0) * (items - b0) // (b1 - b0))


class ProfileTable:
    """Entries by stage and kind of device, with answers remembered."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = {(e.stage, e.kind): e for e in entries}
        self._answers: dict[tuple[str, str, int, int, int], int] = {}

    def entry(self, stage: str, kind: str) -> Entry | None:
        """What is known, or None."""
        return self.entries.get((stage, kind))

    def latency_ns(self, stage: str, kind: str, items: int, cpus: int, share_pct: int) -> int | None:
        """Mean run time, or None if the stage has no profile on this kind of device."""
        key = (stage, kind, items, cpus, share_pct)
        answer = self._answers.get(key)
        if answer is None:
            entry = self.entries.get((stage, kind))
            if entry is None:
                return None
            answer = self._answers[key] = entry.latency_ns(items, cpus, share_pct)
        return answer
