"""How long one batch runs, by its size and by the share of the device it may use.

For each measured batch size the time is ``max(floor, work / share)``: below some share the device is the limit
and time grows as the share shrinks; above it the host, the launches or the last wave of kernels are, and more
share buys nothing. Two numbers per batch fit the 52 vision models that RaPP measured on a V100 (batch 1 to 8,
share 5 to 100 %) with a mean error of 5 %; ``floor + work / share`` does slightly worse with as many.

Rules of this file
- Integers in, integers out: nanoseconds, whole percent. The same question has the same answer on any machine.
- Monotone by construction: a larger batch is never faster, a larger share is never slower. A planner may
  prune on that, so `Curve` refuses tables that break it and `fit` never makes one.
- It knows nothing of devices, models or files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

__all__ = ["Curve", "Fit", "fit"]


class Curve(msgspec.Struct, frozen=True):
    """Time by batch size and share, from one floor and one work per measured batch size.

    `floor_ns` is the least time, whatever the share. `work_ns` is the time at the whole device if time were
    purely proportional to 1/share; at most shares it is less than the floor.
    """

    batches: tuple[int, ...]
    floor_ns: tuple[int, ...]
    work_ns: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.batches or not len(self.batches) == len(self.floor_ns) == len(self.work_ns):
            raise ValueError("a curve needs one floor and one work for each of its batch sizes, and at least one")
        if self.batches[0] < 1 or any(a >= b for a, b in pairwise(self.batches)):
            raise ValueError(f"batch sizes must be positive and ascending, not {self.batches}")
        for what, row in (("floor", self.floor_ns), ("work", self.work_ns)):
            if row[0] < 1 or any(a > b for a, b in pairwise(row)):
                raise ValueError(f"{what} times must be positive and never less for a larger batch, not {row}")

    def at(self, batch: int) -> tuple[int, int]:
        """Floor and work of that batch size, in nanoseconds.

        Between measured sizes both are linear; beyond the last they go on with the last slope. Below the first
        the first stands: nothing shows that a smaller batch is faster. A curve of a single size grows in
        proportion to the batch, so that it promises no gain from batching that nobody measured.
        """
        if batch < 1:
            raise ValueError(f"a batch has at least one item, not {batch}")
        first, last = self.batches[0], self.batches[-1]
        if batch <= first:
            return self.floor_ns[0], self.work_ns[0]
        if len(self.batches) == 1:
            return self.floor_ns[0] * batch // first, self.work_ns[0] * batch // first
        right = bisect_left(self.batches, batch) if batch <= last else len(self.batches) - 1
        left = right - 1
        step, span = batch - self.batches[left], self.batches[right] - self.batches[left]
        return (
            self.floor_ns[left] + (self.floor_ns[right] - self.floor_ns[left]) * step // span,
            self.work_ns[left] + (self.work_ns[right] - self.work_ns[left]) * step // span,
        )

    def latency_ns(self, batch: int, share_pct: int) -> int:
        """Time of one batch that has `share_pct` percent of the device to itself, rounded up."""
        if not 1 <= share_pct <= 100:
            raise ValueError(f"a share is 1 to 100 percent of a device, not {share_pct}")
        floor_ns, work_ns = self.at(batch)
        return max(floor_ns, -(-work_ns * 100 // share_pct))

    def scaled(self, floor_factor: float, work_factor: float) -> Curve:
        """The same shape on a device whose floors and works are so many times as long."""
        return Curve(
            self.batches,
            tuple(max(1, round(ns * floor_factor)) for ns in self.floor_ns),
            tuple(max(1, round(ns * work_factor)) for ns in self.work_ns),
        )


class Fit(msgspec.Struct, frozen=True):
    """A curve and how far it is from the measurements it was made of (absolute relative error, percent)."""

    curve: Curve
    mape_pct: float
    p90_pct: float
    points: int


def fit(times_ns: Mapping[int, Mapping[int, int]]) -> Fit:
    """The curve nearest to measured times, given as ``{batch: {share_pct: nanoseconds}}``.

    Nearest is the least mean absolute relative error, which one bad measurement among twenty cannot move far.
    Each batch size is fitted alone; sizes that came out in the wrong order are then pooled to their mean, and
    the errors are those of the pooled curve. Where time does not depend on the share at all the work is not
    seen, and the fit gives the most it can be: the time at the smallest share, times that share.
    """
    batches = sorted(times_ns)
    pairs = [_fit_one(times_ns[batch]) for batch in batches]
    curve = Curve(tuple(batches), _ascending([f for f, _ in pairs]), _ascending([w for _, w in pairs]))
    errors = sorted(
        abs(curve.latency_ns(batch, share) - ns) / ns for batch in batches for share, ns in times_ns[batch].items()
    )
    p90 = errors[-(-len(errors) * 9 // 10) - 1]
    return Fit(curve, 100 * sum(errors) / len(errors), 100 * p90, len(errors))


def _fit_one(times_ns: Mapping[int, int]) -> tuple[int, int]:
    """Floor and work with the least error. The best of each goes through a measurement, so all are tried."""
    points = sorted(times_ns.items())
    best = (float("inf"), 0, 0)
    for floor_ns in sorted({ns for _, ns in points}):
        for work_ns in sorted({max(1, share * ns // 100) for share, ns in points}):
            error = sum(abs(max(floor_ns, work_ns * 100 / share) - ns) / ns for share, ns in points)
            best = min(best, (error, floor_ns, work_ns))
    return best[1], best[2]


def _ascending(values: Sequence[int]) -> tuple[int, ...]:
    """The nearest ascending row: neighbours in the wrong order are replaced by their mean."""
    pools: list[tuple[int, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] * count > total * pools[-1][1]:
            earlier_total, earlier_count = pools.pop()
            total, count = total + earlier_total, count + earlier_count
        pools.append((total, count))
    return tuple(total // count for total, count in pools for _ in range(count))
