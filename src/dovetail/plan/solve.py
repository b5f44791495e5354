"""Fronts of a whole workflow by one ruler: from the last part to the first, and from the inside to the outside.

Rules of this file
- `Line.suffix[j]` is the front of the parts from j to the end of that series: everything that is still to come when
  part j begins, up to the join if the series is a branch.
- A node's fronts exist once per batch size, because a batch cannot be larger than the queue: `Line.by_batch[j]` are
  the fronts with at most that batch *now* and any batch later. The last of them is `suffix[j]`.
- An option can be left out if another is no slower, no dearer and has no larger batch: whenever it is legal, the
  other is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from .options import Option
from .pareto import NOTHING, Floats, Ints, Limits, ParetoFront, beside, followed_by, sieve
from .quantile import Ruler
from .series_parallel import Leaf, Parallel, Series

__all__ = ["Block", "Line", "Stage", "read_plan", "solve"]


class Stage:
    """The options of one node as columns."""

    __slots__ = ("_by_batch", "_ends", "cost_usd", "mean_ns", "sd_ns", "sizes")

    def __init__(self, options: Sequence[Option]) -> None:
        count = len(options)
        self.mean_ns: Floats = np.fromiter((o.mean_ns for o in options), np.float64, count)
        self.sd_ns: Floats = self.mean_ns * np.fromiter((o.spread for o in options), np.float64, count)
        self.cost_usd: Floats = np.fromiter((o.cost_usd for o in options), np.float64, count)
        batch: Ints = np.fromiter((o.config.batch for o in options), np.int64, count)
        #: Options in order of batch size, the sizes, and where the options of each size end.
        self._by_batch: Ints = np.argsort(batch, kind="stable")
        sizes, counts = np.unique(batch, return_counts=True)
        self.sizes: list[int] = sizes.tolist()
        self._ends: list[int] = np.cumsum(counts).tolist()

    def worth_having(self, ruler: Ruler) -> tuple[ParetoFront, Ints, list[int]]:
        """Options that cannot be left out, by batch: as points, which they are, how many have at most each size."""
        time_ns = ruler.time_ns(self.mean_ns, self.sd_ns)
        fronts = sieve(time_ns[self._by_batch], self.cost_usd[self._by_batch], self._ends, int(time_ns.max()))
        # Of each front those of its own size; smaller ones were taken with theirs.
        own = [kept[kept >= begin] for begin, kept in zip([0, *self._ends], fronts, strict=False)]
        which = self._by_batch[np.concatenate(own)]
        points = ParetoFront(time_ns[which], self.cost_usd[which], self.mean_ns[which], self.sd_ns[which] ** 2)
        return points, which, list(accumulate(len(kept) for kept in own))


class Block:
    """Branches side by side, solved: the front of the block as a whole and the line of each branch."""

    __slots__ = ("branches", "front")

    def __init__(self, front: ParetoFront, branches: Sequence[Line]) -> None:
        self.front = front
        self.branches = branches


class Line:
    """A series, solved. The columns have one entry per part."""

    __slots__ = ("blocks", "by_batch", "series", "suffix", "times_ns")

    def __init__(self, series: Series) -> None:
        count = len(series.parts)
        self.series = series
        self.suffix: list[ParetoFront] = [NOTHING] * (count + 1)
        #: For a node, (batch size, front) in ascending size; empty for a block.
        self.by_batch: list[list[tuple[int, ParetoFront]]] = [[] for _ in range(count)]
        self.blocks: list[Block | None] = [None] * count
        #: Time of the part by the number that `suffix[j].first` gives.
        self.times_ns: list[Ints] = [NOTHING.time_ns] * count


def solve(series: Series, stages: Mapping[int, Stage], ruler: Ruler, limits: Limits) -> Line:
    """All fronts of a series that has no tangles."""
    line = Line(series)
    for j in range(len(series.parts) - 1, -1, -1):
        part, rest = series.parts[j], line.suffix[j + 1]
        if isinstance(part, Leaf):
            stage = stages[part.node]
            points, which, ends = stage.worth_having(ruler)
            fronts = followed_by(points, which, rest, ends, limits)
            line.by_batch[j] = list(zip(stage.sizes, fronts, strict=True))
            line.suffix[j] = fronts[-1]
            line.times_ns[j] = ruler.time_ns(stage.mean_ns, stage.sd_ns)
            continue
        assert isinstance(part, Parallel), "tangles are layered before they are solved"
        branches = [solve(branch, stages, ruler, limits) for branch in part.branches]
        block = Block(beside([b.suffix[0] for b in branches], limits), branches)
        count = len(block.front.time_ns)
        line.suffix[j] = followed_by(block.front, np.arange(count), rest, [count], limits)[0]
        line.blocks[j] = block
        line.times_ns[j] = block.front.time_ns
    return line


def read_plan(line: Line, point: int, plan: dict[int, int]) -> None:
    """Write into `plan`, per node, the option that makes up this point of the whole line."""
    for j, part in enumerate(line.series.parts):
        front, block = line.suffix[j], line.blocks[j]
        chosen = int(front.first[point])
        if block is None:
            assert isinstance(part, Leaf)
            plan[part.node] = chosen
        else:
            for branch, pick in zip(block.branches, block.front.picks, strict=True):
                read_plan(branch, int(pick[chosen]), plan)
        point = int(front.rest[point])
