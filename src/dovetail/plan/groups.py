"""What a plan by groups costs: the measure of what being in time may cost in a graph.

ESG gives every group of at most three stages a part of the objective and takes the cheapest configurations whose mean
times fit in, again before every stage. It buys no certainty. What it pays on average is what a request may cost here:
whoever pays more buys certainty with money that others keep.

Rules of this file
- Batches of one: a request cannot count on others.
- Times scatter as they do in `chance`. A stage that has taken long leaves less to those behind it, which then run in
  dearer configurations, so the mean cost of deciding again is not the cost of the mean plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .branches import GraphChances, steps_for
from .chance import Law, StageOptions
from .distribute import average_normalised_lengths, distribute
from .series_parallel import decompose
from .stepwise import Steps

__all__ = ["GROUP", "by_groups"]

#: Stages of a group at most. [ESG's, as recalled: docs/rivals.md]
GROUP = 3


def by_groups(
    stages: Sequence[StageOptions],
    successors: Sequence[Sequence[int]],
    laws: Sequence[Mapping[int, Sequence[Law]]],
    step_ns: int,
    objective_ns: int,
) -> Steps[tuple[float, float]]:
    """What a request costs on average, and how likely it is late; each stage has batches of one size only."""
    rows = [[law for of_batch in of_node.values() for law in of_batch] for of_node in laws]
    options = [{o.config: o for o in stage.options} for stage in stages]
    fronts = [[of_node[law.config] for law in row] for of_node, row in zip(options, rows, strict=True)]
    times = [[o.mean_ns for o in stage.options] for stage in stages]
    if len({len(row) for row in times}) > 1:  # a stage with other configurations: each in its cheapest
        times = [[min(front, key=lambda o: o.cost_usd).mean_ns] for front in fronts]
    parts = distribute(decompose(successors), average_normalised_lengths(times), GROUP)
    chosen: list[list[tuple[Law, list[int]]]] = []
    for node, front in enumerate(fronts):
        group = parts[node].group
        time, cost = np.zeros(1), np.zeros(1)
        for other in group[group.index(node) + 1 :]:
            time = np.add.outer(time, [o.mean_ns for o in fronts[other]]).ravel()
            cost = np.add.outer(cost, [o.cost_usd for o in fronts[other]]).ravel()
        times_ns = np.add.outer([o.mean_ns for o in front], time)
        costs_usd = np.add.outer([o.cost_usd for o in front], cost)
        behind_ns = float(1 - parts[node].group_deadline) * objective_ns
        fastest = int(np.argmin(times_ns.min(axis=1)))
        taken: list[list[int]] = [[] for _ in front]
        for place in range(steps_for(len(stages)) + 1):
            in_time = times_ns <= place * step_ns - behind_ns
            cheapest = int(np.argmin(np.where(in_time, costs_usd, np.inf).min(axis=1)))
            taken[cheapest if in_time.any() else fastest].append(place)
        chosen.append([(law, places) for law, places in zip(rows[node], taken, strict=True) if places])
        yield
    tables = GraphChances(successors, laws, [dict.fromkeys(row, 0) for row in laws], step_ns, 1.0)
    yield from tables.follow(chosen)
    return tables.work_usd, tables.late
