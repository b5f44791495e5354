"""Dovetail's own planner: the least cost that still meets the objective, decided again before every batch.

It says who is let in, who goes first and which configurations are worth it. Where they run is `place`'s answer, and
`offers` puts both together.

For each workflow the whole trade of time against cost is kept as frontiers, one per suffix of its graph
(`plan.frontier`), so that a decision is a look-up of the budget that is left. Beyond ESG:
- the budget is that of the whole rest of the workflow, not of a group of stages;
- the chance of being in time is weighed in money, from a budget (`plan.chance`, `plan.branches`). Without prices, or
  while times are not known, the rest's time is a percentile, or its mean where the percentile cannot be had. What
  later queues are known to take is set aside;
- stages that several workflows share are batched together, the request with the least slack first. A batch mixes
  classes only if the higher one loses nothing by it;
- starting now is weighed against waiting for a larger batch;
- who would be late is refused at once (`admission`), and who waits and cannot be in time any more is given up if it
  is in the way of others. Who is late and in nobody's way is run as cheaply as can be.

Rules of this file: ties are broken by order, and nothing is read but the cluster and the predictor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ..plan.chance import Chances, Way
from ..plan.frontier import Choice
from ..plan.space import configs_for
from ..plan.tables import WorkflowPlan
from ..predict import Predictor
from ..predict.running import Mean
from ..state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request
from ..units import MS, format_ns
from ..workflow.graph import Graph, Node, StageSpec
from .account import Accounts
from .admission import Admission
from .backlog import Backlog
from .fastest import MIXED_PCT, as_fast
from .holding import Holding
from .plans import Plans
from .protocol import Hold, Refusal
from .ranked import Ranked
from .settings import PlannerSettings
from .trials import Trials
from .waiting import HOPELESS_PCT, LastChances

__all__ = ["DovetailPlanner"]

#: Orders of classes must not overlap: later than any objective.
_CLASS_STEP = 1 << 62
#: A workflow is crowded when batches of its stages wait for more than this part (one in so many) of its objective.
_CROWDED = 50


class DovetailPlanner:
    """Answers how."""

    #: Budgets shrink with time, and a crowd that has become known changes what is offered.
    restless = True

    def __init__(self, predictor: Predictor, settings: PlannerSettings | None = None) -> None:
        self._predictor = predictor
        self._settings = settings or PlannerSettings()
        self._holding = Holding()
        self._plans = Plans(predictor, self._settings, self._holding.intervals_ns)
        #: Stage -> wait in its queue that was not chosen.
        self._waits: defaultdict[str, Mean] = defaultdict(Mean)
        #: From the end of a batch until that is known here: what every batch costs beside its run.
        self._on_the_way = Mean()
        self._backlog = Backlog()
        self._admission = Admission()
        self._accounts = Accounts()
        #: Of the request that was last let in: its path, the wait before it and the time that it has.
        self._expected: tuple[int, int, int] = (0, 0, 0)
        #: If it was let in to see whether it can be in time: what it is taken to need.
        self._tries_ns = 0
        self._trials = Trials()
        self._last_chances = LastChances()
        #: Of the last choice: chances, node and time left that its scores are from; None if it was made otherwise.
        self._weighs: tuple[Chances, int, int] | None = None
        self._now_ns = 0
        #: Without re-planning: request -> the plan made on arrival.
        self._fixed: dict[int, list[Config]] = {}

    def queue_key(self, graph: Graph, node: Node) -> str:
        """One queue per stage: requests of all workflows batch together."""
        self._plans.declare(graph)
        return node.stage

    def bind(self, cluster: Cluster) -> None:
        """Remember the cluster; frontiers are made when its prices are known."""
        self._cluster = cluster
        self._plans.bind(cluster)

    def plan_of(self, name: str) -> WorkflowPlan | None:
        """The frontiers of a workflow; None while it cannot run."""
        return self._plans.of(name)

    def idle(self, now_ns: int) -> None:
        """Nothing was started: frontiers are brought up to date."""
        self._plans.idle()

    # -- admission ----------------------------------------------------------------------------------------------

    def judge(
        self,
        graph: CompiledGraph,
        priority: int,
        objective_ns: int,
        now_ns: int,
        fetch_ns: int = 0,
        queue_ns: int = 0,
    ) -> Refusal | None:
        """Refuse what cannot be in time even alone, and what would be late behind the work that goes first.

        `fetch_ns` is what models take to be fetched that nobody has, `queue_ns` what waits at the workers.
        """
        open_requests = len(self._cluster.requests)
        if open_requests >= self._settings.max_open:
            return Refusal(f"{open_requests} requests are open already", retry_after_ns=1000 * MS, firm=True)
        self._expected, self._tries_ns = (0, 0, 0), 0
        plan = self.plan_of(graph.name) if self._settings.admission else None
        if plan is None or not plan.familiar:
            return None
        if not open_requests and not plan.profiled:
            return None  # what was learned may have changed, and only who is let in can show it
        left_ns = objective_ns - now_ns
        if plan.quick_ns > left_ns:
            if not plan.profiled and self._trials.due(graph.name, now_ns):
                self._tries_ns = plan.quick_ns
                return None
            return Refusal(
                f"its fastest plan takes {format_ns(plan.quick_ns)}, longer than its objective, on an idle cluster"
            )
        wait_ns = max(self._wait_ns(priority, objective_ns), queue_ns * self._backlog.still_to_come_pct() // 100)
        # In a crowd it runs lean at first, and faster if that becomes too slow.
        path_ns = fetch_ns + (plan.path_ns + plan.quick_ns) // 2
        if path_ns > left_ns:
            path_ns = fetch_ns + plan.quick_ns
        if wait_ns and self._settings.goal == "time":  # else much of what waits is held on purpose
            devices = len(self._cluster.workers) - self._cluster.hosts
            wait_ns = self._backlog.overtaken_ns(priority, wait_ns, devices, self._cluster.hosts, now_ns)
        self._expected = path_ns, wait_ns, left_ns - path_ns
        return self._admission.judge(graph.name, priority, path_ns, wait_ns, left_ns, now_ns)

    def _wait_ns(self, priority: int, objective_ns: int) -> int:
        """How long the work takes that goes before a newcomer, on all devices and host processes together."""
        cluster = self._cluster
        if not cluster.waiting.ready:
            return 0  # nothing waits that could run
        return self._backlog.wait_ns(objective_ns, priority, len(cluster.workers) - cluster.hosts, cluster.hosts)

    def hopeless(self, now_ns: int) -> Sequence[tuple[Request, Refusal]]:
        """Who waits and cannot be in time any more, if something waits that can."""
        self._now_ns = now_ns
        self._plans.stepped(now_ns)
        if not self._settings.admission:
            return ()
        gone = self._last_chances.gone(self._cluster.waiting.items, now_ns)
        return [(r, Refusal(f.reason, self._room_in_ns(r, now_ns))) for r, f in gone] if gone else ()

    def _room_in_ns(self, request: Request, now_ns: int) -> int:
        """When there should be room for another request like this one."""
        slo_ns = request.objective_ns - request.arrived_ns
        plan = self.plan_of(request.graph.name)
        return max(MS, self._wait_ns(request.priority, now_ns + slo_ns) + (0 if plan is None else plan.path_ns))

    def _crowded(self, plan: WorkflowPlan) -> bool:
        """Whether its work waits for devices: then speed that costs capacity would make others late."""
        waits = self._waits
        for name in plan.stages:  # noqa: SIM110 - this is asked for every batch
            if name in waits and waits[name].value * _CROWDED > plan.slo_ns:
                return True
        return False

    def fetch_ns(self, stage: StageSpec) -> int:
        """What its model takes to be fetched, if nobody has it: a planner knows of no memory."""
        return 0

    # -- decisions ----------------------------------------------------------------------------------------------

    def order(self, request: Request, node: int) -> int:
        """Higher classes first; inside a class, what has to start soonest to be in time."""
        plan = self._plans.of(request.graph.name)
        rest_ns = 0 if plan is None else plan.quick_rest_ns[node]
        return request.priority * _CLASS_STEP + request.objective_ns - rest_ns

    def choose(self, queue: Queue, now_ns: int) -> Iterable[Ranked] | Hold:
        """Configurations for the head's budget, the best first, or a hold."""
        self._weighs = None
        head = queue.head()
        assert head is not None
        request, node = head.request, head.node
        plan = self.plan_of(request.graph.name)
        if plan is None:
            return self._unplanned(queue)
        if not self._settings.replan:
            return (Ranked(self._as_planned(plan, request, node), 0.0),)
        fetch_ns = self.fetch_ns(queue.stage)
        left_ns = request.objective_ns - now_ns - fetch_ns
        lean = self._crowded(plan)
        size = self._at_hand(queue, plan, node, request.priority)
        if self._settings.goal == "time":
            return as_fast(plan, size, node, left_ns, self._on_the_way.value, lean=lean)
        left_ns = self._holding.least_left_ns(queue, size, head, plan.quick_rest_ns[node], now_ns) - fetch_ns
        chances = plan.chances(lean=lean, rung=self._accounts.rung(request.graph.name))
        if chances is not None:
            return self._by_chance(plan, chances, queue, size, node, left_ns - plan.waits_behind_ns[node], now_ns)
        in_time = self._in_time(plan, queue, size, node, left_ns - plan.waits_behind_ns[node], lean=lean)
        if not in_time:
            in_time = self._in_time(plan, queue, size, node, left_ns, lean=lean)
            if not in_time:
                return self._late(plan, queue, size, node, left_ns)
        if self._settings.wait and size == queue.size < queue.stage.batch[-1]:
            hold = self._holding.by_cost(plan, queue, in_time[0], now_ns)
            if hold is not None:
                return self._holding.held(queue, hold)
        self._holding.go(queue, now_ns)
        return self._and_elsewhere(plan, size, node, left_ns, in_time)

    def score_later(self, ranked: Ranked, later_ns: int) -> float | None:
        """The score of what `choose` has just named if it starts so much later; None where that is not weighed."""
        if self._weighs is None:
            return None
        chances, node, left_ns = self._weighs
        return chances.value_usd(node, left_ns - later_ns, ranked.config)

    def _at_hand(self, queue: Queue, plan: WorkflowPlan, node: int, priority: int) -> int:
        """Items for a batch: those of the head's class, and the others if the batch takes hardly longer with them."""
        own, size = queue.of_class(priority), queue.size
        if own >= size:
            return size
        joined, alone_ns = own, 0
        for batch in queue.stage.batch:
            time_ns = plan.quickest_ns(node, batch)
            if batch >= own and not alone_ns:
                alone_ns = time_ns
            if batch > own and alone_ns and time_ns * 100 <= alone_ns * (100 + MIXED_PCT):
                joined = min(batch, size)
        return joined

    def _late(self, plan: WorkflowPlan, queue: Queue, size: int, node: int, left_ns: int) -> Sequence[Ranked]:
        """Where the percentile cannot be had: in time on average, else as fast as can be; as cheap if it is late."""
        choices = self._in_time(plan, queue, size, node, left_ns, means=True)
        if choices:
            return self._and_elsewhere(plan, size, node, left_ns, choices)
        late = plan.cheapest(node, size)
        if left_ns * 100 >= plan.quick_rest_ns[node] * HOPELESS_PCT:
            fastest = plan.fastest[node]
            return Ranked(fastest.config, fastest.cost_usd), Ranked(late.config, late.cost_usd)
        return (Ranked(late.config, late.cost_usd),)

    def _unplanned(self, queue: Queue) -> Sequence[Ranked]:
        """All that is at hand on as much of a device as is free: some other stage has no worker to plan with yet."""
        worker = next(iter(self._cluster.holders[queue.stage.name].values()))
        configs = configs_for(queue.stage, worker.spec, self._settings.space)
        batch = max((c.batch for c in configs if c.batch <= queue.size), default=configs[0].batch)
        return [Ranked(c, 0.0) for c in sorted(configs, key=lambda c: -c.share_pct) if c.batch == batch]

    def _by_chance(
        self, plan: WorkflowPlan, chances: Chances, queue: Queue, size: int, node: int, left_ns: int, now_ns: int
    ) -> Iterable[Ranked] | Hold:
        """The best way for each batch size at hand, cost and chance of being late weighed, or a hold."""
        ways: list[Way] = []
        for batch in queue.stage.batch:
            if batch > size and ways:
                break
            ways += chances.by_kind(node, left_ns, batch) if plan.kinds > 1 else chances.best(node, left_ns, batch)
        ways.sort(key=lambda w: w.value_usd)
        if self._settings.wait and size == queue.size < queue.stage.batch[-1]:
            hold = self._holding.by_chance(plan, chances, queue, node, left_ns, ways[0], now_ns)
            if hold is not None:
                return self._holding.held(queue, hold)
        self._holding.go(queue, now_ns)
        self._weighs = chances, node, left_ns
        return self._configs(chances, queue, node, left_ns, ways)

    def _configs(
        self, chances: Chances, queue: Queue, node: int, left_ns: int, ways: Sequence[Way]
    ) -> Iterator[Ranked]:
        """The best ways; and where none finds room, whatever is better than to wait as long as others did."""
        for way in ways:
            yield Ranked(way.config, way.value_usd)
        waits = self._waits.get(queue.stage.name)
        if waits is None or not waits.value:
            return
        best = ways[0].config.batch
        later = chances.weigh(node, left_ns - waits.value, best)
        if later is not None:
            for way in chances.others(node, left_ns, best, later.value_usd):
                yield Ranked(way.config, way.value_usd)

    def _in_time(
        self,
        plan: WorkflowPlan,
        queue: Queue,
        size: int,
        node: int,
        left_ns: int,
        *,
        lean: bool = False,
        means: bool = False,
    ) -> list[Choice]:
        """The best choice for each batch size that is at hand and in time, the cheapest first."""
        choices: list[Choice] = []
        for batch in queue.stage.batch:
            if batch > size and choices:
                break
            choice = plan.choose(node, left_ns, batch, lean=lean, means=means)
            if choice is not None:
                choices.append(choice)
        choices.sort(key=lambda c: c.cost_usd)
        return choices

    @staticmethod
    def _and_elsewhere(
        plan: WorkflowPlan, size: int, node: int, left_ns: int, best: Sequence[Choice]
    ) -> list[Ranked]:
        """These, and what can be had on kinds of devices that they leave out."""
        found = [Ranked(choice.option.config, choice.cost_usd) for choice in best]
        others = plan.elsewhere(node, left_ns, size, {ranked.config.kind for ranked in found})
        return found + [Ranked(o.config, found[0].score + o.cost_usd) for o in others]

    def _as_planned(self, plan: WorkflowPlan, request: Request, node: int) -> Config:
        """The configuration that was chosen when the request came."""
        fixed = self._fixed.get(request.id)
        if fixed is None:
            options = plan.frontiers().plan(request.objective_ns - request.arrived_ns) or plan.fastest
            fixed = self._fixed[request.id] = [o.config for o in options]
        return fixed[node]

    # -- learning -----------------------------------------------------------------------------------------------

    def note(self, item: Item, now_ns: int) -> None:
        """Learn how often items come to a queue."""
        request = item.request
        name = request.graph.name
        plan = self._plans.made.get(name)
        rest_ns = 0 if plan is None else plan.quick_rest_ns[item.node]
        self._holding.note(request.graph.nodes[item.node].queue.key, item, rest_ns, now_ns)
        if request.id not in self._backlog:
            work = (0, 0) if plan is None else plan.least_work_total
            self._backlog.add(request.id, request.priority, request.objective_ns, work, now_ns)
            if self._settings.admission:
                self._admission.let_in(request.id, name, request.priority, *self._expected, now_ns)
                self._expected = (0, 0, 0)
                if self._tries_ns:  # what was learned is in doubt
                    self._trials.begin(request.id, name, self._tries_ns)
                    self._tries_ns = 0
                    for node in request.graph.nodes:
                        self._predictor.doubt(node.stage)
        if self._settings.admission and plan is not None and request.id not in self._trials:
            self._last_chances.note(item, rest_ns)

    def began(self, batch: Batch) -> None:
        """Learn how long the head of a batch has waited against the planner's will."""
        queue = batch.queue
        self._last_chances.began(batch.items)
        self._backlog.sent(batch.id, self._work(batch))
        waited_ns = max(0, batch.sent_ns - self._holding.since_ns(queue, batch.items[0]))
        self._waits[queue.stage.name].add(waited_ns)

    def returned(self, batch: Batch) -> None:
        """A batch is not at its worker any more, done or not."""
        self._backlog.returned(batch.id)

    def _work(self, batch: Batch) -> int:
        """Share times nanoseconds that a batch takes of a device at least."""
        plan = self._plans.made.get(batch.items[0].request.graph.name)
        return 0 if plan is None else plan.least_work[batch.queue.stage.name][0] * len(batch.items)

    def finished(self, batch: Batch, now_ns: int) -> None:
        """Take the work off the demand; now and then look whether plans still fit the times."""
        self._accounts.ran(batch, now_ns - batch.begun_ns)
        stage = batch.queue.stage.name
        self._on_the_way.add(batch.way_ns)
        for item in batch.items:
            plan = self._plans.made.get(item.request.graph.name)
            if plan is not None:
                self._backlog.done(item.request.id, plan.least_work[stage])
        self._plans.finished(self._waits)

    def closed(self, request: Request) -> None:
        """Learn how large fan-outs are, and whether it was right to let it in."""
        if self._fixed:
            self._fixed.pop(request.id, None)
        self._backlog.remove(request.id)
        self._last_chances.closed(request.id)
        plan = self._plans.made.get(request.graph.name)
        self._accounts.closed(request, 0.0 if plan is None else plan.budget_usd())
        self._trials.ended(request.id, request.outcome == "ok", self._now_ns)
        if request.outcome in ("ok", "late", "shed", "expired"):
            self._admission.ended(request.id, request.outcome == "ok", self._now_ns)
        else:
            self._admission.forget(request.id)
        for node, size in request.sizes.items():
            self._plans.saw_size(request.graph.name, node, size)
