"""Look-up tables of single nodes, also of those inside a branch, out of the fronts of a workflow.

A node of the main line needs its suffix's front and nothing else. A node inside a branch also depends on what its
siblings do: they share the join, and what comes after it. At the fork all is decided jointly and exactly; further
inside a branch the siblings are under way, and a table by leftover time alone cannot know how far. It assumes that
they follow the plan.

Rules of this file
- A `Plans` is a list of plans for the moment when a part begins: how much time is left for everything (`leftover`),
  how much of it is kept for what comes after the end of this line (`reserve`), and what all but this line costs
  (`others`).
- From one part to the next within a line, the leftover shrinks by the time that the plan gives the part.
- Later than the tightest plan, the siblings and all that follows the join stay as in the tightest plan, and what
  time there is goes to this branch. So a table says "too late" only if the fastest options of its path are.
- Therefore exact: nodes of the main line, and the nodes that begin when a fork of the main line does. Approximate in
  cost, never in time: nodes further inside a branch, and a bounded batch at a fork (siblings are planned without
  the bound).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .pareto import Floats, Ints, ParetoFront, position, sieve
from .quantile import Ruler
from .series_parallel import Leaf
from .solve import Block, Line

__all__ = ["WHOLE", "Plans", "Table", "node_tables"]

_NO_LIMIT = int(np.iinfo(np.int64).max)


class Table(NamedTuple):
    """What is best for one node by leftover time: needed time ascends, cost of all that is left descends."""

    need_ns: Ints
    cost_usd: Floats
    option: Ints

    def best(self) -> Table:
        """Only the points that no other beats."""
        kept = sieve(self.need_ns, self.cost_usd, [len(self.need_ns)], _NO_LIMIT)[0]
        return Table(self.need_ns[kept], self.cost_usd[kept], self.option[kept])


class Plans(NamedTuple):
    """Plans at the moment when a part of a line begins, and the two figures of the tightest of them."""

    leftover_ns: Ints
    reserve_ns: Ints
    others_usd: Floats
    tight_reserve_ns: int = 0
    tight_others_usd: float = 0.0

    def at(self, front: ParetoFront) -> tuple[Plans, Ints]:
        """The plans that this front can keep, with their points; then every point as if later than all plans."""
        point = position(front.time_ns, self.leftover_ns - self.reserve_ns)
        able = point >= 0
        count = len(front.time_ns)
        plans = Plans(
            np.concatenate((self.leftover_ns[able], front.time_ns + self.tight_reserve_ns)),
            np.concatenate((self.reserve_ns[able], np.full(count, self.tight_reserve_ns, np.int64))),
            np.concatenate((self.others_usd[able], np.full(count, self.tight_others_usd))),
        )
        return plans, np.concatenate((point[able], np.arange(count)))

    def after(self, front: ParetoFront, part_times_ns: Ints) -> Plans:
        """The same plans when the front's first part is over, as planned."""
        point = position(front.time_ns, self.leftover_ns - self.reserve_ns)
        able = point >= 0
        return self._replace(
            leftover_ns=self.leftover_ns[able] - part_times_ns[front.first[point[able]]],
            reserve_ns=self.reserve_ns[able],
            others_usd=self.others_usd[able],
        )


#: The main line: nothing is beside it, nothing comes after it.
WHOLE = Plans(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def node_tables(line: Line, ruler: Ruler, plans: Plans, tables: dict[int, list[tuple[int, Table]]]) -> None:
    """Write into `tables`, per node of the line, (batch size, table) in ascending size."""
    for j, part in enumerate(line.series.parts):
        block = line.blocks[j]
        if block is None:
            assert isinstance(part, Leaf)
            tables[part.node] = [(size, _table(front, ruler, plans)) for size, front in line.by_batch[j]]
        else:
            for number, branch in enumerate(block.branches):
                inside = _inside(plans, line.suffix[j], line.suffix[j + 1], block, number)
                node_tables(branch, ruler, inside, tables)
        plans = plans.after(line.suffix[j], line.times_ns[j])


def _table(front: ParetoFront, ruler: Ruler, plans: Plans) -> Table:
    if not len(plans.leftover_ns):  # the main line
        need_ns = ruler.percentile_ns(front.time_ns, front.mean_ns, front.var_ns2)
        return Table(need_ns, front.cost_usd, front.first)
    able, point = plans.at(front)
    return Table(
        able.leftover_ns + ruler.offset_ns, front.cost_usd[point] + able.others_usd, front.first[point]
    ).best()


def _inside(plans: Plans, front: ParetoFront, rest: ParetoFront, block: Block, number: int) -> Plans:
    """The plans of one branch of a block, at its fork. `front` is that of the block and the `rest` after it."""
    able, point = plans.at(front)
    after = front.rest[point]
    chosen = front.first[point]
    total_usd = front.cost_usd[point] + able.others_usd
    own = block.branches[number].suffix[0]
    others_usd = total_usd - own.cost_usd[block.front.picks[number][chosen]]
    reserve_ns = able.reserve_ns + rest.time_ns[after]
    kept = sieve(able.leftover_ns, total_usd, [len(total_usd)], _NO_LIMIT)[0]
    tight = int(kept[0])
    return Plans(
        able.leftover_ns[kept],
        reserve_ns[kept],
        others_usd[kept],
        int(reserve_ns[tight]),
        float(others_usd[tight]),
    )
