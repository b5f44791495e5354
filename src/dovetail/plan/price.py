"""What a late answer is taken to cost, and the tables (`chance`, `branches`) for that price.

Rules of this file
- The price of a late answer is `late` times what a request costs at least, or less: it is halved, a few times at
  most, while the expected cost is above that of the cheapest plan that is in time on average by more than `premium`.
  So certainty is bought from a budget, and where it is cheap there is all of it.
- In a chain the price is raised again where that costs next to nothing: batches make room for it.
- It is not kept at the cost of more than `most_late` late answers.
- In a chain the budget is weighed without batches that have yet to form: a request cannot count on others, and the
  price should not move with every change of their rate.
- In a graph what batches save may be spent on certainty (`funded`), and the budget is larger: a plan that is in time
  on average on each of several ways is late on one of them more often than not, so it is no measure of what being in
  time costs. Where the budget reaches further, the price is raised as well.
- What a request of a graph really costs is not known beforehand: batches save some of it. So there is a `Ladder` of
  tables for ever lower prices, and whoever decides takes a lower rung while more was spent than a plan by groups
  would have (`groups`, `schedule.account`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .branches import GraphChances, steps_for
from .chance import STEPS, ChainChances, Chances, Law, StageOptions, laws_of
from .frontier import build
from .groups import by_groups
from .series_parallel import decompose
from .stepwise import Steps

__all__ = ["GRAPH_PREMIUM", "HALVINGS", "RAISES", "Ladder", "funded", "funded_price_usd", "is_chain", "weighed"]

#: How often the price of a late answer is halved at most; and raised by a factor of four, in graphs.
HALVINGS, RAISES = 6, 2
#: The premium for graphs, over that for chains. Batches at hand, which tables cannot foresee, save about as much
#: again: measured on the graphs that were tuned on (1000 to 1019). [our choice]
GRAPH_PREMIUM = 0.02
#: What is called little to pay for certainty where the budget cannot be kept. [our choice]
LITTLE = 0.0125
#: So many times what may be late in a chain may be late in a graph, by tables that cannot foresee batches at hand.
#: Chosen on one graph (1003), where tables said 5.7 % and about 1 % were late. [our choice]
GRAPH_LATE = 1.6
#: Rungs of a ladder at most, and by what the price falls from one to the next. [our choice]
RUNGS, RUNG = 5, 4
#: With fewer late answers than this the price is not raised: there is nothing left to buy. [our choice]
SURE = 5e-5


class Ladder(msgspec.Struct, frozen=True):
    """Tables for ever lower prices of a late answer, and what a request may cost; nothing if that is not counted."""

    rungs: tuple[Chances, ...]
    budget_usd: float = 0.0


class _Tables:
    """Makes the tables of one workflow for one price after the other."""

    def __init__(
        self, stages: Sequence[StageOptions], successors: Sequence[Sequence[int]], objective_ns: int
    ) -> None:
        self._stages = stages
        self._successors = successors
        self._chain = is_chain(successors)
        self._steps = STEPS if self._chain else steps_for(len(stages))
        self._step_ns = objective_ns // self._steps + 1
        self._laws: tuple[list[dict[int, list[Law]]], list[dict[int, int]]] | None = None
        self._last: GraphChances | None = None

    def at(self, price_usd: float) -> Steps[Chances]:
        """For this price."""
        laws, fills = yield from self._made()
        if self._chain:
            return (yield from ChainChances(laws, fills, self._step_ns, price_usd).make())
        tables = GraphChances(self._successors, laws, fills, self._step_ns, price_usd, like=self._last)
        self._last = yield from tables.make()
        return self._last

    def by_groups(self, objective_ns: int) -> Steps[tuple[float, float]]:
        """What a plan by groups costs, and how often it is late."""
        laws, _ = yield from self._made()
        return (yield from by_groups(self._stages, self._successors, laws, self._step_ns, objective_ns))

    def _made(self) -> Steps[tuple[list[dict[int, list[Law]]], list[dict[int, int]]]]:
        if self._laws is None:
            self._laws = yield from laws_of(self._stages, self._step_ns, self._steps)
        return self._laws


def funded_price_usd(
    stages: Sequence[StageOptions],
    successors: Sequence[Sequence[int]],
    objective_ns: int,
    *,
    late: float,
    premium: float,
    most_late: float,
) -> Steps[float]:
    """The highest price of a late answer, `late` times the least cost of a request at most, that keeps to the budget.

    Infinitely dear is what cannot be had: without a plan that is in time on average the price is not halved.
    """
    price_usd = _highest_usd(stages, late)
    single = [_only_smallest(stage) for stage in stages]
    budget_usd = _on_average_usd(single, successors, objective_ns) * (1 + premium)
    tables = _Tables(single, successors, objective_ns)
    chances = yield from tables.at(price_usd)
    for _ in range(HALVINGS):
        if chances.work_usd <= budget_usd:
            break
        chances = yield from tables.at(price_usd / 2)
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
    premium: float,
    most_late: float,
) -> Steps[Chances]:
    """The tables for that price, or for a higher one: if large batches would make giving up pay, or if the premium
    buys half of the late answers back."""
    tables = _Tables(stages, successors, objective_ns)
    chances = yield from tables.at(price_usd)
    while chances.late > most_late and price_usd < _highest_usd(stages, late):
        price_usd *= 2
        chances = yield from tables.at(price_usd)
    return (yield from _surer(chances, tables, price_usd, chances.work_usd * (1 + premium)))


def funded(
    stages: Sequence[StageOptions],
    successors: Sequence[Sequence[int]],
    objective_ns: int,
    *,
    late: float,
    premium: float,
    most_late: float,
) -> Steps[Ladder]:
    """The tables of a graph for the highest price of a late answer that keeps to the budget, and for lower ones."""
    single = [_only_smallest(stage) for stage in stages]
    tables = _Tables(stages, successors, objective_ns)
    average_usd = _on_average_usd(single, successors, objective_ns)
    highest_usd = _highest_usd(stages, late)
    first = yield from _affordable(tables, highest_usd, average_usd, premium, most_late)
    groups_usd, groups_late = yield from _Tables(single, successors, objective_ns).by_groups(objective_ns)
    rungs, price_usd = [first], first.late_usd
    while rungs[-1].work_usd > groups_usd and len(rungs) < RUNGS:
        price_usd /= RUNG
        cheaper = yield from tables.at(price_usd)
        if cheaper.late > max(groups_late, GRAPH_LATE * most_late):
            break
        rungs.append(cheaper)
    return Ladder(tuple(rungs), groups_usd)


def _affordable(
    tables: _Tables, price_usd: float, average_usd: float, premium: float, most_late: float
) -> Steps[Chances]:
    tried = [(yield from tables.at(price_usd))]
    if tried[0].work_usd <= average_usd:
        return (yield from _surer(tried[0], tables, price_usd, average_usd))
    budget_usd = average_usd * (1 + GRAPH_PREMIUM + premium)
    while tried[-1].work_usd > budget_usd and len(tried) <= HALVINGS:
        price_usd /= 2
        cheaper = yield from tables.at(price_usd)
        if cheaper.late > GRAPH_LATE * most_late:
            break
        tried.append(cheaper)
    if tried[-1].work_usd <= budget_usd:
        return tried[-1]
    # The budget cannot be kept: what certainty costs little is bought back.
    limit_usd = tried[-1].work_usd * (1 + LITTLE)
    return next(chances for chances in tried if chances.work_usd <= limit_usd)


def _surer(chances: Chances, tables: _Tables, price_usd: float, budget_usd: float) -> Steps[Chances]:
    """What is left of the budget buys more certainty still."""
    for _ in range(RAISES):
        if chances.late <= SURE:
            break
        price_usd *= 4
        surer = yield from tables.at(price_usd)
        if surer.work_usd > budget_usd or surer.late > chances.late / 2:
            break
        chances = surer
    return chances


def is_chain(successors: Sequence[Sequence[int]]) -> bool:
    """Whether each node is followed by the next one and by no other."""
    return all(list(after) == [i + 1] for i, after in enumerate(successors[:-1]))


def _highest_usd(stages: Sequence[StageOptions], late: float) -> float:
    return late * sum(min(o.cost_usd for o in stage.options) for stage in stages)


def _only_smallest(stage: StageOptions) -> StageOptions:
    """The same without the larger batches."""
    batch = min(stage.fill_ns)
    return StageOptions([o for o in stage.options if o.config.batch == batch], {batch: stage.fill_ns[batch]})


def _on_average_usd(stages: Sequence[StageOptions], successors: Sequence[Sequence[int]], objective_ns: int) -> float:
    """Cost of the cheapest plan whose mean times are within the objective; infinite if there is none."""
    plan = build(decompose(successors), [stage.options for stage in stages], objective_ns).plan(objective_ns)
    return sum(option.cost_usd for option in plan) if plan else float("inf")
