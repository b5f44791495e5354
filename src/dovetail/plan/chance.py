"""What is speed worth? The chance of being in time, weighed in money, with later decisions still open.

    steps = funded_price_usd(stages, successors, objective_ns, late=20.0, premium=0.0025, most_late=0.05)
    price_usd = finish(steps)
    chances = finish(weighed(stages, successors, objective_ns, price_usd, late=20.0, most_late=0.05))
    way = chances.weigh(node, left_ns, batch)

A plan that must be in time with a fixed percentile pays any price for the last per cent, and pays it at the first
stage, before it is known whether the later ones need it. Here a late answer has a price instead, and every stage is
decided knowing that the later ones will be decided again:

    V(left) = min over configurations of  cost + E[ V_next(left − time) ];  after the last 0 if in time, else late_usd

the dynamic programme of a chain with random times (Bellman, 1957). So speed is bought where it gains most chance per
dollar, as late as it still helps, and not at all for a request that will be late anyway.

Rules of this file
- Tables are made in short steps (`stepwise`): a decision need not wait for all of them.
- Tables of chains are made here; those of workflows with forks are in `branches`, from the same parts.
- Times are log-normal with the profile's mean and spread, as in `quantile`.
- Time left is counted in steps and rounded down, waits are rounded up: never in a plan's favour.
- The law of times and all values are rounded, because logarithms and long sums differ in their last bits between
  machines, and a replay elsewhere should decide the same. Of equals the faster is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import chain
from math import exp, inf, log1p, sqrt
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from ..state import Config
from .options import Option, pareto
from .stepwise import Steps

__all__ = ["ChainChances", "Chances", "Law", "StageOptions", "Way", "laws_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Steps in which the time left is counted; one is a fifteenth of the deviation of three like stages with 5 % spread.
STEPS = 512
#: Points of the law of times, in deviations: out to one case in thirty thousand.
_POINTS = [i / 8 for i in range(-32, 33)]
_WEIGHTS = np.array([round(NormalDist().pdf(z), 9) for z in _POINTS])
_WEIGHTS /= _WEIGHTS.sum()
#: Values are rounded to so many digits of the price of a late answer.
_DIGITS = 12


class StageOptions(msgspec.Struct, frozen=True):
    """What one node can be run in, and per batch size the wait for such a batch that its options contain."""

    options: Sequence[Option]
    fill_ns: Mapping[int, int]


class Way(msgspec.Struct, frozen=True, gc=False):
    """One way to run a node now."""

    config: Config
    #: Expected cost of everything still to come, being late included.
    value_usd: float


class Law:
    """An option's run time in steps: E[f(left − time)] for any f by time left."""

    __slots__ = ("_from", "_weights", "config", "cost_usd")

    def __init__(self, option: Option, fill_ns: int, step_ns: int, most: int = STEPS) -> None:
        self.config = option.config
        self.cost_usd = option.cost_usd
        mean_ns = option.mean_ns - fill_ns
        variance = log1p((option.spread * option.mean_ns / mean_ns) ** 2)
        factors = [round(exp(z * sqrt(variance) - variance / 2), 9) for z in _POINTS]
        # Beyond the objective all times are the same: too long.
        steps = np.minimum(np.array(factors) * (mean_ns / step_ns), most + 1)
        # A time between two steps counts as either, so that its mean stays what it is.
        below = np.floor(steps).astype(np.int64)
        share = steps - below
        self._from = int(below[0])
        self._weights = np.zeros(int(below[-1]) - self._from + 2)
        np.add.at(self._weights, below - self._from, _WEIGHTS * (1 - share))
        np.add.at(self._weights, below - self._from + 1, _WEIGHTS * share)

    def expected(self, after: Floats) -> Floats:
        """`after` by time left when this is done -> its mean by time left now. No time left is like none."""
        return np.convolve(_later(after, self._from, pad=len(self._weights) - 1), self._weights, "valid")

    def spread_out(self, moves: Floats, rows: Ints, wait: int) -> None:
        """Add to rows of `moves`, by time left before a wait: the chances of each time left when this is done."""
        left = rows[:, None] - (wait + self._from + np.arange(len(self._weights)))[None, :]
        np.add.at(moves, (rows[:, None], np.maximum(left, 0)), self._weights[None, :])


def _later(values: Floats, steps: int, *, pad: int = 0) -> Floats:
    """Values by time left when so many steps are lost first, with `pad` more places in front."""
    front = np.full(min(steps, len(values)) + pad, values[0])
    return np.concatenate((front, values[: max(0, len(values) - steps)]))


#: A law, the wait for its batch in steps, and the places (time left before that wait) where both are the best.
Chosen = tuple[Law, int, Ints]


class Chances:
    """The tables of one workflow for one price of being late."""

    #: Of a request that comes with all its time: the chance of being late, and what its work costs on average.
    late: float
    work_usd: float
    #: What a late answer is taken to cost.
    late_usd: float

    def _begin(self, steps: int, step_ns: int, late_usd: float) -> None:
        self.late_usd = late_usd
        self._steps = steps
        self._step_ns = step_ns
        #: (node, batch) -> configurations, then by time left the expected cost and which of them has it.
        self._rows: dict[tuple[int, int], tuple[list[Config], memoryview, memoryview]] = {}
        #: The same -> expected cost of each configuration, by time left.
        self._tables: dict[tuple[int, int], Floats] = {}
        #: Node, batch and time left -> all ways, the best first, and their expected costs, once they were asked for.
        self._sorted: dict[tuple[int, int, int], tuple[list[Way], list[float]]] = {}

    def _at_end(self) -> tuple[Floats, Floats]:
        """Value and chance of being late after the last node: with no time left it is, with any it is not."""
        value, late = np.full(self._steps + 1, 0.0), np.full(self._steps + 1, 0.0)
        value[0], late[0] = self.late_usd, 1.0
        return value, late

    def _decide(
        self, node: int, laws: Mapping[int, Sequence[Law]], fills: Mapping[int, int], value: Floats, late: Floats
    ) -> Steps[tuple[Floats, Floats, list[Chosen]]]:
        """Decide a node by time left, given value and chance of being late by time left at its end.

        Both at its beginning; and what is chosen there, waits for a batch to fill included.
        """
        places = np.arange(self._steps + 1)
        best, best_late = np.full(self._steps + 1, np.inf), np.ones(self._steps + 1)
        best_law = np.zeros(self._steps + 1, np.int64)
        known: list[tuple[Law, int]] = []
        for batch, options in laws.items():
            costs, chances = [], []
            for law in options:
                costs.append(law.cost_usd + law.expected(value))
                chances.append(law.expected(late))
                yield
            table = np.round(np.stack(costs) / self.late_usd, _DIGITS) * self.late_usd
            lates = np.stack(chances)
            pick = np.argmin(table, axis=0)
            values = table[pick, places]
            self._tables[node, batch] = table
            self._rows[node, batch] = ([law.config for law in options], values.data, pick.data)
            fill = fills[batch]
            waited = _later(values, fill)
            better = waited < best
            best_late = np.where(better, _later(lates[pick, places], fill), best_late)
            best_law = np.where(better, len(known) + _later(pick, fill), best_law)
            best = np.minimum(waited, best)
            known.extend((law, fill) for law in options)
        chosen = [(*known[i], np.flatnonzero(best_law == i)) for i in np.unique(best_law).tolist()]
        return best, best_late, chosen

    def weigh(self, node: int, left_ns: int, batch: int) -> Way | None:
        """The best configuration with just this batch, whose items are at hand; None if there is no such batch."""
        found = self._rows.get((node, batch))
        if found is None:
            return None
        configs, values, pick = found
        place = left_ns // self._step_ns if left_ns > 0 else 0
        if place > self._steps:
            place = self._steps
        return Way(configs[pick[place]], values[place])

    def best(self, node: int, left_ns: int, batch: int) -> tuple[Way, ...]:
        """The same as a list of none or one."""
        way = self.weigh(node, left_ns, batch)
        return () if way is None else (way,)

    def by_kind(self, node: int, left_ns: int, batch: int) -> list[Way]:
        """The best configuration with just this batch on each kind of device, the best first."""
        if (node, batch) not in self._rows:
            return []
        best: dict[str, Way] = {}
        for way in self._all(node, left_ns, batch)[0]:
            best.setdefault(way.config.kind, way)
        return list(best.values())

    def others(self, node: int, left_ns: int, batch: int, below_usd: float) -> list[Way]:
        """All configurations with just this batch whose expected cost is below a limit, the best first."""
        ways, values = self._all(node, left_ns, batch)
        return ways[: bisect_left(values, below_usd)]

    def value_usd(self, node: int, left_ns: int, config: Config) -> float:
        """Expected cost of everything still to come if the node is run in this configuration; infinite if it is not
        one of those worth looking at."""
        if (node, config.batch) not in self._rows:
            return inf
        ways = self._all(node, left_ns, config.batch)[0]
        return next((way.value_usd for way in ways if way.config == config), inf)

    def _all(self, node: int, left_ns: int, batch: int) -> tuple[list[Way], list[float]]:
        place = min(max(0, left_ns // self._step_ns), self._steps)
        found = self._sorted.get((node, batch, place))
        if found is None:
            values = self._tables[node, batch][:, place].tolist()
            ways = [Way(c, value) for c, value in zip(self._rows[node, batch][0], values, strict=True)]
            ways.sort(key=lambda way: way.value_usd)
            found = self._sorted[node, batch, place] = ways, [way.value_usd for way in ways]
        return found


class ChainChances(Chances):
    """The tables of one chain."""

    def __init__(
        self,
        laws: Sequence[Mapping[int, Sequence[Law]]],
        fills: Sequence[Mapping[int, int]],
        step_ns: int,
        late_usd: float,
    ) -> None:
        self._begin(STEPS, step_ns, late_usd)
        self._laws, self._fills = laws, fills

    def make(self) -> Steps[ChainChances]:
        """Make the tables, from the last node to the first."""
        value, late = self._at_end()
        for node in range(len(self._laws) - 1, -1, -1):
            value, late, _ = yield from self._decide(node, self._laws[node], self._fills[node], value, late)
        self.late = float(late[-1])
        self.work_usd = float(value[-1]) - self.late * self.late_usd
        return self


def laws_of(
    stages: Sequence[StageOptions], step_ns: int, steps: int = STEPS
) -> Steps[tuple[list[dict[int, list[Law]]], list[dict[int, int]]]]:
    """Per node and batch the laws of the options worth looking at, and the wait for the batch in steps."""
    laws: list[dict[int, list[Law]]] = []
    fills: list[dict[int, int]] = []
    for stage in stages:
        of_node: dict[int, list[Law]] = {}
        for batch, fill_ns in stage.fill_ns.items():
            # What another kind of device does better is of use while that is busy.
            kinds = dict.fromkeys(o.config.kind for o in stage.options)
            rows = (pareto(o for o in stage.options if o.config.batch == batch and o.config.kind == k) for k in kinds)
            found = []
            for option in chain.from_iterable(rows):
                found.append(Law(option, fill_ns, step_ns, steps))
                yield
            if found:
                of_node[batch] = found
        laws.append(of_node)
        fills.append({b: min(steps + 1, -(-fill_ns // step_ns)) for b, fill_ns in stage.fill_ns.items()})
    return laws, fills
