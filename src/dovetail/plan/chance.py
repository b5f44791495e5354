"""What is speed worth? The chance of being in time, weighed in money, with later decisions still open.

    price_usd = funded_price_usd(stages, objective_ns, late=20.0, premium=0.0025, most_late=0.05)
    chances = weighed(stages, objective_ns, price_usd, late=20.0, most_late=0.05)
    way = chances.weigh(node, left_ns, batch)

A plan that must be in time with a fixed percentile pays any price for the last per cent, and pays it at the first
stage, before it is known whether the later ones need it. Here a late answer has a price instead, and every stage is
decided knowing that the later ones will be decided again:

    V(left) = min over configurations of  cost + E[ V_next(left − time) ];  after the last 0 if in time, else late_usd

the dynamic programme of a chain with random times (Bellman, 1957). So speed is bought where it gains most chance per
dollar, as late as it still helps, and not at all for a request that will be late anyway.

Rules of this file
- Chains only. Workflows with forks are planned by percentile (`frontier`).
- The price of a late answer is `late` times what a request costs at least, or less: it is halved, a few times at
  most, while the expected cost is above that of the cheapest plan that is in time on average by more than `premium`.
  So certainty is bought from a budget, and where it is cheap there is all of it.
- Times are log-normal with the profile's mean and spread, as in `quantile`.
- Time left is counted in steps and rounded down, waits are rounded up: never in a plan's favour.
- The law of times and all values are rounded, because logarithms and long sums differ in their last bits between
  machines, and a replay elsewhere should decide the same. Of equals the faster is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log1p, sqrt
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from ..state import Config
from .options import Option, pareto

__all__ = ["Chances", "StageOptions", "Way", "funded_price_usd", "weighed"]

Floats = npt.NDArray[np.float64]

#: Steps in which the time left is counted; one is a fifteenth of the deviation of three like stages with 5 % spread.
STEPS = 512
#: How often the price of a late answer is halved at most.
HALVINGS = 6
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


class _Law:
    """An option's run time in steps: E[f(left − time)] for any f by time left."""

    __slots__ = ("_from", "_weights", "config", "cost_usd")

    def __init__(self, option: Option, fill_ns: int, step_ns: int) -> None:
        self.config = option.config
        self.cost_usd = option.cost_usd
        mean_ns = option.mean_ns - fill_ns
        variance = log1p((option.spread * option.mean_ns / mean_ns) ** 2)
        factors = [round(exp(z * sqrt(variance) - variance / 2), 9) for z in _POINTS]
        # Beyond the objective all times are the same: too long.
        steps = np.minimum(np.array(factors) * (mean_ns / step_ns), STEPS + 1)
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


def _later(values: Floats, steps: int, *, pad: int = 0) -> Floats:
    """Values by time left when so many steps are lost first, with `pad` more places in front."""
    front = np.full(min(steps, len(values)) + pad, values[0])
    return np.concatenate((front, values[: max(0, len(values) - steps)]))


class Chances:
    """The tables of one chain for one price of being late."""

    def __init__(
        self,
        laws: Sequence[Mapping[int, Sequence[_Law]]],
        fills: Sequence[Mapping[int, int]],
        step_ns: int,
        late_usd: float,
    ) -> None:
        self._step_ns = step_ns
        #: (node, batch) -> configurations, then by time left the expected cost and which of them has it.
        self._rows: dict[tuple[int, int], tuple[list[Config], memoryview, memoryview]] = {}
        #: The same -> expected cost of each configuration, by time left.
        self._tables: dict[tuple[int, int], Floats] = {}
        places = np.arange(STEPS + 1)
        value, late = np.full(STEPS + 1, 0.0), np.full(STEPS + 1, 0.0)
        # Place 0 is no time left. After the last node that is too late; with any time left it is not.
        value[0], late[0] = late_usd, 1.0
        for node in range(len(laws) - 1, -1, -1):
            best, best_late = np.full(STEPS + 1, np.inf), np.ones(STEPS + 1)
            for batch, options in laws[node].items():
                table = np.stack([law.cost_usd + law.expected(value) for law in options])
                table = np.round(table / late_usd, _DIGITS) * late_usd
                lates = np.stack([law.expected(late) for law in options])
                pick = np.argmin(table, axis=0)
                values = table[pick, places]
                self._tables[node, batch] = table
                self._rows[node, batch] = ([law.config for law in options], values.data, pick.data)
                fill = fills[node][batch]
                waited = _later(values, fill)
                best_late = np.where(waited < best, _later(lates[pick, places], fill), best_late)
                best = np.minimum(waited, best)
            value, late = best, best_late
        #: Of a request that comes with all its time: the chance of being late, and what its work costs on average.
        self.late = float(late[-1])
        self.work_usd = float(value[-1]) - self.late * late_usd

    def weigh(self, node: int, left_ns: int, batch: int) -> Way | None:
        """The best configuration with just this batch, whose items are at hand; None if there is no such batch."""
        found = self._rows.get((node, batch))
        if found is None:
            return None
        configs, values, pick = found
        place = min(max(0, left_ns // self._step_ns), STEPS)
        return Way(configs[pick[place]], values[place])

    def others(self, node: int, left_ns: int, batch: int, below_usd: float) -> list[Way]:
        """All configurations with just this batch whose expected cost is below a limit, the best first."""
        place = min(max(0, left_ns // self._step_ns), STEPS)
        values = self._tables[node, batch][:, place]
        configs = self._rows[node, batch][0]
        ways = [Way(config, float(value)) for config, value in zip(configs, values, strict=True) if value < below_usd]
        return sorted(ways, key=lambda way: way.value_usd)


def funded_price_usd(
    stages: Sequence[StageOptions], objective_ns: int, *, late: float, premium: float, most_late: float
) -> float:
    """The highest price of a late answer, `late` times the least cost of a request at most, that keeps to the budget.

    The budget is weighed without batches that have yet to form: a request cannot count on others, and the price
    should not move with every change of their rate. It is not kept at the cost of more than `most_late` late answers.
    """
    step_ns = objective_ns // STEPS + 1
    price_usd = _highest_usd(stages, late)
    single = [_only_smallest(stage) for stage in stages]
    budget_usd = _on_average_usd(single, step_ns) * (1 + premium)
    laws, fills = _laws(single, step_ns)
    chances = Chances(laws, fills, step_ns, price_usd)
    for _ in range(HALVINGS):
        if chances.work_usd <= budget_usd:
            break
        chances = Chances(laws, fills, step_ns, price_usd / 2)
        if chances.late > most_late:
            break
        price_usd /= 2
    return price_usd


def weighed(
    stages: Sequence[StageOptions], objective_ns: int, price_usd: float, *, late: float, most_late: float
) -> Chances:
    """The tables for that price, or for a higher one if large batches would make giving up pay."""
    step_ns = objective_ns // STEPS + 1
    laws, fills = _laws(stages, step_ns)
    chances = Chances(laws, fills, step_ns, price_usd)
    while chances.late > most_late and price_usd < _highest_usd(stages, late):
        price_usd *= 2
        chances = Chances(laws, fills, step_ns, price_usd)
    return chances


def _highest_usd(stages: Sequence[StageOptions], late: float) -> float:
    return late * sum(min(o.cost_usd for o in stage.options) for stage in stages)


def _only_smallest(stage: StageOptions) -> StageOptions:
    """The same without the larger batches."""
    batch = min(stage.fill_ns)
    return StageOptions([o for o in stage.options if o.config.batch == batch], {batch: stage.fill_ns[batch]})


def _laws(stages: Sequence[StageOptions], step_ns: int) -> tuple[list[dict[int, list[_Law]]], list[dict[int, int]]]:
    """Per node and batch the laws of the options worth looking at, and the wait for the batch in steps."""
    laws: list[dict[int, list[_Law]]] = []
    fills: list[dict[int, int]] = []
    for stage in stages:
        by_batch = {b: pareto(o for o in stage.options if o.config.batch == b) for b in stage.fill_ns}
        laws.append({b: [_Law(o, stage.fill_ns[b], step_ns) for o in row] for b, row in by_batch.items() if row})
        fills.append({b: min(STEPS + 1, -(-fill_ns // step_ns)) for b, fill_ns in stage.fill_ns.items()})
    return laws, fills


def _on_average_usd(stages: Sequence[StageOptions], step_ns: int) -> float:
    """Cost of the cheapest plan whose mean time is within the objective; infinite if there is none."""
    value = np.zeros(STEPS + 1)
    for stage in reversed(stages):
        best = np.full(STEPS + 1, np.inf)
        for option in pareto(stage.options):
            steps = (option.mean_ns + step_ns // 2) // step_ns
            if steps <= STEPS:
                best[steps:] = np.minimum(best[steps:], option.cost_usd + value[: STEPS + 1 - steps])
        value = best
    return float(value[-1])
