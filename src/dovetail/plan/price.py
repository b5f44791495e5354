"""What a late answer is taken to cost, and the tables (`chance`, `branches`) for that price.

Rules of this file
- The price of a late answer is `late` times what a request costs at least, or less: it is halved, a few times at
  most, while the expected cost is above that of the cheapest plan that is in time on average by more than `premium`.
  So certainty is bought from a budget, and where it is cheap there is all of it.
- The budget is weighed without batches that have yet to form: a request cannot count on others, and the price should
  not move with every change of their rate. It is not kept at the cost of more than `most_late` late answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from .branches import GraphChances, steps_for
from .chance import STEPS, ChainChances, Chances, StageOptions, laws_of
from .frontier import build
from .series_parallel import decompose

__all__ = ["funded_price_usd", "weighed"]

#: How often the price of a late answer is halved at most.
HALVINGS = 6


class _Tables:
    """Makes the tables of one workflow for one price after the other."""

    def __init__(self, stages: Sequence[StageOptions], successors: Sequence[Sequence[int]], objective_ns: int) -> None:
        self._successors = successors
        self._chain = all(list(after) == [i + 1] for i, after in enumerate(successors[:-1]))
        steps = STEPS if self._chain else steps_for(len(stages))
        self._step_ns = objective_ns // steps + 1
        self._laws = laws_of(stages, self._step_ns, steps)
        self._last: GraphChances | None = None

    def at(self, price_usd: float) -> Chances:
        """For this price."""
        if self._chain:
            return ChainChances(*self._laws, self._step_ns, price_usd)
        self._last = GraphChances(self._successors, *self._laws, self._step_ns, price_usd, like=self._last)
        return self._last


def funded_price_usd(
    stages: Sequence[StageOptions],
    successors: Sequence[Sequence[int]],
    objective_ns: int,
    *,
    late: float,
    premium: float,
    most_late: float,
) -> float:
    """The highest price of a late answer, `late` times the least cost of a request at most, that keeps to the budget.

    Infinitely dear is what cannot be had: without a plan that is in time on average the price is not halved.
    """
    price_usd = _highest_usd(stages, late)
    single = [_only_smallest(stage) for stage in stages]
    budget_usd = _on_average_usd(single, successors, objective_ns) * (1 + premium)
    tables = _Tables(single, successors, objective_ns)
    chances = tables.at(price_usd)
    for _ in range(HALVINGS):
        if chances.work_usd <= budget_usd:
            break
        chances = tables.at(price_usd / 2)
        if chances.late > most_late:
            break
        price_usd /= 2
    return price_usd


def weighed(
    stages: Sequence[StageOptions],
    successors: Sequence[Sequence[int]],
    objective_ns: int,
    price_usd: float,
    *,
    late: float,
    most_late: float,
) -> Chances:
    """The tables for that price, or for a higher one if large batches would make giving up pay."""
    tables = _Tables(stages, successors, objective_ns)
    chances = tables.at(price_usd)
    while chances.late > most_late and price_usd < _highest_usd(stages, late):
        price_usd *= 2
        chances = tables.at(price_usd)
    return chances


def _highest_usd(stages: Sequence[StageOptions], late: float) -> float:
    return late * sum(min(o.cost_usd for o in stage.options) for stage in stages)


def _only_smallest(stage: StageOptions) -> StageOptions:
    """The same without the larger batches."""
    batch = min(stage.fill_ns)
    return StageOptions([o for o in stage.options if o.config.batch == batch], {batch: stage.fill_ns[batch]})


def _on_average_usd(
    stages: Sequence[StageOptions], successors: Sequence[Sequence[int]], objective_ns: int
) -> float:
    """Cost of the cheapest plan whose mean times are within the objective; infinite if there is none."""
    plan = build(decompose(successors), [stage.options for stage in stages], objective_ns).plan(objective_ns)
    return sum(option.cost_usd for option in plan) if plan else float("inf")
