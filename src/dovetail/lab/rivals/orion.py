"""Orion (OSDI '22), its right-sizing: the sizes of all stages, chosen once so that the 95th percentile is in time.

Source of the rules: the authors' public code, icanforce/Orion-OSDI22, DAG_Modeler/Program.cs (the search) and
CDF_PDF_Manager.cs (end-to-end latency). docs/rivals.md says what was adapted and why.

- All stages start at their minimum size. Each step tries the next size up on every stage alone and keeps the one that
  gives the lowest 95th percentile of the end-to-end latency; it ends when that is within the target.
- The end-to-end distribution is made of the stages': a convolution for stages behind one another, the product of the
  distribution functions where branches join. Branches count as independent, as in the original's machine-learning
  pipeline (its video pipeline has measured joint distributions).
- Static: nothing is re-planned while running, and queueing is not part of the model.

Bundling of parallel invocations and pre-warming, Orion's other two parts, are left out: there are neither many
parallel invocations of one stage nor cold starts in the worlds it is compared in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...control import Policy
from ...predict import Predictor
from ...state import Config
from ...wiring import PolicySpec
from ...workflow.graph import Graph, StageSpec
from .common import MAX_OPEN, Market, StaticPlanner, rival_policy

__all__ = ["Latency", "OrionPlanner", "make", "next_sizes"]

PERCENTILE = 0.95
#: Steps after which the search gives up. [Program.cs]
MAX_STEPS = 10_000
#: Grid of the distributions, as a part of the target. The original's is 100 ms for targets of 25 s: a 250th.
GRID_STEPS = 1000
#: Logarithms this many standard deviations from the mean are left out: three in a million.
TAIL_SIGMAS = 4.5


class Latency:
    """A distribution of durations on a grid: `mass[i]` is the probability of `first + i` steps."""

    __slots__ = ("first", "mass")

    def __init__(self, first: int, mass: NDArray[np.float64]) -> None:
        self.first = first
        self.mass = mass

    @classmethod
    def log_normal(cls, mean_ns: float, spread: float, step_ns: float) -> Latency:
        """Of one run, with standard deviation `spread` times the mean."""
        sigma = math.sqrt(math.log1p(spread * spread))
        if not sigma:
            return cls(round(mean_ns / step_ns), np.ones(1))
        middle = math.log(mean_ns) - sigma * sigma / 2
        first = math.floor(math.exp(middle - TAIL_SIGMAS * sigma) / step_ns)
        last = math.ceil(math.exp(middle + TAIL_SIGMAS * sigma) / step_ns)
        # Each grid point stands for half a step to either side, so that sums of stages are not biased.
        edges = [max(k - 0.5, 1e-9) * step_ns for k in range(first, last + 2)]
        below = np.array([0.5 * (1 + math.erf((math.log(e) - middle) / (sigma * math.sqrt(2)))) for e in edges])
        mass = np.diff(below)
        return cls(first, mass / mass.sum())

    def then(self, other: Latency) -> Latency:
        """One behind the other."""
        return Latency(self.first + other.first, np.convolve(self.mass, other.mass))

    def joined(self, other: Latency) -> Latency:
        """Both at the same time, until the later one is done."""
        first = min(self.first, other.first)
        end = max(self.first + len(self.mass), other.first + len(other.mass))
        both = np.ones(end - first)
        for one in (self, other):
            below = np.zeros(end - first)
            below[one.first - first : one.first - first + len(one.mass)] = one.mass
            both *= np.cumsum(below)
        return Latency(first, np.diff(both, prepend=0.0))

    def percentile(self, part: float) -> int:
        """The first grid point that so large a part is at or below."""
        return self.first + min(int(np.searchsorted(np.cumsum(self.mass), part)), len(self.mass) - 1)


def next_sizes(config: Config, configs: Sequence[Config]) -> list[Config]:
    """Configurations one step larger: no less of either resource, and nothing in between."""

    def covers(large: Config, small: Config) -> bool:
        return (
            large.batch == small.batch
            and large != small
            and large.share_pct >= small.share_pct
            and large.cpus >= small.cpus
        )

    larger = [c for c in configs if covers(c, config)]
    return [c for c in larger if not any(covers(c, between) for between in larger)]


class OrionPlanner(StaticPlanner):
    """Sizes fixed per workflow before the first request."""

    def __init__(self, market: Market, *, percentile: float = PERCENTILE, max_open: int = MAX_OPEN) -> None:
        super().__init__(market, max_open=max_open)
        self._percentile = percentile

    def plan(self, graph: Graph) -> Mapping[str, Config]:
        """Grow the best stage, step by step, until the percentile is within the objective or no step helps."""
        step_ns = graph.slo_ns / GRID_STEPS
        sizes = {s.name: self.market.least(s) for s in graph.stages}
        known: dict[tuple[str, Config], Latency] = {}
        reached = self._end_to_end(graph, sizes, step_ns, known)
        for _ in range(MAX_STEPS):
            if reached <= GRID_STEPS:
                break
            tries = [
                (self._end_to_end(graph, sizes | {s.name: larger}, step_ns, known), s.name, larger)
                for s in graph.stages
                for larger in next_sizes(sizes[s.name], self.market.configs(s))
            ]
            best = min(tries, key=lambda t: t[0], default=None)
            if best is None or best[0] >= reached:
                break  # every stage is as fast as it gets: the target is missed by as little as can be
            reached, grown, larger = best
            sizes[grown] = larger
        return sizes

    def _end_to_end(
        self, graph: Graph, sizes: Mapping[str, Config], step_ns: float, known: dict[tuple[str, Config], Latency]
    ) -> int:
        """The percentile of the whole workflow, in steps of the grid."""
        ends: list[Latency] = []
        for i, node in enumerate(graph.nodes):
            stage = graph.stage_of(i)
            end = self._latency(stage, sizes[stage.name], step_ns, known)
            before = [ends[j] for j in sorted({s.node for s in node.sources() if s.node >= 0})]
            if before:
                ready = before[0]
                for other in before[1:]:
                    ready = ready.joined(other)
                end = ready.then(end)
            ends.append(end)
        used = {s.node for n in graph.nodes for s in n.sources()}
        exits = [end for i, end in enumerate(ends) if i not in used]
        whole = exits[0]
        for other in exits[1:]:
            whole = whole.joined(other)
        return whole.percentile(self._percentile)

    def _latency(
        self, stage: StageSpec, config: Config, step_ns: float, known: dict[tuple[str, Config], Latency]
    ) -> Latency:
        found = known.get((stage.name, config))
        if found is None:
            mean_ns = self.market.time_ns(stage, config)
            found = known[stage.name, config] = Latency.log_normal(mean_ns, self.market.spread(stage), step_ns)
        return found


def make(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """Orion for the registry."""
    return rival_policy(OrionPlanner(Market(predictor, spec.space), max_open=spec.max_open))
