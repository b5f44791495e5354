"""The exact planner: what is best for a node is looked up by the time that is left, not searched for.

    frontiers = build(decompose(successors_of(graph)), options, objective_ns)
    choice = frontiers.choose(node, leftover_ns, batch_max=queue.size)

For every node, everything that is still to come when it begins is one Pareto front of (time, cost), made once, from
the last part to the first: in series times and costs add up; side by side the slowest counts and all are paid for.
A decision is then one bisection, for graphs of any length, which makes groups of three stages unnecessary.

Rules of this file
- Exact for mean times (z = 0) on series-parallel graphs: no plan is cheaper at the entries, on the main line and at
  forks. If fronts had to be thinned, `loss_ns` says by how much: what is found within B + loss_ns costs no more than
  the best within B. Nought, the usual, is exact.
- Nodes further inside a branch take their siblings to be on plan (project.py); graphs that are not series-parallel
  are planned with some waiting added (series_parallel.layered). Both may cost more than needed, neither is late.
- With z > 0 the time of a plan is a percentile (quantile.py): sound, never dearer than percentiles added up, and
  best but for counting z√v at most 6.1 % too high. `loss_ns` holds there as well, by each ruler.
- Nothing here learns. When profiles or predicted interference change, build again: some ten milliseconds.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np

from ..errors import DeclarationError
from .options import Option
from .pareto import Floats, Ints, Limits
from .project import WHOLE, Table, node_tables
from .quantile import Ruler, rulers
from .series_parallel import Series, layered
from .solve import Line, Stage, read_plan, solve

__all__ = ["Choice", "Frontiers", "build"]

#: Points above which a front is thinned, and steps of the objective it is thinned to. Percentiles make do with fewer
#: because they need four fronts instead of one.
MEAN_POINTS, PERCENTILE_POINTS = 4096, 1024


class Choice(msgspec.Struct, frozen=True, gc=False):
    """What to run a node in. `slack_ns` below nought: even this, the fastest, is expected to be too late."""

    node: int
    option: Option
    #: Position of the option in the list that `build` was given for the node.
    index: int
    #: Time that everything still to come takes, and the time left above that.
    need_ns: int
    slack_ns: int
    #: Expected cost of everything still to come, this stage included.
    cost_usd: float
    #: Where it stands in its table: what `faster` and `cheaper` start from.
    batch_row: int
    point: int


class _Lookup:
    """A table for bisection. Memory views answer with plain integers, without copying the arrays into lists."""

    __slots__ = ("changes", "cost_usd", "need_ns", "option")

    def __init__(self, table: Table) -> None:
        self.need_ns = np.ascontiguousarray(table.need_ns).data
        self.cost_usd = np.ascontiguousarray(table.cost_usd).data
        self.option = np.ascontiguousarray(table.option).data
        #: Points at which the node's own option differs from that of the point before.
        self.changes = (np.flatnonzero(np.diff(table.option)) + 1).data


class Frontiers:
    """The look-up tables of one workflow."""

    def __init__(
        self,
        options: Sequence[Sequence[Option]],
        tables: Sequence[Sequence[tuple[int, Table]]],
        solved: Sequence[tuple[Ruler, Line]],
        loss_ns: int,
    ) -> None:
        #: What is found within B + loss_ns costs no more than the best within B. Nought is exact.
        self.loss_ns = loss_ns
        self._options = options
        self._sizes = [[size for size, _ in rows] for rows in tables]
        self._lookups = [[_Lookup(table) for _, table in rows] for rows in tables]
        self._solved = solved

    def choose(self, node: int, leftover_ns: int, batch_max: int | None = None) -> Choice:
        """The option that makes everything still to come cheapest within `leftover_ns`.

        `batch_max` bounds the batch of this node only. Below the smallest batch that there is, that one is taken:
        it runs with fewer items. If there is not enough time, the fastest is taken and the slack is negative.
        """
        row = self._row(node, batch_max)
        point = bisect_right(self._lookups[node][row].need_ns, leftover_ns)
        return self._choice(node, row, point - 1 if point else 0, leftover_ns)

    def faster(self, choice: Choice) -> Choice | None:
        """The nearest plan that is faster, dearer, and has another option for this node."""
        changes = self._lookups[choice.node][choice.batch_row].changes
        run = bisect_right(changes, choice.point)
        return self._neighbour(choice, changes[run - 1] - 1) if run else None

    def cheaper(self, choice: Choice) -> Choice | None:
        """The nearest plan that is cheaper, slower, and has another option for this node; it may be too late."""
        changes = self._lookups[choice.node][choice.batch_row].changes
        run = bisect_right(changes, choice.point)
        return self._neighbour(choice, changes[run]) if run < len(changes) else None

    def points(self, node: int, batch_max: int | None = None) -> tuple[Ints, Floats, Ints]:
        """The node's whole front for tables and plots: needed time, cost of all that is left, option."""
        lookup = self._lookups[node][self._row(node, batch_max)]
        return np.asarray(lookup.need_ns), np.asarray(lookup.cost_usd), np.asarray(lookup.option)

    def plan(self, leftover_ns: int) -> list[Option] | None:
        """An option for every node when the whole workflow is still to come; None if there is not enough time."""
        best: tuple[float, Line, int] | None = None
        for ruler, line in self._solved:
            front = line.suffix[0]
            in_time = np.flatnonzero(ruler.percentile_ns(front.time_ns, front.mean_ns, front.var_ns2) <= leftover_ns)
            if len(in_time):  # costs descend along the front
                point = int(in_time[-1])
                if best is None or front.cost_usd[point] < best[0]:
                    best = (float(front.cost_usd[point]), line, point)
        if best is None:
            return None
        chosen: dict[int, int] = {}
        read_plan(best[1], best[2], chosen)
        return [self._options[node][chosen[node]] for node in range(len(self._options))]

    def _row(self, node: int, batch_max: int | None) -> int:
        """Which of the node's tables holds for such a queue."""
        if batch_max is None:
            return -1
        row = bisect_right(self._sizes[node], batch_max)
        return row - 1 if row else 0

    def _neighbour(self, choice: Choice, point: int) -> Choice:
        return self._choice(choice.node, choice.batch_row, point, choice.need_ns + choice.slack_ns)

    def _choice(self, node: int, row: int, point: int, leftover_ns: int) -> Choice:
        lookup = self._lookups[node][row]
        index, need_ns = lookup.option[point], lookup.need_ns[point]
        option = self._options[node][index]
        return Choice(node, option, index, need_ns, leftover_ns - need_ns, lookup.cost_usd[point], row, point)


def build(
    shape: Series,
    options: Sequence[Sequence[Option]],
    objective_ns: int,
    *,
    z: float = 0.0,
    resolution_ns: int | None = None,
) -> Frontiers:
    """Tables for all nodes of a workflow; `options[node]` is what the node can be run in.

    Nobody has more time than `objective_ns`, so slower plans are left out. `z` is 0 for means and
    `quantile.z_value(...)` for a percentile. By default fronts are thinned only if they grow too long;
    `resolution_ns=1` never thins them, a larger one always does, to steps of that length.
    """
    if sorted(shape.nodes()) != list(range(len(options))):
        raise DeclarationError("each node of the shape needs its list of options, and there must be no others")
    if not all(options) or objective_ns < 1:
        raise DeclarationError("every node needs at least one option, and the objective must be longer than nothing")
    spread = max(option.spread for row in options for option in row)
    points = PERCENTILE_POINTS if z and spread else MEAN_POINTS
    step_ns = objective_ns // points + 1
    if resolution_ns is not None:
        points, step_ns = (sys.maxsize if resolution_ns <= 1 else 0), max(1, resolution_ns)
    shape = layered(shape)
    stages = {node: Stage(row) for node, row in enumerate(options)}
    solved: list[tuple[Ruler, Line]] = []
    by_ruler: list[dict[int, list[tuple[int, Table]]]] = []
    for ruler in rulers(z, spread, objective_ns):
        line = solve(shape, stages, ruler, Limits(max(1, objective_ns - ruler.offset_ns), points, step_ns))
        solved.append((ruler, line))
        by_ruler.append({})
        node_tables(line, ruler, WHOLE, by_ruler[-1])
    tables = [_cheapest([found[node] for found in by_ruler]) for node in range(len(options))]
    return Frontiers(options, tables, solved, max(line.suffix[0].loss_ns for _, line in solved))


def _cheapest(by_ruler: Sequence[Sequence[tuple[int, Table]]]) -> Sequence[tuple[int, Table]]:
    """The tables of one node: by whichever ruler a plan is in time, it is."""
    if len(by_ruler) == 1:
        return by_ruler[0]
    merged = []
    for same_batch in zip(*by_ruler, strict=True):
        columns = zip(*(table for _, table in same_batch), strict=True)
        merged.append((same_batch[0][0], Table(*(np.concatenate(column) for column in columns)).best()))
    return merged
