"""Dovetail's own planner: the least cost that still meets the objective, decided again before every batch.

For each workflow the whole trade of time against cost is kept as frontiers, one per suffix of its graph (`frontier`),
so that a decision is a look-up of the budget that is left. Beyond ESG:
- the budget is that of the whole rest of the workflow, not of a group of stages;
- in chains the chance of being in time is weighed in money, from a budget (`chance`); elsewhere the rest's time is a
  percentile. What later queues are known to take is set aside first;
- stages that several workflows share are batched together, the request with the least slack first;
- starting now is weighed against waiting for a larger batch;
- a request that is late already is run as cheaply as can be, so that it costs the others least.

Rules of this file: integers decide, ties are broken by order, and nothing is read but the cluster and the predictor.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..predict import Predictor
from ..predict.running import Mean, Rate
from ..state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request
from ..state.worker import FULL_SHARE
from ..units import MS, format_ns
from ..workflow.graph import Graph, Node
from .chance import Chances, Way
from .demand import Demand
from .frontier import Choice
from .protocol import Hold, Refusal
from .space import Space, configs_for
from .tables import WorkflowPlan

__all__ = ["DovetailPlanner", "PlannerSettings"]

#: Orders of classes must not overlap: later than any objective.
_CLASS_STEP = 1 << 62
#: A hold ends this much before the last moment at which its plan is in time: timers are not exact.
_HOLD_MARGIN_NS = 1 * MS
#: A larger batch is waited for only if it saves at least this part of what is left to pay.
_WORTH_WAITING = 0.0005
#: Chance that an arrival comes within twice the time it is expected in, if arrivals are by chance: 1 − 1/e².
_COMES = 0.865
#: The cluster is crowded when batches wait for more than this part (one in so many) of the objective.
_CROWDED = 50
#: Part of the devices' capacity that admission counts on; the rest is lost to shares that do not fit together.
_COUNTED_ON_PCT = 90
#: Batches between two looks at waits in queues and arrival rates; they change slowly.
_LOOK_EVERY = 32


class PlannerSettings(msgspec.Struct, frozen=True):
    """How the planner plans; the defaults are the product, everything else is an ablation."""

    space: Space = Space()
    #: Part of requests that should be in time where that is not too dear; 0.5 and below plan with means.
    percentile: float = 0.99
    #: Part by which being in time more surely may raise the expected cost of a request above that of the cheapest
    #: plan that is in time on average (chains). None: the percentile is met at any price.
    premium: float | None = 0.0025
    #: Wait for a larger batch when that is cheaper and in time.
    wait: bool = True
    #: Decide again before every stage; otherwise the plan made on arrival stands.
    replan: bool = True
    #: Refuse at once what cannot be in time.
    admission: bool = True
    max_open: int = 10_000


class DovetailPlanner:
    """Answers how."""

    #: Budgets shrink with time, and a crowd that has become known changes what is offered.
    restless = True

    def __init__(self, predictor: Predictor, settings: PlannerSettings | None = None) -> None:
        self._predictor = predictor
        self._settings = settings or PlannerSettings()
        self._graphs: dict[str, Graph] = {}
        self._plans: dict[str, WorkflowPlan] = {}
        self._rates: dict[str, Rate] = {}
        #: Stage -> wait in its queue that was not chosen.
        self._waits: dict[str, Mean] = {}
        #: Queue -> since when it is held on purpose.
        self._held_since_ns: dict[str, int] = {}
        self._finished = 0
        self._demand = Demand()
        #: Waits of late that were not chosen, of all stages.
        self._crowd = Mean(64)
        #: Without re-planning: request -> the plan made on arrival.
        self._fixed: dict[int, list[Config]] = {}

    def queue_key(self, graph: Graph, node: Node) -> str:
        """One queue per stage: requests of all workflows batch together."""
        self._graphs[graph.name] = graph
        return node.stage

    def bind(self, cluster: Cluster) -> None:
        """Remember the cluster; frontiers are made when its prices are known."""
        self._cluster = cluster

    def plan_of(self, name: str) -> WorkflowPlan | None:
        """The frontiers of a workflow; None while it cannot run.

        They are made again if its fan-out, its arrivals or learned times have changed, or its devices have.
        """
        plan, moves = self._plans.get(name), self._cluster.moves
        if plan is not None and not plan.stale and plan.moves == moves:
            return plan
        graph = self._graphs[name]
        if not all(self._cluster.holders[s.name] for s in graph.stages):
            return plan  # the last worker with some stage is gone: the old frontiers stand until another comes
        if plan is None:
            plan = self._plans[name] = WorkflowPlan(
                graph, self._predictor, self._settings.space, self._settings.percentile, self._settings.premium
            )
        if plan.stale or not plan.made_for(self._cluster.holders):
            plan.build(self._cluster.holders, self._intervals_ns())
        plan.moves = moves
        return plan

    # -- admission ----------------------------------------------------------------------------------------------

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """Refuse what cannot be in time even alone, and what would make more work due than the devices can do."""
        open_requests = len(self._cluster.requests)
        if open_requests >= self._settings.max_open:
            return Refusal(f"{open_requests} requests are open already", retry_after_ns=1000 * MS)
        plan = self.plan_of(graph.name) if self._settings.admission else None
        if plan is None or not plan.known:
            return None
        if not open_requests and not plan.profiled:
            return None  # what was learned may have changed, and only who is let in can show it
        capacity_pct = max(1, self._capacity_pct())
        queued_ns = self._queued_work() // capacity_pct
        # A crowd that nobody stands in is over, however it was remembered: who is refused teaches nothing.
        crowded = queued_ns > 0 and self._crowded(plan)
        slack_ns = objective_ns - now_ns - (plan.lean_ns if crowded else plan.fastest_ns)
        if slack_ns < 0 and not crowded:
            return Refusal(
                f"its fastest plan takes {format_ns(plan.fastest_ns)}, longer than its objective, on an idle cluster"
            )
        if crowded and queued_ns > slack_ns:
            return Refusal(
                f"it would wait for {format_ns(queued_ns)} behind others and be late", queued_ns - slack_ns
            )
        due = self._demand.due_by(objective_ns, priority) + plan.least_work_total
        excess_ns = due // capacity_pct - (objective_ns - now_ns) * _COUNTED_ON_PCT // 100
        if excess_ns > 0:
            return Refusal(f"{format_ns(excess_ns)} more work is due by its objective than can be done", excess_ns)
        return None

    def _crowded(self, plan: WorkflowPlan) -> bool:
        """Whether work waits for devices: then speed that costs capacity would make others late."""
        return self._crowd.value * _CROWDED > plan.slo_ns

    def _queued_work(self) -> int:
        """Share times nanoseconds that the work in queues takes at least."""
        work = 0
        for queue in self._cluster.queues.values():
            if queue.size:
                name = queue.stage.name
                work += queue.size * next(
                    (p.least_work[name] for p in self._plans.values() if name in p.least_work), 0
                )
        return work

    def _capacity_pct(self) -> int:
        """Shares of all devices together; host processes do not count."""
        return sum(FULL_SHARE for w in self._cluster.workers.values() if "python" not in w.spec.runs)

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
            return self._unplanned(queue)
        if not self._settings.replan:
            return (self._as_planned(plan, request, node),)
        left_ns = request.objective_ns - now_ns
        lean = self._crowded(plan)
        chances = plan.lean_chances if lean else plan.chances
        if chances is not None:
            return self._by_chance(chances, queue, node, left_ns - plan.waits_behind_ns[node], now_ns)
        in_time = self._in_time(plan, queue, node, left_ns - plan.waits_behind_ns[node], lean)
        if not in_time:
            in_time = self._in_time(plan, queue, node, left_ns, lean)
            if not in_time:
                return (plan.cheapest(node, queue.size),)
        if self._settings.wait and queue.size < queue.stage.batch[-1]:
            hold = self._worth_waiting(queue, plan, in_time[0], now_ns)
            if hold is not None:
                self._held_since_ns.setdefault(queue.key, now_ns)
                return hold
        return [choice.option.config for choice in in_time]

    def _unplanned(self, queue: Queue) -> Sequence[Config]:
        """All that is at hand on as much of a device as is free: some other stage has no worker to plan with yet."""
        worker = next(iter(self._cluster.holders[queue.stage.name].values()))
        configs = configs_for(queue.stage, worker.spec, self._settings.space)
        batch = max((c.batch for c in configs if c.batch <= queue.size), default=configs[0].batch)
        return sorted((c for c in configs if c.batch == batch), key=lambda c: -c.share_pct)

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
        if self._settings.wait and queue.size < queue.stage.batch[-1]:
            hold = self._worth_the_chance(chances, queue, node, left_ns, ways[0], now_ns)
            if hold is not None:
                self._held_since_ns.setdefault(queue.key, now_ns)
                return hold
        return [way.config for way in ways]

    def _worth_the_chance(
        self, chances: Chances, queue: Queue, node: int, left_ns: int, now: Way, now_ns: int
    ) -> Hold | None:
        """A hold, if a larger batch is worth it even though it may not come."""
        rate = self._rates.get(queue.key)
        best_usd = now.value_usd * (1 - _WORTH_WAITING)
        wanted, wait_ns = 0, 0
        for batch in queue.stage.batch:
            if batch <= queue.size:
                continue
            fill_ns = None if rate is None else rate.expected_ns(batch - queue.size)
            if fill_ns is None or left_ns <= 2 * fill_ns + _HOLD_MARGIN_NS:
                break  # no hold beyond the objective, however little is left to lose
            comes = chances.weigh(node, left_ns - fill_ns - _HOLD_MARGIN_NS, batch)
            in_vain = chances.weigh(node, left_ns - 2 * fill_ns - _HOLD_MARGIN_NS, now.config.batch)
            if comes is None or in_vain is None:
                continue
            value_usd = _COMES * comes.value_usd + (1 - _COMES) * in_vain.value_usd
            if value_usd < best_usd:
                best_usd, wanted, wait_ns = value_usd, batch, fill_ns
        if not wanted:
            return None
        until_ns = now_ns + max(_HOLD_MARGIN_NS, 2 * wait_ns)
        return Hold(until_ns, f"a batch of {wanted} is expected in {format_ns(wait_ns)} and is cheaper")

    def _in_time(self, plan: WorkflowPlan, queue: Queue, node: int, left_ns: int, lean: bool) -> list[Choice]:
        """The best choice for each batch size that is at hand and in time, the cheapest first."""
        choices: list[Choice] = []
        for batch in queue.stage.batch:
            if batch > queue.size and choices:
                break
            choice = plan.choose(node, left_ns, batch, lean=lean)
            if choice is not None:
                choices.append(choice)
        choices.sort(key=lambda c: c.cost_usd)
        return choices

    def _worth_waiting(self, queue: Queue, plan: WorkflowPlan, now_choice: Choice, now_ns: int) -> Hold | None:
        """A hold, if a larger batch is expected soon enough and saves enough."""
        rate = self._rates.get(queue.key)
        room_ns = now_choice.slack_ns - _HOLD_MARGIN_NS
        if rate is None or room_ns <= 0:
            return None
        node = now_choice.node
        left_ns = now_choice.need_ns + now_choice.slack_ns - plan.fill_ns[node, now_choice.option.config.batch]
        best_usd = now_choice.cost_usd * (1 - _WORTH_WAITING)
        wanted, wait_ns = 0, 0
        for batch in queue.stage.batch:
            if batch <= queue.size:
                continue
            fill_ns = rate.expected_ns(batch - queue.size)
            if fill_ns is None or fill_ns > room_ns:
                break
            later = plan.choose(node, left_ns - fill_ns - _HOLD_MARGIN_NS, batch)
            if later is not None and later.cost_usd < best_usd:
                best_usd, wanted, wait_ns = later.cost_usd, batch, fill_ns
        if not wanted:
            return None
        # Twice the expected wait: arrivals are irregular, and what was learned by then is looked at again.
        until_ns = now_ns + max(_HOLD_MARGIN_NS, min(2 * wait_ns, room_ns))
        return Hold(until_ns, f"a batch of {wanted} is expected in {format_ns(wait_ns)} and is cheaper")

    def _as_planned(self, plan: WorkflowPlan, request: Request, node: int) -> Config:
        """The configuration that was chosen when the request came."""
        fixed = self._fixed.get(request.id)
        if fixed is None:
            options = plan.frontiers.plan(request.objective_ns - request.arrived_ns) or plan.fastest
            fixed = self._fixed[request.id] = [o.config for o in options]
        return fixed[node]

    # -- learning -----------------------------------------------------------------------------------------------

    def note(self, item: Item, now_ns: int) -> None:
        """Learn how often items come to a queue."""
        key = item.request.graph.nodes[item.node].queue.key
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = Rate()
        rate.arrived(now_ns)
        request = item.request
        if request.id not in self._demand:
            plan = self._plans.get(request.graph.name)
            work = 0 if plan is None else plan.least_work_total
            self._demand.add(request.id, request.priority, request.objective_ns, work)

    def started(self, batch: Batch) -> None:
        """Learn how long the head of a batch has waited against the planner's will."""
        queue = batch.queue
        waited_ns = batch.sent_ns - batch.items[0].queued_ns
        held_since = self._held_since_ns.pop(queue.key, None)
        if held_since is not None:
            waited_ns -= batch.sent_ns - held_since
        waited_ns = max(0, waited_ns)
        self._waits.setdefault(queue.stage.name, Mean()).add(waited_ns)
        self._crowd.add(waited_ns)

    def finished(self, batch: Batch) -> None:
        """Take the work off the demand; now and then look whether plans still fit the times."""
        stage = batch.queue.stage.name
        for item in batch.items:
            plan = self._plans.get(item.request.graph.name)
            if plan is not None:
                self._demand.done(item.request.id, plan.least_work[stage])
        self._finished += 1
        finished = self._finished
        if finished % _LOOK_EVERY == 0 or finished & (finished - 1) == 0:  # the first batches teach most
            for plan in self._plans.values():
                plan.saw_times()
        if finished % _LOOK_EVERY == 0:
            waits = {stage: mean.value for stage, mean in self._waits.items()}
            intervals = self._intervals_ns()
            for plan in self._plans.values():
                plan.set_waits(waits)
                plan.saw_intervals(intervals)

    def _intervals_ns(self) -> dict[str, int]:
        """Stage -> interval between arrivals in the long run, where enough is known."""
        known = ((key, rate.steady_interval_ns()) for key, rate in self._rates.items())
        return {key: interval for key, interval in known if interval is not None}

    def closed(self, request: Request) -> None:
        """Learn how large fan-outs are."""
        self._fixed.pop(request.id, None)
        self._demand.remove(request.id)
        if request.sizes:
            plan = self._plans.get(request.graph.name)
            if plan is not None:
                for node, size in request.sizes.items():
                    plan.saw_size(node, size)
