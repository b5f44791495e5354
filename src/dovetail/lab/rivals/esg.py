"""ESG as published, as far as it is known: search per queue with the budget that is left, dispatch by locality.

Our own implementation after section A of the notes on ESG: the outline is second hand, names and several details are
recollection or inference (`unverified`). One queue per workflow and function; the objective is distributed over
groups of at most three stages; before each batch the K cheapest configurations of the group within its leftover
budget are searched (`astar`), only the first stage's part is acted on, and the dispatcher tries them in order.

Two liberties, neither of which changes the best choice: stages behind the first are reduced to their (time, cost)
front before the search, and answers are remembered per millisecond of budget (rounded down). Both keep a run of
minutes from taking hours in Python; the time of a search that is not remembered is in docs/results/plan.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...control import Policy
from ...plan.distribute import NodeShare, average_normalised_lengths, distribute
from ...plan.dominators import successors_of
from ...plan.options import Option, Prices, item_cost_usd, pareto
from ...plan.series_parallel import decompose
from ...predict import Predictor
from ...schedule import Hold
from ...state import Batch, Config, Item, Queue, Worker
from ...units import MS
from ...wiring import PolicySpec
from ...workflow.graph import Graph
from .astar import fastest_first, minimum, search
from .common import MAX_OPEN, Market, Rival, rival_policy
from .prewarm import Prewarmer, home_of
from .unverified import GROUP_SIZE, K_BEST

__all__ = ["EsgPlanner", "make"]

#: Times a queue is looked at in vain before the minimum configuration is offered as well. [our choice: not known]
RECHECKS = 3


class EsgPlanner(Rival):
    """ESG_1Q behind our protocol."""

    def __init__(
        self,
        market: Market,
        *,
        k: int = K_BEST,
        group_size: int = GROUP_SIZE,
        head_room_pct: int = 0,
        prewarmer: Prewarmer | None = None,
        max_open: int = MAX_OPEN,
    ) -> None:
        super().__init__(market, max_open=max_open)
        #: None: every model is warm everywhere, as after a while of steady load.
        self.prewarmer = prewarmer
        self._k = k
        #: Part of the objective that is kept back; the original keeps none.
        self._head_room_pct = head_room_pct
        self._group_size = group_size
        self._options: dict[str, list[list[Option]]] = {}
        self._fronts: dict[str, list[list[Option]]] = {}
        self._shares: dict[str, tuple[NodeShare, ...]] = {}
        self._remembered: dict[tuple[str, int, int, int], tuple[Config, ...]] = {}
        #: Times that a queue was looked at: when a batch has ended, and when work has come for it. With the count at
        #: which its head was looked at first, that is ESG's list of queues to check again.
        self._ended = 0
        self._came: dict[str, int] = {}
        self._since: dict[str, int] = {}

    def prepare(self, graph: Graph) -> None:
        """Options of every stage and the distribution of the objective."""
        specs = [graph.stage_of(i) for i in range(len(graph.nodes))]
        rows = []
        for stage in specs:
            timed = [(c, self.market.time_ns(stage, c)) for c in self.market.configs(stage)]
            spread, worker = self.market.spread(stage), self.market.worker(stage)
            prices = Prices(worker.usd_per_hour, worker.usd_per_core_hour)
            rows.append([Option(c, t, spread, item_cost_usd(c, t, prices)) for c, t in timed])
        self._options[graph.name] = rows
        self._fronts[graph.name] = [pareto(row) for row in rows]
        common = set.intersection(*({o.config for o in row} for row in rows))
        times = [[o.mean_ns for o in row if o.config in common] for row in rows]
        if not common:  # stages on the host and on a device, say: each in its own minimum
            times = [[minimum(row).mean_ns] for row in rows]
        lengths = average_normalised_lengths(times)
        self._shares[graph.name] = distribute(decompose(successors_of(graph)), lengths, self._group_size)

    def decide(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """The K best configurations for the oldest job's leftover budget, then the fallbacks."""
        head = queue.head()
        assert head is not None
        request = head.request
        name = request.graph.name
        share = self._shares[name][head.node]
        objective = (request.objective_ns - request.arrived_ns) * (100 - self._head_room_pct) // 100
        deadline = share.group_deadline.numerator * objective // share.group_deadline.denominator
        budget_ms = (request.arrived_ns + deadline - now_ns) // MS
        limit = max(queue.stage.batch[0], min(queue.size, queue.stage.batch[-1]))
        key = (name, head.node, budget_ms, limit)
        found = self._remembered.get(key)
        if found is None:
            found = self._remembered[key] = self._search(name, head.node, share.group, budget_ms * MS, limit)
        if self._looks(queue.key) - self._since.get(queue.key, 0) >= RECHECKS:
            return (*found, minimum(self._options[name][head.node]).config)
        return found

    def count(self, item: Item, now_ns: int) -> None:
        """Work has come; calls are what warm-ups are predicted from."""
        queue = item.request.graph.nodes[item.node].queue
        self._came[queue.key] = self._came.get(queue.key, 0) + 1
        if queue.size == 1:
            self._since[queue.key] = self._looks(queue.key)
        if self.prewarmer is not None:
            self.prewarmer.called(item.request.graph.nodes[item.node].stage.name, now_ns)

    def started(self, batch: Batch, now_ns: int) -> None:
        """The next head is looked at from now on. A model that is used is kept alive."""
        self._since[batch.queue.key] = self._looks(batch.queue.key)
        if self.prewarmer is not None:
            self.prewarmer.used(batch.worker.id, batch.queue.stage.name, batch.sent_ns)

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """There is room: all queues are looked at."""
        self._ended += done

    def place(self, queue: Queue, config: Config, holders: Mapping[int, Worker]) -> Worker | None:
        """Where the data is; for a first stage the function's home; else the worker with most room."""
        head = queue.head()
        origin = head.origin if head is not None else 0
        if origin in holders:
            if holders[origin].fits(config):
                return holders[origin]
        elif holders:
            home = home_of(queue.stage.name, list(holders.values()))
            if home.fits(config):
                return home
        roomy = [w for w in holders.values() if w.fits(config)]
        return max(roomy, key=lambda w: (w.free_pct, w.free_cpus, -w.id), default=None)

    def _looks(self, key: str) -> int:
        return self._ended + self._came.get(key, 0)

    def _search(self, name: str, node: int, group: tuple[int, ...], budget_ns: int, limit: int) -> tuple[Config, ...]:
        rest = group[group.index(node) + 1 :]
        stages = [self._options[name][node], *(self._fronts[name][n] for n in rest)]
        result = search(stages, budget_ns, self._k, first_batch_max=limit) if budget_ns > 0 else None
        if result is not None and result.paths:
            return tuple(dict.fromkeys(path.options[0].config for path in result.paths))
        return tuple(o.config for o in fastest_first(stages[0], self._k, batch_max=limit))


def make(
    spec: PolicySpec,
    predictor: Predictor,
    cores: int,
    home: int,
    *,
    k: int = K_BEST,
    group_size: int = GROUP_SIZE,
    head_room_pct: int = 0,
) -> Policy:
    """ESG for the registry; every model is warm everywhere."""
    market = Market(predictor, spec.space)
    planner = EsgPlanner(market, k=k, group_size=group_size, head_room_pct=head_room_pct, max_open=spec.max_open)
    return rival_policy(planner)
