"""One Pareto front of (time, cost), and how fronts are put one after the other and side by side.

Rules of this file
- A front's times ascend strictly, its costs descend strictly: more time never costs more. The cheapest plan within a
  budget is the last point that is not above it, and that is a bisection.
- Times are integers and are never rounded: every point is a plan that exists, with its own time. What a resolution
  above 1 ns does is to *drop* points: of all points in one stretch of time of that length only the cheapest stays.
  A dropped plan is at most one stretch faster than a kept one that costs no more. A resolution of 1 drops nothing.
- The fastest point always stays, so what can be met at all is never called impossible.
- Points above the horizon are dropped, as nobody has that much time. A front is never empty, though: its fastest stays.
- A point knows what it was made of (`first`, `rest`, `picks`: positions in the fronts that were put together), so
  that a whole plan can be read back from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["NOTHING", "Floats", "Front", "Ints", "beside", "followed_by", "position", "sieve"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Front:
    """Points in order of time. `mean_ns` and `var_ns2` are those of the plan's slowest path, or an upper bound."""

    __slots__ = ("cost_usd", "first", "mean_ns", "picks", "rest", "time_ns", "var_ns2")

    def __init__(
        self,
        time_ns: Ints,
        cost_usd: Floats,
        mean_ns: Floats,
        var_ns2: Floats,
        *,
        first: Ints | None = None,
        rest: Ints | None = None,
        picks: Sequence[Ints] = (),
    ) -> None:
        self.time_ns = time_ns
        self.cost_usd = cost_usd
        self.mean_ns = mean_ns
        self.var_ns2 = var_ns2
        none = np.zeros(0, np.int64)
        #: Of a series: which option or which point of its first part, and which point of what follows.
        self.first = none if first is None else first
        self.rest = none if rest is None else rest
        #: Of branches side by side: which point of each.
        self.picks = picks

    def take(self, points: Ints) -> Front:
        """Only these points."""
        return Front(
            self.time_ns[points],
            self.cost_usd[points],
            self.mean_ns[points],
            self.var_ns2[points],
            first=self.first[points] if len(self.first) else None,
            rest=self.rest[points] if len(self.rest) else None,
            picks=[pick[points] for pick in self.picks],
        )


#: What follows the last part: one plan that takes no time and costs nothing.
NOTHING = Front(np.zeros(1, np.int64), np.zeros(1), np.zeros(1), np.zeros(1))


def position(time_ns: Ints, budget_ns: Ints) -> Ints:
    """Per budget, the last point that is not above it; −1 if there is none."""
    return np.searchsorted(time_ns, budget_ns, side="right") - 1


def sieve(time_ns: Ints, cost_usd: Floats, ends: Sequence[int], resolution_ns: int, horizon_ns: int) -> list[Ints]:
    """For each end, the candidates before it that stay on the front, in order of time.

    `ends` ascend: several fronts, each of a longer run of the same candidates, are found in one go.
    """
    if resolution_ns <= 1:
        return _sieve_exactly(time_ns, cost_usd, ends, horizon_ns)
    # One cell per stretch of time; the candidates of a cell compete for it, cheapest wins, a later one if equal.
    origin = int(time_ns.min())
    cells = max(0, horizon_ns - origin) // resolution_ns + 1
    cell = np.minimum((time_ns - origin) // resolution_ns, cells)
    cell[time_ns > horizon_ns] = cells  # the last is for those above the horizon
    least = np.full(cells + 1, np.inf)
    winner = np.zeros(cells + 1, np.int64)
    fastest, begin = 0, 0
    fronts: list[Ints] = []
    for end in ends:
        here, price = cell[begin:end], cost_usd[begin:end]
        np.minimum.at(least, here, price)
        won = np.flatnonzero(price == least[here])
        winner[here[won]] = begin + won
        if begin < end:
            quickest = begin + int(np.argmin(time_ns[begin:end]))
            if begin == 0 or time_ns[quickest] < time_ns[fastest]:
                fastest = quickest
        best = least[:cells]
        cheaper = np.flatnonzero(best < np.concatenate(([np.inf], np.minimum.accumulate(best)[:-1])))
        kept = winner[cheaper]
        if not len(kept) or time_ns[fastest] < time_ns[kept[0]]:
            same_cost = len(kept) > 0 and cost_usd[fastest] <= cost_usd[kept[0]]
            kept = np.concatenate(([fastest], kept[1:] if same_cost else kept))
        fronts.append(kept)
        begin = end
    return fronts


def _sieve_exactly(time_ns: Ints, cost_usd: Floats, ends: Sequence[int], horizon_ns: int) -> list[Ints]:
    """The same without dropping anything but what another candidate beats."""
    fronts: list[Ints] = []
    kept, begin = np.zeros(0, np.int64), 0
    for end in ends:
        kept = np.concatenate((kept, np.arange(begin, end, dtype=np.int64)))
        within = kept[time_ns[kept] <= horizon_ns]
        if not len(within):
            within = kept[time_ns[kept] == time_ns[kept].min()]
        order = within[np.lexsort((cost_usd[within], time_ns[within]))]
        price = cost_usd[order]
        kept = order[price < np.concatenate(([np.inf], np.minimum.accumulate(price)[:-1]))]
        fronts.append(kept)
        begin = end
    return fronts


def followed_by(
    first: Front, labels: Ints, rest: Front, ends: Sequence[int], resolution_ns: int, horizon_ns: int
) -> list[Front]:
    """Every point of `first` before each end, followed by every point of `rest`; times, costs and variances add up.

    `first` need not be in order; `labels` is what the result's `first` says of each of its points.
    """
    width = len(rest.time_ns)
    time_ns = (first.time_ns[:, None] + rest.time_ns).ravel()
    cost_usd = (first.cost_usd[:, None] + rest.cost_usd).ravel()
    fronts = []
    for kept in sieve(time_ns, cost_usd, [end * width for end in ends], resolution_ns, horizon_ns):
        a, b = np.divmod(kept, width)
        mean_ns, var_ns2 = first.mean_ns[a] + rest.mean_ns[b], first.var_ns2[a] + rest.var_ns2[b]
        fronts.append(Front(time_ns[kept], cost_usd[kept], mean_ns, var_ns2, first=labels[a], rest=b))
    return fronts


def beside(branches: Sequence[Front], resolution_ns: int, horizon_ns: int) -> Front:
    """Branches that begin together, done when all are: the slowest counts, and all are paid for.

    For a given end, each branch is best at its cheapest point that is not later; so only the branches' own times come up.
    """
    earliest = max(int(front.time_ns[0]) for front in branches)
    times = np.concatenate([front.time_ns[front.time_ns > earliest] for front in branches])
    time_ns = np.concatenate(([earliest], np.unique(times)))
    picks = [position(front.time_ns, time_ns) for front in branches]
    cost_usd = np.zeros(len(time_ns))
    for front, pick in zip(branches, picks, strict=True):
        cost_usd = cost_usd + front.cost_usd[pick]
    # Each path through the block has at most the largest mean and at most the largest variance.
    mean_ns = np.max([front.mean_ns[pick] for front, pick in zip(branches, picks, strict=True)], axis=0)
    var_ns2 = np.max([front.var_ns2[pick] for front, pick in zip(branches, picks, strict=True)], axis=0)
    kept = sieve(time_ns, cost_usd, [len(time_ns)], resolution_ns, horizon_ns)[0]
    return Front(time_ns, cost_usd, mean_ns, var_ns2, picks=picks).take(kept)
