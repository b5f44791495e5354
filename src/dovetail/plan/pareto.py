"""One Pareto front of (time, cost), and how fronts are put one after the other and side by side.

Rules of this file
- A front's times ascend strictly, its costs descend strictly: more time never costs more. The cheapest plan within
  a budget is the last point that is not above it, and that is a bisection.
- Times are integers and never rounded: every point is a plan that exists, with its own time.
- A front that has grown too long is thinned: of all points in one step of time only the cheapest stays, and the
  fastest of all. What was dropped is less than a step faster than a point that stays and costs no more; `loss_ns`
  adds that up. Fronts of eight measured models in a row stay short enough (docs/results/plan.md): nothing is lost.
- The fastest point always stays, so what can be met at all is never called impossible.
- Points above the horizon are dropped, as nobody has that much time; if all are above, the fastest stays.
- A point knows what it was made of (`first`, `rest`, `picks`: positions in the fronts that were put together), so
  that a whole plan can be read back from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["NOTHING", "Floats", "Ints", "Limits", "ParetoFront", "beside", "followed_by", "position", "sieve"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Fewer candidates are sorted at once; more are first compared by cell of time.
_FEW = 2048
_CELLS = 1024


class Limits(NamedTuple):
    """No plan may take longer than `horizon_ns`; fronts of more than `points` are thinned to steps of `step_ns`."""

    horizon_ns: int
    points: int
    step_ns: int


class ParetoFront:
    """Points in order of time. `mean_ns` and `var_ns2` are those of the plan's slowest path, or an upper bound."""

    __slots__ = ("cost_usd", "first", "loss_ns", "mean_ns", "picks", "rest", "time_ns", "var_ns2")

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
        loss_ns: int = 0,
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
        #: Within B + loss_ns there is a plan that costs no more than the best within B.
        self.loss_ns = loss_ns

    def take(self, points: Ints) -> ParetoFront:
        """Only these points."""
        return ParetoFront(
            self.time_ns[points],
            self.cost_usd[points],
            self.mean_ns[points],
            self.var_ns2[points],
            first=self.first[points] if len(self.first) else None,
            rest=self.rest[points] if len(self.rest) else None,
            picks=[pick[points] for pick in self.picks],
            loss_ns=self.loss_ns,
        )

    def thinned(self, limits: Limits) -> ParetoFront:
        """Itself, or with one point per step of time if it is too long."""
        if len(self.time_ns) <= limits.points:
            return self
        last_of_step = np.flatnonzero(_last_of_equals(self.time_ns // limits.step_ns))
        kept = last_of_step if last_of_step[0] == 0 else np.concatenate(([0], last_of_step))
        thin = self.take(kept)
        thin.loss_ns += limits.step_ns - 1
        return thin


#: What follows the last part: one plan that takes no time and costs nothing.
NOTHING = ParetoFront(np.zeros(1, np.int64), np.zeros(1), np.zeros(1), np.zeros(1))


def position(time_ns: Ints, budget_ns: Ints) -> Ints:
    """Per budget, the last point that is not above it; −1 if there is none."""
    return np.searchsorted(time_ns, budget_ns, side="right") - 1


def sieve(time_ns: Ints, cost_usd: Floats, ends: Sequence[int], horizon_ns: int) -> list[Ints]:
    """For each end, which of the candidates before it no other beats, in order of time.

    `ends` ascend: several fronts, each of a longer run of the same candidates, are found in one go. Where there are
    many candidates, all that cost no less than the cheapest of an earlier cell of time are dropped before sorting.
    """
    coarse = len(time_ns) > _FEW
    if coarse:
        origin = int(time_ns.min())
        cell = np.minimum((time_ns - origin) // ((max(origin, horizon_ns) - origin) // _CELLS + 1), _CELLS)
        least = np.full(_CELLS + 1, np.inf)
    fronts: list[Ints] = []
    kept, begin = np.zeros(0, np.int64), 0
    for end in ends:
        fresh = np.arange(begin, end)
        if coarse:
            here, price = cell[begin:end], cost_usd[begin:end]
            np.minimum.at(least, here, price)
            fresh = fresh[price < _least_before(least)[here]]
        pool = np.concatenate((kept, fresh))
        within = pool[time_ns[pool] <= horizon_ns]
        if not len(within):
            within = pool[time_ns[pool] == time_ns[pool].min()]
        order = within[np.argsort(time_ns[within], kind="stable")]
        price = cost_usd[order]
        order = order[price < _least_before(price)]
        kept = order[_last_of_equals(time_ns[order])]  # which is the cheapest
        fronts.append(kept)
        begin = end
    return fronts


def _least_before(values: Floats) -> Floats:
    """Per place the least value of all places before it; infinity at the first."""
    least = np.empty(len(values))
    least[:1] = np.inf
    np.minimum.accumulate(values[:-1], out=least[1:])
    return least


def _last_of_equals(values: Ints) -> npt.NDArray[np.bool_]:
    """Per place of an ascending row, whether the next is another value."""
    last = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=last[:-1])
    return last


def followed_by(
    first: ParetoFront, labels: Ints, rest: ParetoFront, ends: Sequence[int], limits: Limits
) -> list[ParetoFront]:
    """Every point of `first` before each end, followed by every point of `rest`; times, costs and variances add up.

    `first` need not be in order; `labels` is what the result's `first` says of each of its points.
    """
    width = len(rest.time_ns)
    time_ns = (first.time_ns[:, None] + rest.time_ns).ravel()
    cost_usd = (first.cost_usd[:, None] + rest.cost_usd).ravel()
    fronts = []
    for kept in sieve(time_ns, cost_usd, [end * width for end in ends], limits.horizon_ns):
        a, b = np.divmod(kept, width)
        mean_ns, var_ns2 = first.mean_ns[a] + rest.mean_ns[b], first.var_ns2[a] + rest.var_ns2[b]
        loss_ns = first.loss_ns + rest.loss_ns
        front = ParetoFront(time_ns[kept], cost_usd[kept], mean_ns, var_ns2, first=labels[a], rest=b, loss_ns=loss_ns)
        fronts.append(front.thinned(limits))
    return fronts


def beside(branches: Sequence[ParetoFront], limits: Limits) -> ParetoFront:
    """Branches that begin together, done when all are: the slowest counts, and all are paid for.

    For a given end each branch is best at its cheapest point that is not later, so only their own times come up.
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
    loss_ns = max(front.loss_ns for front in branches)
    kept = sieve(time_ns, cost_usd, [len(time_ns)], limits.horizon_ns)[0]
    return ParetoFront(time_ns, cost_usd, mean_ns, var_ns2, picks=picks, loss_ns=loss_ns).take(kept).thinned(limits)
