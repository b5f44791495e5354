"""One workflow's frontiers, made from profile and prices, and what is learned about the workflow while it runs."""

from __future__ import annotations

from collections.abc import Mapping

from ..profile.table import ProfileTable
from ..state import Worker
from ..units import MS
from ..workflow.graph import Graph
from .dominators import successors_of
from .frontier import Frontiers, build
from .learned import MILLION, Mean
from .options import Option, Prices, item_cost_usd
from .quantile import z_value
from .series_parallel import decompose, path_count
from .space import Space, configs_for

__all__ = ["WorkflowPlan"]

#: Time of a stage without a profile, per batch: only good enough to go on.
UNPROFILED_NS = 10 * MS
#: Frontiers are made again when a fan-out has grown or shrunk by more than a quarter.
_SIZE_CHANGE = 0.25


class WorkflowPlan:
    """Frontiers and their raw material."""

    def __init__(self, graph: Graph, table: ProfileTable, space: Space, percentile: float) -> None:
        self._graph = graph
        self._table = table
        self._space = space
        self._percentile = percentile
        self._successors = successors_of(graph)
        self._shape = decompose(self._successors)
        #: Mapped node -> items per request, in millionths, as seen and as planned with.
        self._sizes = {i: Mean() for i, n in enumerate(graph.nodes) if n.mapped}
        self._planned_sizes = dict.fromkeys(self._sizes, MILLION)
        self.options: list[list[Option]] = []
        self.frontiers: Frontiers
        #: False if some stage has no profile: then times are guesses and nothing is refused because of them.
        self.profiled = True
        #: Fan-outs are not what they were.
        self.stale = False
        #: Fastest time of the whole, and from each node on; the fastest option of each node.
        self.fastest_ns = 0
        self.fastest_rest_ns: list[int] = []
        self.fastest: list[Option] = []
        #: Stage -> share times nanoseconds that an item takes at least.
        self.least_work: dict[str, int] = {}
        #: Node -> wait to be expected in the queues behind it.
        self.waits_behind_ns = [0] * len(graph.nodes)

    def build(self, holders: Mapping[str, Mapping[int, Worker]]) -> None:
        """Make the frontiers for the workers that hold the stages now."""
        self.stale = False
        for node in self._sizes:
            if self._sizes[node].count:
                self._planned_sizes[node] = max(1, self._sizes[node].value)
        self.profiled = True
        self.options = [self._node_options(i, holders) for i in range(len(self._graph.nodes))]
        spread = max(o.spread for row in self.options for o in row)
        z = 0.0
        if self._percentile > 0.5:
            z = z_value(self._percentile, spread=spread, paths=path_count(self._shape))
        self.frontiers = build(self._shape, self.options, self._graph.slo_ns, z=z)
        self.fastest = [min(row, key=lambda o: (o.mean_ns, o.cost_usd)) for row in self.options]
        self.fastest_rest_ns = [self.frontiers.choose(i, 0).need_ns for i in range(len(self.options))]
        entries = set(range(len(self.options))) - {j for row in self._successors for j in row}
        self.fastest_ns = max(self.fastest_rest_ns[i] for i in entries)

    def _node_options(self, index: int, holders: Mapping[str, Mapping[int, Worker]]) -> list[Option]:
        """The node's configurations; a mapped node runs as many batches as its list needs, one after the other."""
        stage = self._graph.stage_of(index)
        worker = next(iter(holders[stage.name].values())).spec
        entry = self._table.entry(stage.name, worker.kind)
        prices = Prices(worker.usd_per_hour, worker.usd_per_core_hour)
        millionths = self._planned_sizes.get(index, MILLION)
        rows: list[Option] = []
        least: int | None = None
        for config in configs_for(stage, worker, self._space):
            mean_ns = self._table.latency_ns(stage.name, worker.kind, config.batch, config.cpus, config.share_pct)
            if mean_ns is None:
                self.profiled = False
                mean_ns = UNPROFILED_NS
            work = config.share_pct * mean_ns // config.batch
            least = work if least is None else min(least, work)
            batches = max(1, -(-millionths // (config.batch * MILLION)))
            cost = item_cost_usd(config, mean_ns, prices) * millionths / MILLION
            rows.append(Option(config, mean_ns * batches, 0.0 if entry is None else entry.spread, cost))
        self.least_work[stage.name] = least or 0
        return rows

    def set_waits(self, waits_ns: Mapping[str, int]) -> None:
        """Sum up, along the longest way, what queues behind each node are known to take."""
        for node in range(len(self._successors) - 1, -1, -1):
            self.waits_behind_ns[node] = max(
                (
                    waits_ns.get(self._graph.nodes[j].stage, 0) + self.waits_behind_ns[j]
                    for j in self._successors[node]
                ),
                default=0,
            )

    def saw_size(self, node: int, size: int) -> None:
        """A fan-out had this many items."""
        mean = self._sizes[node]
        mean.add(size * MILLION)
        planned = self._planned_sizes[node]
        if abs(mean.value - planned) > _SIZE_CHANGE * planned:
            self.stale = True
