"""What is a faster configuration worth? The chance of being in time, weighed in money, with later decisions open.

    tables = Chances(nodes, objective_ns, late_usd)
    weighed = tables.weigh(node, left_ns, batch)

A plan that must be in time with a fixed percentile pays any price for the last per cent, and pays it at the first
stage, before it is known whether the later ones will need it. Here a late answer has a price instead, and each stage
is decided with the later decisions still open:

    V(left) = min over configurations of  cost + E[ V_next(left − time) ],      after the last: 0 in time, else late_usd

So speed is bought where it changes the chance most per dollar, as late as it still helps, and not at all for a
request that is late almost surely. This is the dynamic programme of a chain with random times (Bellman, 1957).

Rules of this file
- For nodes whose rest is a chain; what comes before a fork or a join is planned by percentile (`tables`).
- Times are log-normal with the profile's mean and spread, as `quantile` has them, cut into equally likely parts.
- The time left is counted in steps, rounded down: never in the plan's favour.
- Only sums and products after the law is made, and that is rounded: the same tables on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log1p, sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ..state import Config
from .options import Option, pareto

__all__ = ["Chances"]

Floats = npt.NDArray[np.float64]

#: Steps of the objective in which the time left is counted, and parts of the law of times.
STEPS = 1024
#: Points of the law of times, in deviations: out to one case in thirty thousand.
_POINTS = [i / 8 for i in range(-32, 33)]
_NORMAL = NormalDist()
_BELOW = np.array([round(_NORMAL.cdf(z), 9) for z in _POINTS])
_WEIGHTS = np.array([round(_NORMAL.pdf(z), 9) for z in _POINTS])
_WEIGHTS /= _WEIGHTS.sum()
#: Keeps the points in order where there is no spread.
_APART = np.arange(len(_POINTS)) * 1e-12


class Chances:
    """Tables of a chain of nodes, the last one last."""

    def __init__(
        self,
        nodes: Sequence[int],
        options: Sequence[Sequence[Option]],
        fills: Sequence[Mapping[int, int]],
        objective_ns: int,
        late_usd: float,
    ) -> None:
        self._step_ns = objective_ns // STEPS + 1
        grid = np.arange(STEPS + 1, dtype=np.float64) * self._step_ns
        #: (node, batch) -> its configurations, and by time left what all that is to come costs with each.
        self._rows: dict[tuple[int, int], tuple[tuple[Config, ...], Floats]] = {}
        #: Node -> by time left, what all that is to come costs if the node is left to itself.
        self._alone: dict[int, memoryview] = {}
        after: Floats | None = None
        for node, row, fill in zip(reversed(nodes), reversed(options), reversed(fills), strict=True):
            best = np.full(STEPS + 1, np.inf)
            for batch, fill_ns in fill.items():
                kept = pareto(o for o in row if o.config.batch == batch)
                table = np.stack([o.cost_usd + _rest(o, fill_ns, grid, after, late_usd) for o in kept], axis=1)
                self._rows[node, batch] = (tuple(o.config for o in kept), table)
                np.minimum(best, np.interp(grid - fill_ns, grid, table.min(axis=1)), out=best)
            self._alone[node] = best.data
            after = best

    def configs(self, node: int, batch: int) -> tuple[Config, ...]:
        """What the node may be run in with just this batch; empty if it has none."""
        found = self._rows.get((node, batch))
        return () if found is None else found[0]

    def costs(self, node: int, left_ns: int, batch: int) -> Floats:
        """What everything still to come is expected to cost with each of them, if the items are at hand."""
        return self._rows[node, batch][1][self._at(left_ns)]

    def alone(self, node: int, left_ns: int) -> float:
        """The same for the best that the item can count on by itself."""
        return self._alone[node][self._at(left_ns)]

    def _at(self, left_ns: int) -> int:
        return min(max(0, left_ns // self._step_ns), STEPS)


def _rest(option: Option, fill_ns: int, grid: Floats, after: Floats | None, late_usd: float) -> Floats:
    """What follows the option by time left: the chance of being late times its price, or the next node's value."""
    mean_ns = option.mean_ns - fill_ns
    factors = _factors(option.spread * option.mean_ns / mean_ns)
    if after is None:
        in_time = np.interp(grid, mean_ns * factors, _BELOW, left=0.0, right=1.0)
        return late_usd * (1 - in_time)
    rest = np.zeros(len(grid))
    for factor, weight in zip(factors, _WEIGHTS, strict=True):
        rest += weight * np.interp(grid - mean_ns * factor, grid, after)
    return rest


def _factors(spread: float) -> Floats:
    """Log-normal times of mean 1 at the points of the law."""
    variance = log1p(spread * spread)
    return np.array([round(exp(z * sqrt(variance) - variance / 2), 9) for z in _POINTS]) + _APART
