"""Dovetail's planner as it was on 16 November 2026 (commit 40a5e3e), kept to be compared with.

It plans batch and share of every stage from frontiers and knows neither memory nor placement: the worker brings what
a batch needs, and the tightest fit gets it. Its rules, all of them as they were:
- The cheapest configuration in time is taken. In chains the chance of being late is weighed in money; elsewhere the
  rest takes its 99th percentile, and where that cannot be had the cheapest configuration of all is taken.
- A request is refused if its percentile is longer than its objective, if the queues would make it late in a crowd,
  or if more work is due by its objective than 90 % of the devices can do. Queues that are held on purpose count as
  backlog, and chosen waits of one workflow as a crowd for all. Nobody is given up later.
- A batch mixes classes; the higher class and then the least slack goes first.

The tables are today's (`plan.tables`), and so are means and rates; ablations of the old planner were left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...control import Policy
from ...plan import Space
from ...plan.chance import Chances, Way
from ...plan.dominators import successors_of
from ...plan.frontier import Choice
from ...plan.space import configs_for
from ...plan.tables import WorkflowPlan
from ...predict import Predictor
from ...predict.running import Mean, Rate
from ...scale import LoadEverything
from ...schedule import Hold, Refusal
from ...state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request
from ...state.worker import FULL_SHARE
from ...units import MS, format_ns
from ...wiring import PolicySpec
from ...workflow.graph import Graph, Node
from .common import ConfigScheduler
from .old_demand import Demand

__all__ = ["OldDovetailPlanner", "make"]

# Constants as they were.
_CLASS_STEP = 1 << 62
_HOLD_MARGIN_NS = 1 * MS
_WORTH_WAITING = 0.0005
_COMES = 0.865
_CROWDED = 50
_COUNTED_ON_PCT = 90
_LOOK_EVERY = 32
_PERCENTILE, _PREMIUM = 0.99, 0.0025


class _Planned:
    """A workflow's tables, and from them what the old planner called fastest: percentiles, not means."""

    def __init__(self, graph: Graph, predictor: Predictor, space: Space) -> None:
        self.tables = WorkflowPlan(graph, predictor, space, _PERCENTILE, _PREMIUM)
        self._successors = successors_of(graph)
        self.fastest_rest_ns: list[int] = []
        self.fastest_ns = self.lean_ns = 0

    def build(self, cluster: Cluster, intervals_ns: dict[str, int]) -> None:
        tables = self.tables
        tables.build(cluster.kinds, intervals_ns)
        nodes = range(len(self._successors))
        entries = set(nodes) - {j for row in self._successors for j in row}
        lean = tables.frontiers(lean=True)
        self.fastest_rest_ns = [tables.frontiers().choose(i, 0).need_ns for i in nodes]
        self.fastest_ns = max(self.fastest_rest_ns[i] for i in entries)
        self.lean_ns = max(lean.choose(i, 0).need_ns for i in entries)


class OldDovetailPlanner(ConfigScheduler):
    """Answers how."""

    restless = True

    def __init__(self, predictor: Predictor, space: Space, *, max_open: int = 10_000) -> None:
        self._predictor = predictor
        self._space = space
        self._max_open = max_open
        self._graphs: dict[str, Graph] = {}
        self._plans: dict[str, _Planned] = {}
        self._rates: dict[str, Rate] = {}
        #: Stage -> wait in its queue that was not chosen; and queue -> since when it is held on purpose.
        self._waits: dict[str, Mean] = {}
        self._held_since_ns: dict[str, int] = {}
        self._finished = 0
        self._demand = Demand()
        #: Waits of late that were not chosen, of all stages.
        self._crowd = Mean(64)

    def queue_key(self, graph: Graph, node: Node) -> str:
        """One queue per stage: requests of all workflows batch together."""
        self._graphs[graph.name] = graph
        return node.stage

    def bind(self, cluster: Cluster) -> None:
        """Remember the cluster; frontiers are made when its prices are known."""
        self.cluster = cluster

    def plan_of(self, name: str) -> _Planned | None:
        """The frontiers of a workflow; None while it cannot run."""
        plan, moves = self._plans.get(name), self.cluster.moves
        if plan is not None and not plan.tables.stale and plan.tables.moves == moves:
            return plan
        graph = self._graphs[name]
        if not all(self.cluster.holders[s.name] for s in graph.stages):
            return plan
        if plan is None:
            plan = self._plans[name] = _Planned(graph, self._predictor, self._space)
        if plan.tables.stale or not plan.tables.made_for(self.cluster.kinds):
            plan.build(self.cluster, self._intervals_ns())
        plan.tables.moves = moves
        return plan

    # -- admission ----------------------------------------------------------------------------------------------

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """Refuse what cannot be in time even alone, and what would make more work due than the devices can do."""
        open_requests = len(self.cluster.requests)
        if open_requests >= self._max_open:
            return Refusal(f"{open_requests} requests are open already", retry_after_ns=1000 * MS)
        plan = self.plan_of(graph.name)
        if plan is None or not plan.tables.profiled:
            return None
        devices = sum(not w.spec.on_host for w in self.cluster.workers.values())
        capacity_pct = max(1, devices * FULL_SHARE)
        queued_ns = self._queued_work() // capacity_pct
        crowded = queued_ns > 0 and self._crowded(plan)
        slack_ns = objective_ns - now_ns - (plan.lean_ns if crowded else plan.fastest_ns)
        if slack_ns < 0 and not crowded:
            return Refusal(f"its fastest plan takes {format_ns(plan.fastest_ns)}, longer than its objective")
        if crowded and queued_ns > slack_ns:
            return Refusal(f"it would wait for {format_ns(queued_ns)} behind others and be late")
        due = self._demand.due_by(objective_ns, priority) + plan.tables.least_work_total[0]
        excess_ns = due // capacity_pct - (objective_ns - now_ns) * _COUNTED_ON_PCT // 100
        if excess_ns > 0:
            return Refusal(f"{format_ns(excess_ns)} more work is due by its objective than can be done")
        return None

    def _crowded(self, plan: _Planned) -> bool:
        """Whether work waits for devices, of whatever workflow."""
        return self._crowd.value * _CROWDED > plan.tables.slo_ns

    def _queued_work(self) -> int:
        """Share times nanoseconds that the work in queues takes at least, those that are held included."""
        work = 0
        for queue in self.cluster.queues.values():
            if queue.size:
                name = queue.stage.name
                rows = (p.tables.least_work for p in self._plans.values())
                work += queue.size * next((row[name][0] for row in rows if name in row), 0)
        return work

    # -- decisions ----------------------------------------------------------------------------------------------

    def order(self, request: Request, node: int) -> int:
        """Higher classes first; inside a class, what has to start soonest to be in time."""
        plan = self.plan_of(request.graph.name)
        rest_ns = 0 if plan is None else plan.fastest_rest_ns[node]
        return request.priority * _CLASS_STEP + request.objective_ns - rest_ns

    def choose(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """Configurations for the head's budget, the cheapest first, or a hold."""
        head = queue.head()
        assert head is not None
        request, node = head.request, head.node
        plan = self.plan_of(request.graph.name)
        if plan is None:
            worker = next(iter(self.cluster.holders[queue.stage.name].values()))
            configs = configs_for(queue.stage, worker.spec, self._space)
            batch = max((c.batch for c in configs if c.batch <= queue.size), default=configs[0].batch)
            return sorted((c for c in configs if c.batch == batch), key=lambda c: -c.share_pct)
        tables = plan.tables
        left_ns = request.objective_ns - now_ns
        lean = self._crowded(plan)
        chances = tables.chances(lean=lean)
        if chances is not None:
            return self._by_chance(chances, queue, node, left_ns - tables.waits_behind_ns[node], now_ns)
        in_time = self._in_time(tables, queue, node, left_ns - tables.waits_behind_ns[node], lean)
        if not in_time:
            in_time = self._in_time(tables, queue, node, left_ns, lean)
            if not in_time:
                return (tables.cheapest(node, queue.size).config,)
        hold = self._worth_waiting(queue, tables, in_time[0], now_ns)
        return [choice.option.config for choice in in_time] if hold is None else self._held(queue, hold, now_ns)

    def _held(self, queue: Queue, hold: Hold, now_ns: int) -> Hold:
        self._held_since_ns.setdefault(queue.key, now_ns)
        return hold

    def _by_chance(
        self, chances: Chances, queue: Queue, node: int, left_ns: int, now_ns: int
    ) -> Sequence[Config] | Hold:
        """The best way for each batch size at hand, cost and chance of being late weighed, or a hold."""
        ways: list[Way] = []
        for batch in queue.stage.batch:
            if batch > queue.size and ways:
                break
            way = chances.weigh(node, left_ns, batch)
            if way is not None:
                ways.append(way)
        ways.sort(key=lambda w: w.value_usd)
        hold = self._worth_the_chance(chances, queue, node, left_ns, ways[0], now_ns)
        return [way.config for way in ways] if hold is None else self._held(queue, hold, now_ns)

    def _worth_the_chance(
        self, chances: Chances, queue: Queue, node: int, left_ns: int, now: Way, now_ns: int
    ) -> Hold | None:
        """A hold, if a larger batch is worth it even though it may not come."""
        rate = self._rates.get(queue.key)
        best_usd, wanted, wait_ns = now.value_usd * (1 - _WORTH_WAITING), 0, 0
        for batch in queue.stage.batch:
            if batch <= queue.size:
                continue
            fill_ns = None if rate is None else rate.expected_ns(batch - queue.size)
            if fill_ns is None or left_ns <= 2 * fill_ns + _HOLD_MARGIN_NS:
                break
            comes = chances.weigh(node, left_ns - fill_ns - _HOLD_MARGIN_NS, batch)
            in_vain = chances.weigh(node, left_ns - 2 * fill_ns - _HOLD_MARGIN_NS, now.config.batch)
            if comes is None or in_vain is None:
                continue
            value_usd = _COMES * comes.value_usd + (1 - _COMES) * in_vain.value_usd
            if value_usd < best_usd:
                best_usd, wanted, wait_ns = value_usd, batch, fill_ns
        return _hold(wanted, wait_ns, 2 * wait_ns, now_ns)

    def _in_time(self, tables: WorkflowPlan, queue: Queue, node: int, left_ns: int, lean: bool) -> list[Choice]:
        """The best choice for each batch size that is at hand and in time, the cheapest first."""
        choices: list[Choice] = []
        for batch in queue.stage.batch:
            if batch > queue.size and choices:
                break
            choice = tables.choose(node, left_ns, batch, lean=lean)
            if choice is not None:
                choices.append(choice)
        choices.sort(key=lambda c: c.cost_usd)
        return choices

    def _worth_waiting(self, queue: Queue, tables: WorkflowPlan, now: Choice, now_ns: int) -> Hold | None:
        """A hold, if a larger batch is expected soon enough and saves enough."""
        rate = self._rates.get(queue.key)
        room_ns = now.slack_ns - _HOLD_MARGIN_NS
        if rate is None or room_ns <= 0:
            return None
        left_ns = now.need_ns + now.slack_ns - tables.fill_ns[now.node, now.option.config.batch]
        best_usd, wanted, wait_ns = now.cost_usd * (1 - _WORTH_WAITING), 0, 0
        for batch in queue.stage.batch:
            if batch <= queue.size:
                continue
            fill_ns = rate.expected_ns(batch - queue.size)
            if fill_ns is None or fill_ns > room_ns:
                break
            later = tables.choose(now.node, left_ns - fill_ns - _HOLD_MARGIN_NS, batch)
            if later is not None and later.cost_usd < best_usd:
                best_usd, wanted, wait_ns = later.cost_usd, batch, fill_ns
        return _hold(wanted, wait_ns, min(2 * wait_ns, room_ns), now_ns)

    # -- learning -----------------------------------------------------------------------------------------------

    def note(self, item: Item, now_ns: int) -> None:
        """Learn how often items come to a queue."""
        request = item.request
        self._rates.setdefault(request.graph.nodes[item.node].queue.key, Rate()).arrived(now_ns)
        if request.id not in self._demand:
            plan = self._plans.get(request.graph.name)
            work = 0 if plan is None else plan.tables.least_work_total[0]
            self._demand.add(request.id, request.priority, request.objective_ns, work)

    def started(self, batch: Batch, now_ns: int) -> None:
        """Learn how long the head of a batch has waited against the planner's will."""
        waited_ns = batch.sent_ns - batch.items[0].queued_ns
        held_since = self._held_since_ns.pop(batch.queue.key, None)
        if held_since is not None:
            waited_ns -= batch.sent_ns - held_since
        self._waits.setdefault(batch.queue.stage.name, Mean()).add(max(0, waited_ns))
        self._crowd.add(max(0, waited_ns))

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """Take the work off the demand; now and then look whether plans still fit the times."""
        if not done:
            return
        for item in batch.items:
            plan = self._plans.get(item.request.graph.name)
            if plan is not None:
                self._demand.done(item.request.id, plan.tables.least_work[batch.queue.stage.name][0])
        self._finished += 1
        if self._finished % _LOOK_EVERY == 0:
            waits = {stage: mean.value for stage, mean in self._waits.items()}
            intervals = self._intervals_ns()
            for plan in self._plans.values():
                plan.tables.set_waits(waits)
                plan.tables.saw_intervals(intervals)

    def _intervals_ns(self) -> dict[str, int]:
        known = ((key, rate.steady_interval_ns()) for key, rate in self._rates.items())
        return {key: interval for key, interval in known if interval is not None}

    def closed(self, request: Request) -> None:
        """Learn how large fan-outs are."""
        self._demand.remove(request.id)
        plan = self._plans.get(request.graph.name)
        if request.sizes and plan is not None:
            for node, size in request.sizes.items():
                plan.tables.saw_size(node, size)


def _hold(wanted: int, wait_ns: int, longest_ns: int, now_ns: int) -> Hold | None:
    if not wanted:
        return None
    reason = f"a batch of {wanted} is expected in {format_ns(wait_ns)} and is cheaper"
    return Hold(now_ns + max(_HOLD_MARGIN_NS, longest_ns), reason)


def make(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """The old `dovetail` for the registry."""
    planner = OldDovetailPlanner(predictor, spec.space, max_open=spec.max_open)
    return Policy(planner, LoadEverything(), predictor)
