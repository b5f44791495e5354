"""Workers that several ingresses share: plan ahead, decide late, and let the worker say no.

Nobody can say here whether such a worker is free, so work is sent as soon as it is ready (`bind_ns`), and waits in
the worker's own queue (`device`).

Compass (`lab.rivals.compass`) plans a request on arrival and adjusts single tasks when a queue has grown. Beyond it:
- the best worker is found without a look at all of them (`index`), so a decision does not grow with the cluster;
- a fetch is planned beside the wait for inputs, and the worker is told of it when the request arrives (`Hint`);
- every item is decided afresh when its inputs are there, joins too: one controller has the whole request, so there is
  nobody to agree with;
- what this controller has done and no row shows yet is counted (`belief`);
- a route carries the latest start it was meant for. A worker that is busier than believed refuses at once; that
  costs a message, teaches, and the item goes elsewhere;
- where all are busy, holders of the model are asked around with windows that widen, because only a worker knows whom
  an item would overtake there and when what runs now will end;
- workers that are free already are taken by hash of controller, request and node, not by number, so that controllers
  with the same old view do not all run to the same worker;
- a worker's queue is ordered by what is left of the requests, with age counted in;
- idle memory is filled with copies of models whose holders are busy (`replicas`).

Rules of this file: integers decide; the same calls give the same answers; a request that has ended leaves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..predict import Predictor
from ..state import NEVER_NS, Batch, Cluster, CompiledGraph, Config, Item, Queue, Request, Worker, WorkerRow
from ..state.worker import FULL_SHARE
from ..units import MS
from ..workflow.graph import StageSpec
from .fleet import Choice, KnownWorkers
from .index import Known
from .outline import NodeOutline, Outline, outline
from .own import OwnWorkers, Spot
from .replicas import Replicas
from .route import Hint, Route
from .settings import RouterSettings
from .transfer import Delays

__all__ = ["SharedWorkers"]

#: Orders of classes must not overlap: later than any arrival plus any rest. Those of ten classes fit into 64 bits.
_CLASS_STEP = 1 << 59
_MASK = (1 << 64) - 1
#: A start may be later than expected by one in so many parts of the run. If even the best start is later than this
#: after its inputs are there, holders are asked around (`RouterSettings.ask_pct`). [our choice]
_TOLERANCE = 10
_ASK_AFTER_NS = 30 * MS
#: Plans between two looks at the run and load times that ranks and rests are made of; a predictor learns.
_LOOK_EVERY = 256


class _Open:
    """What is kept of a request: where its results are, where nodes were planned, who has refused which item."""

    __slots__ = ("made", "planned", "refused")

    def __init__(self) -> None:
        self.made: dict[int, dict[int, None]] = {}
        self.planned: dict[int, int] = {}
        self.refused: dict[tuple[int, int], list[int]] = {}


class _Routed(msgspec.Struct, frozen=True, gc=False):
    """A route that was given: what it was expected to lead to."""

    choice: Choice
    latest_ns: int
    there_ns: int


class SharedWorkers:
    """Answers where, for one ingress.

    `ingress` tells controllers apart that share workers; `home` is the worker that this one runs beside, 0 for none.
    `in_bytes` says how large a request's input is, by workflow and entry node; without it, as large as its output.
    Host processes belong to one ingress each: they are its own.
    """

    #: Work is sent as soon as it is ready.
    bind_ns = NEVER_NS

    def __init__(
        self,
        predictor: Predictor,
        settings: RouterSettings | None = None,
        *,
        ingress: int = 0,
        home: int = 0,
        delays: Delays | None = None,
        in_bytes: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self.settings = settings = settings or RouterSettings()
        self.home = home
        self.fleet = KnownWorkers(
            predictor,
            overlap=settings.overlap,
            toll_pct=settings.toll_pct,
            doubt_ns=settings.doubt_ns,
        )
        self._ahead = Replicas(self.fleet, settings.spares, settings.copy_every_ns)
        self._delays = delays or Delays()
        self._in_bytes = in_bytes or {}
        self._salt = (ingress + 1) * 0x9E3779B97F4A7C15 & _MASK
        self._outlines: dict[str, Outline] = {}
        #: Stage -> what is known of it.
        self._first: dict[str, NodeOutline] = {}
        self._plans = 0
        #: Longest run of any task seen: what may be in the way.
        self._longest_ns = 0
        self._open: dict[int, _Open] = {}
        #: Routes given and not yet sent, by request, node and index, and by worker; then windows by batch.
        self._routed: dict[tuple[int, int, int], dict[int, _Routed]] = {}
        #: Stage -> what it was last run in, if that is not a whole device.
        self._parts: dict[str, Config] = {}
        self._windows: dict[int, int] = {}
        self._hosts = OwnWorkers(predictor)
        self._asked = False

    def bind(self, cluster: Cluster) -> None:
        """Whose host processes are its own."""
        self._hosts.bind(cluster)

    # -- workers ------------------------------------------------------------------------------------------------

    def joined(self, worker: Worker) -> None:
        """It is idle and holds nothing, as far as is known."""
        if worker.spec.on_host:
            self._hosts.joined(worker)
        elif self.fleet.join(worker):
            self._outlines.clear()  # maybe made when there was nobody whose run times could be asked for

    def lost(self, worker: Worker) -> None:
        """Plans that name it find somebody else when their items come up."""
        if worker.spec.on_host:
            self._hosts.lost(worker)
        else:
            self.fleet.lose(worker.id)

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """Rows count from when they were written; what was done since is added."""
        self.fleet.hear(rows, now_ns)

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:
        """Believed until a row is as new."""
        if worker.spec.on_host:
            self._hosts.holds(worker, weights, here, now_ns)
            return
        belief = self.fleet.beliefs.get(worker.id)
        if belief is not None and weights:
            belief.change(weights, here, now_ns)
            self.fleet.show(worker.id, now_ns)

    # -- requests -----------------------------------------------------------------------------------------------

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """Place all nodes by falling rank, and say which models should be fetched meanwhile."""
        settings, fleet = self.settings, self.fleet
        state = self._open[request.id] = _Open()
        self._plans += 1
        if not self._plans % _LOOK_EVERY:
            self._outlines.clear()
        if not settings.hints and settings.afresh and not settings.spares:
            return ()
        fleet.doubt(now_ns)
        shape = self._outline(request.graph)
        needed: list[NodeOutline] = []
        planned: dict[int, Known] = {}
        ends: dict[int, Choice] = {}
        #: Model -> how many of its free holders this request will use.
        taken: dict[str, int] = {}
        for node in shape.order:
            task = shape.tasks[node]
            arrive_ns, near = self._expected(task, ends, now_ns)
            spread = self._spread(request.id, node)
            choice = fleet.choose(task, now_ns, arrive_ns, near, spread, planned)
            if choice is None:  # a step on the host, or a stage that nobody here can run: it takes its time elsewhere
                ends[node] = Choice(0, arrive_ns, 0, arrive_ns, arrive_ns)
                continue
            ends[node] = choice
            worker, weights = choice.worker, task.weights
            state.planned[node] = worker
            after = planned.get(worker) or fleet.known(worker)
            resident, free_bytes = after.resident, after.free_bytes
            if weights and weights not in resident:
                resident |= {weights}
                free_bytes -= min(free_bytes, task.weights_bytes)
                if task.sources:  # an entry is sent in this very step, and brings its fetch with it
                    needed.append(task)
            elif weights:
                taken[weights] = taken.get(weights, 0) + 1
            planned[worker] = Known(choice.end_ns, resident, free_bytes)
        hints: list[Hint] = []
        if settings.hints:
            for task in needed:
                fleet.ask(state.planned[task.node], task, now_ns)
                hints.append(Hint(state.planned[task.node], task.stage.name))
        if settings.spares:
            hints += self._ahead.copies(shape.tasks, taken, now_ns, self._spread(request.id, -1))
        return hints

    def route(self, item: Item, now_ns: int, config: Config | None = None) -> Route | None:
        """The worker where it can start first, by what is known now; the plan breaks near-ties.

        With a configuration, who is of its kind and has its share free; without, on a whole device.
        """
        settings, fleet, request = self.settings, self.fleet, item.request
        fleet.doubt(now_ns)
        task = self._outline(request.graph).tasks[item.node]
        state = self._open.setdefault(request.id, _Open())
        refused = state.refused.get((item.node, item.index), ())
        spread = self._spread(request.id, item.node + (item.index + 1) * 1_000 + len(refused) * 1_000_003)
        arrive_ns, near = self._present(task, state, now_ns)
        planned = state.planned.get(item.node, 0)
        here = None
        if fleet.meant(planned, config) and not refused:
            here = fleet.at(planned, task, now_ns, near.get(planned, arrive_ns), config)
        if here is not None and not settings.afresh:
            choice, reason = here, "as planned"
        else:
            found = fleet.choose(task, now_ns, arrive_ns, near, spread, config=config)
            if found is None:
                return None
            choice, reason = found, "fetches it first" if found.fetch_ns else "can start first"
            if here is not None and not here.fetch_ns and here.score_ns <= found.score_ns + settings.keep_ns:
                choice, reason = here, "as planned"
        latest_ns = 0
        if len(refused) < settings.bounces:
            run_ns = choice.end_ns - choice.start_ns
            latest_ns = choice.start_ns + settings.tolerance_ns + run_ns // _TOLERANCE
            if len(refused) < len(settings.ask_pct) and choice.start_ns > arrive_ns + _ASK_AFTER_NS:
                asked = fleet.someone(task, spread, refused, config)
                if asked is not None:
                    within_ns = self._longest_ns * settings.ask_pct[len(refused)] // 100
                    latest_ns = min(latest_ns, arrive_ns + within_ns)
                    choice = fleet.at(asked, task, now_ns, near.get(asked, arrive_ns), config)
                    reason = "asked"
        there_ns = near.get(choice.worker, arrive_ns)
        routed = self._routed.setdefault((request.id, item.node, item.index), {})
        routed[choice.worker] = _Routed(choice, latest_ns, there_ns)
        order = request.priority * _CLASS_STEP + request.arrived_ns + settings.favour * task.path_ns
        return Route(choice.worker, latest_ns, order, reason, choice.start_ns, choice.fetch_ns)

    def changes(self, stage: StageSpec) -> tuple[int, bool]:
        """Of devices only they themselves know that, so every question is a new one."""
        if stage.on_host:
            return self._hosts.changes(stage)
        self._asked = not self._asked
        return 0, self._asked

    def ready(self, stage: StageSpec, config: Config, now_ns: int) -> Spot | None:
        """Of devices only they themselves know that."""
        return self._hosts.ready(stage, config, now_ns) if stage.on_host else None

    def spot(self, queue: Queue, head: Item, config: Config, now_ns: int) -> Spot | None:
        """Where a batch goes: where its head goes. None if there is no worker that could run it."""
        if queue.stage.on_host:
            return self._hosts.spot(queue, head, config, now_ns)
        if config.share_pct < FULL_SHARE:
            self._parts[queue.stage.name] = config
        else:
            self._parts.pop(queue.stage.name, None)
        whole = config.share_pct >= FULL_SHARE and not config.kind
        route = self.route(head, now_ns, None if whole else config)
        if route is None:
            return None
        worker, start_ns, fetch_ns = self.fleet.workers[route.worker], route.start_ns, route.fetch_ns
        return Spot(worker, start_ns, fetch_ns, route.reason, route.order, route.latest_ns)

    def closed_to(self, stage: StageSpec, priority: int) -> bool:
        """Whether nobody is there who could run a stage."""
        if stage.on_host:
            return self._hosts.closed_to(stage, priority)
        return not any(kind.index.workers for kind in self.fleet.able(stage))

    def sleeps(self, stage: StageSpec, priority: int) -> bool:
        """Devices keep queues."""
        return stage.on_host and self._hosts.sleeps(stage, priority)

    def dozes(self, stage: StageSpec) -> bool:
        """Devices keep queues."""
        return stage.on_host and self._hosts.dozes(stage)

    def woken(self) -> Sequence[str]:
        """As host processes have room."""
        return self._hosts.woken()

    def full(self, on_host: bool) -> bool:
        """Devices keep queues."""
        return on_host and self._hosts.full(on_host)

    def fetch_ns(self, stage: StageSpec) -> int:
        """Counted where an item would start (`wait_ns`)."""
        return 0

    def wait_ns(self, stage: StageSpec, now_ns: int) -> int:
        """How long an item of a stage would wait at the worker that can start it first."""
        known = self._first.get(stage.name)
        if known is None:
            return 0
        found = self.fleet.choose(known, now_ns, now_ns, {}, 0, config=self._parts.get(stage.name))
        return 0 if found is None else found.start_ns - now_ns

    def started(self, batch: Batch, now_ns: int) -> None:
        """Count it until a row does."""
        if batch.worker.spec.on_host:
            self._hosts.started(batch, now_ns)
            return
        worker = batch.worker.id
        belief = self.fleet.beliefs.get(worker)
        for item in batch.items:
            routed = self._routed.pop((item.request.id, item.node, item.index), {}).get(worker)
            if routed is None:
                continue
            if routed.latest_ns:
                self._windows[batch.id] = routed.latest_ns
            if belief is not None and self.settings.corrections:
                choice = routed.choice
                weights = self._outline(item.request.graph).tasks[item.node].weights
                share_pct, run_ns = batch.config.share_pct, choice.end_ns - choice.start_ns
                belief.send(batch.id, routed.there_ns, choice.start_ns, run_ns, weights, share_pct)
                self.fleet.show(worker, now_ns)

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """Remember where its results are; a refusal says that the worker is busier than believed."""
        if batch.worker.spec.on_host:
            self._hosts.ended(batch, now_ns, done)
        worker = batch.worker.id
        latest_ns = self._windows.pop(batch.id, 0)
        for item in batch.items:
            state = self._open.get(item.request.id)
            if state is None:
                continue
            if done:
                state.made.setdefault(item.node, {})[worker] = None
            elif latest_ns:
                state.refused.setdefault((item.node, item.index), []).append(worker)
        belief = self.fleet.beliefs.get(worker)
        if belief is None:
            return
        counted = belief.end(batch.id, done)
        if not done and now_ns <= latest_ns:  # later than that, others have overtaken it: the worker is free by now
            belief.refuse(latest_ns + batch.expected_ns // 4, now_ns)
        if counted or not done:
            self.fleet.show(worker, now_ns)

    def closed(self, request: Request) -> None:
        """Forget it."""
        self._open.pop(request.id, None)

    # -- inputs -------------------------------------------------------------------------------------------------

    def _expected(self, task: NodeOutline, ends: Mapping[int, Choice], now_ns: int) -> tuple[int, dict[int, int]]:
        """When the inputs of a planned task can be anywhere, and the workers that have them earlier."""
        made = [(ends[node].worker, ends[node].end_ns, move_ns) for node, move_ns in task.sources if node in ends]
        if not made:
            return self._entry(task, now_ns)
        near = {}
        for worker, _, _ in made:
            near[worker] = max(end_ns + (0 if at == worker else move_ns) for at, end_ns, move_ns in made)
        return max(end_ns + move_ns for _, end_ns, move_ns in made), near

    def _present(self, task: NodeOutline, state: _Open, now_ns: int) -> tuple[int, dict[int, int]]:
        """The same for an item whose inputs are all there."""
        if not task.sources:
            return self._entry(task, now_ns)
        made = [(state.made.get(node, {}), move_ns) for node, move_ns in task.sources]
        near = {}
        for workers, _ in made:
            for worker in workers:
                elsewhere = [move_ns for at, move_ns in made if at.keys() != {worker}]
                near[worker] = now_ns + max(elsewhere, default=0)
        return now_ns + task.inputs_ns, near

    def _entry(self, task: NodeOutline, now_ns: int) -> tuple[int, dict[int, int]]:
        return now_ns + task.inputs_ns, {self.home: now_ns} if self.home in self.fleet.workers else {}

    def _outline(self, graph: CompiledGraph) -> Outline:
        known = self._outlines.get(graph.name)
        if known is None:
            fleet = self.fleet
            known = outline(graph, fleet.run_ns, fleet.load_ns, self._delays, self._in_bytes)
            self._outlines[graph.name] = known
            self._first.update((task.stage.name, task) for task in known.tasks)
            self.fleet.know(known.tasks)
            self._longest_ns = max(self._longest_ns, *(task.run_ns for task in known.tasks))
        return known

    def _spread(self, request: int, what: int) -> int:
        """A number that looks random and is the same for the same controller, request and purpose."""
        if not self.settings.spread:
            return 0
        mixed = (self._salt ^ (request * 0xBF58476D1CE4E5B9) ^ (what * 0x94D049BB133111EB)) & _MASK
        mixed = (mixed ^ mixed >> 31) * 0xD6E8FEB86659FD93 & _MASK
        return mixed ^ mixed >> 32
