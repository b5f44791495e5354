"""Throughput and latency of a stage by batch, share and quota: which points to measure, and what lies between them.

Rules of this file
- Few points. The corners of the grid come first. Then each axis is halved on one line (`Grid.line`). A half is halved
  again where what was measured there is off what its ends had promised, the furthest off first: where the surface
  bends. Last come two points inside, which are not fitted. They say how good the fit is.
- Which point is next follows from the grid and the points alone. So a run that was interrupted goes on where it was.
- The surface is linear between corners, in logarithms of all. Along each axis it is put right by what was measured on
  that axis's line. It is monotone nowhere by force: a larger batch may be slower, and then it is seen to be.
- No clock, no file, no device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from math import exp, log

import msgspec

__all__ = ["Grid", "Place", "SlicePoint", "Surface", "fit_surface", "next_place"]

#: (batch, share in per cent, quota in per cent)
Place = tuple[int, int, int]
#: An interval is halved again if its middle is off by more than this [our choice: what a measurement scatters by].
BEND = 0.05


class Grid(msgspec.Struct, frozen=True):
    """Values of each axis, each in ascending order."""

    batches: tuple[int, ...]
    shares: tuple[int, ...]
    quotas: tuple[int, ...]

    @property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """All three."""
        return self.batches, self.shares, self.quotas

    @property
    def corners(self) -> list[Place]:
        """The ends of all axes, the largest of all first."""
        ends = [tuple(dict.fromkeys((axis[-1], axis[0]))) for axis in self.axes]
        return [(batch, share, quota) for batch, share, quota in product(*ends)]

    @property
    def inside(self) -> list[Place]:
        """Points by which the fit is judged: the middle of all axes, and of batch and quota at the least share."""
        batch, share, quota = (middle(axis, 0, len(axis) - 1) for axis in self.axes)
        found = [
            (self.batches[batch], self.shares[share], self.quotas[quota]),
            (self.batches[batch], self.shares[0], self.quotas[quota]),
        ]
        lines = {*self.corners, *(place for axis in range(3) for place in self.line(axis))}
        return [place for place in dict.fromkeys(found) if place not in lines]

    def line(self, axis: int) -> list[Place]:
        """The points of an axis where the others are largest; of quotas where the share is least.

        Several threads wake up late after every wait, so that on a whole processor a quota's line is mostly noise.
        """
        top = [values[-1] for values in self.axes]
        if axis == 2:
            top[1] = self.shares[0]
        found: list[Place] = []
        for value in self.axes[axis]:
            batch, share, quota = (value if i == axis else top[i] for i in range(3))
            found.append((batch, share, quota))
        return found


class SlicePoint(msgspec.Struct, frozen=True, array_like=True):
    """What was measured in one slice, alone, with a batch always waiting."""

    batch: int
    share_pct: int
    quota_pct: int
    #: Items per second.
    per_s: float
    #: Of a batch, from when it came to its end.
    p50_ns: int
    p95_ns: int
    p99_ns: int
    #: Weights, and what running takes beside them.
    memory_bytes: int
    runs: int

    @property
    def place(self) -> Place:
        """Where it is on the grid."""
        return self.batch, self.share_pct, self.quota_pct


def middle(axis: Sequence[int], low: int, high: int) -> int:
    """The value between two of an axis that is closest to their middle, by logarithm; `low` if there is none."""
    inner = range(low + 1, high)
    centre = (log(axis[low]) + log(axis[high])) / 2
    return min(inner, key=lambda i: (abs(log(axis[i]) - centre), i), default=low)


def next_place(grid: Grid, found: Mapping[Place, float], most: int) -> Place | None:
    """Where to measure next, given what was measured; None: it is enough."""
    left = [place for place in grid.corners if place not in found]
    if left:
        return left[0]
    held_back = [place for place in grid.inside if place not in found]
    if len(found) < most - len(held_back):
        wishes: list[tuple[float, int, Place]] = []
        for axis in range(3):
            line = grid.line(axis)
            wishes += [(-off, axis, place) for off, place in _open(grid.axes[axis], line, found, 0, len(line) - 1)]
        if wishes:
            return min(wishes)[2]
    return held_back[0] if held_back and len(found) < most else None


def _open(
    axis: Sequence[int], line: Sequence[Place], found: Mapping[Place, float], low: int, high: int, off: float = 1e9
) -> list[tuple[float, Place]]:
    """Middles that are worth measuring, each with how far off the one before was."""
    at = middle(axis, low, high)
    if at == low:
        return []
    if line[at] not in found:
        return [(off, line[at])]
    part = (log(axis[at]) - log(axis[low])) / (log(axis[high]) - log(axis[low]))
    promised = (1 - part) * log(found[line[low]]) + part * log(found[line[high]])
    off = abs(log(found[line[at]]) - promised)
    if off <= BEND:
        return []
    return [*_open(axis, line, found, low, at, off), *_open(axis, line, found, at, high, off)]


class Surface(msgspec.Struct, frozen=True):
    """A quantity over the grid, fitted to points; and how far it is off where it was not fitted."""

    grid: Grid
    #: Logarithms at the corners, and along each axis what is added to what they promise.
    corners: dict[Place, float]
    added: tuple[dict[int, float], dict[int, float], dict[int, float]]
    #: Place -> what was measured there over what the surface says, less one; of points that were not fitted.
    errors: dict[Place, float]

    def at(self, batch: float, share_pct: float, quota_pct: float) -> float:
        """The quantity there; beyond the grid that of its edge."""
        place = (batch, share_pct, quota_pct)
        total = _between_corners(self.grid, self.corners, place)
        for axis, added in enumerate(self.added):
            total += _interpolated(added, place[axis])
        return exp(total)

    @property
    def worst(self) -> float:
        """The largest error, without its sign; 0 if there was nothing to judge by."""
        return max(map(abs, self.errors.values()), default=0.0)


def fit_surface(
    grid: Grid, points: Collection[SlicePoint], value: Callable[[SlicePoint], float] = lambda point: point.per_s
) -> Surface | None:
    """The surface of a quantity; None before all corners are measured."""
    found = {point.place: log(max(value(point), 1e-9)) for point in points}
    corners = {place: found[place] for place in grid.corners if place in found}
    if len(corners) < len(grid.corners):
        return None
    added: list[dict[int, float]] = []
    for axis in range(3):
        line = {place[axis]: place for place in grid.line(axis) if place in found}
        added.append({at: found[place] - _between_corners(grid, corners, place) for at, place in line.items()})
    surface = Surface(grid, corners, (added[0], added[1], added[2]), {})
    fitted = {*corners, *(place for axis in range(3) for place in grid.line(axis))}
    errors = {
        place: exp(logarithm) / surface.at(*place) - 1 for place, logarithm in found.items() if place not in fitted
    }
    return msgspec.structs.replace(surface, errors=errors)


def _between_corners(grid: Grid, corners: Mapping[Place, float], place: tuple[float, float, float]) -> float:
    """Linear in each axis between its ends."""
    weights = []
    for axis, value in zip(grid.axes, place, strict=True):
        low, high = axis[0], axis[-1]
        part = 1.0 if low == high else (log(value) - log(low)) / (log(high) - log(low))
        weights.append({low: 1 - min(1.0, max(0.0, part)), high: min(1.0, max(0.0, part))})
        if low == high:
            weights[-1] = {high: 1.0}
    return sum(
        weights[0][batch] * weights[1][share] * weights[2][quota] * logarithm
        for (batch, share, quota), logarithm in corners.items()
    )


def _interpolated(added: Mapping[int, float], value: float) -> float:
    """What is added at a value of an axis, linear by logarithm between those that are known."""
    known = sorted(added)
    at = bisect_left(known, value)
    if at == len(known) or at == 0:
        return added[known[min(at, len(known) - 1)]]
    low, high = known[at - 1], known[at]
    part = (log(value) - log(low)) / (log(high) - log(low))
    return (1 - part) * added[low] + part * added[high]
