"""The Controller: `step(event) -> actions`.

Rules of this file:
1. One door. `step` is the only way in, and the list it returns the only way out.
2. No clock, no randomness, no threads, no input or output: time comes with the event.
3. Policies answer questions (`Policy`); the controller keeps the books and the promises: every request ends in
   exactly one outcome, shares never add up to more than a device, no work is lost when a worker is.
4. Nothing is kept of a request that has ended, so memory does not grow with the length of a run.

Here is the life of requests and of their batches' results. What starts, and where, is `launch.py`; workers and models
are `roster.py`; the walk through a graph (fan-out, joins, conditions) is `walk.py`, the invariants are `validate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..predict.companions import Companions, running_on
from ..predict.interference import Beside, fetch
from ..state import NEVER_NS, Batch, Cluster, Config, Item, Request, compile_graphs
from ..units import MS
from ..workflow.graph import Graph, StageSpec
from .actions import Action, Drained, LoadModel, Reject, Reply
from .events import (
    BatchFailed,
    BatchFinished,
    DrainStarted,
    Event,
    LoadFailed,
    MemoryChanged,
    ModelEvicted,
    ModelLoaded,
    PeerStateReceived,
    RequestArrived,
    RequestCancelled,
    RequestRefused,
    SliceChanged,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)
from .launch import MAX_REFUSALS, Launcher
from .policy import Policy
from .roster import Roster
from .slicing import Slicing
from .step import Step
from .walk import FanOutMismatch, arrive, item_done

__all__ = ["MAX_ATTEMPTS", "MAX_REFUSALS", "Controller", "Policy"]

#: Failed batches that an item may be part of before its request fails. Three: once in a batch with others, once
#: alone, and once more for a worker that died meanwhile.
MAX_ATTEMPTS: Final = 3
#: What a client is told to wait while the server drains: a restart takes about this long.
DRAIN_RETRY_NS: Final = 2_000 * MS
#: A batch that had its worker for less than all but one in so many parts of its time was stopped in between.
STOPPED: Final = 20
#: Where neighbours are not felt, who ran beside whom is told of so many batches in a row, one time in so many.
LOOK_FOR: Final = 64
LOOK_EVERY: Final = 8
#: Batches beside others that it is told of in a step that starts nothing; and how many may wait for such a step.
LEARN: Final = 8
UNLEARNED: Final = 64
#: What a predictor is told of a batch.
Ran = tuple[StageSpec, str, int, Config, int, int]


class Controller:
    """Schedules the requests of some graphs on the workers that have joined."""

    def __init__(self, graphs: Sequence[Graph], policy: Policy, ingress: int = 0) -> None:
        self.policy = policy
        #: Which of several ingresses that share workers it is; 0 where there is one.
        self.ingress = ingress
        self.graphs, self.queues = compile_graphs(graphs, policy.scheduler.queue_key)
        self.stages: dict[str, StageSpec] = {s.name: s for g in graphs for s in g.stages}
        self.cluster = cluster = Cluster(self.queues, list(self.stages))
        self.requests, self.workers, self.batches = cluster.requests, cluster.workers, cluster.batches
        self.holders = cluster.holders
        policy.scheduler.bind(cluster)
        policy.predictor.declare(self.stages.values())
        self._observe_run = policy.predictor.observe_run
        self._load_of = policy.predictor.load_of
        #: Who ran beside whom, where the predictor wants to know.
        self._companions: Companions[Ran] | None = Companions() if policy.predictor.knows_neighbours else None
        #: What it has not been told yet: that takes longer than a decision, so it is told beside decisions.
        self._unlearned: list[tuple[Ran, Sequence[Beside]]] = []
        self._step = step = Step()
        self.timers = step.timers
        self._launcher = launcher = Launcher(cluster, policy, step, ingress)
        self._touched = launcher.touched
        self._roster = roster = Roster(cluster, self.stages, policy, step, launcher)
        self._slicing = Slicing(cluster, self.stages, launcher)
        self._scheduler = scheduler = policy.scheduler
        self._hopeless, self._order, self._note = scheduler.hopeless, scheduler.order, scheduler.note
        #: Workers keep the queues, and may refuse what they could not start in time.
        self.binds_at_once = policy.scheduler.bind_ns == NEVER_NS
        self._scaler_adjusts = policy.scaler.adjusts
        self.draining = False
        self.closed: Request | None = None  #: The last one: what comes and ends in one step is seen here only.
        self._drained = False
        self._handlers = {
            RequestArrived: self._request_arrived,
            RequestRefused: self._request_refused,
            RequestCancelled: self._request_cancelled,
            BatchFinished: self._batch_finished,
            BatchFailed: self._batch_failed,
            ModelLoaded: self._model_loaded,
            ModelEvicted: roster.model_evicted,
            MemoryChanged: roster.memory_changed,
            PeerStateReceived: roster.peer_state_received,
            LoadFailed: roster.load_failed,
            WorkerJoined: roster.joined,
            WorkerLost: self._worker_lost,
            TimerFired: self._timer_fired,
            DrainStarted: self._drain_started,
            SliceChanged: self._slicing.changed,
        }

    @property
    def now_ns(self) -> int:
        """Time of the last event."""
        return self._step.now_ns

    @property
    def homes(self) -> Mapping[str, int]:
        """Stage with a quota -> the worker that its batches go to, where somebody said so; 0: any."""
        return self.cluster.homes

    def asked_ns(self, queue: str) -> int:
        """When offers were last asked for; now, for a scheduler that is asked in every step."""
        return self._launcher.asked_ns.get(queue, self.now_ns)

    @property
    def step_number(self) -> int:
        """Number of the last step."""
        return self._step.number

    def step(self, event: Event) -> list[Action]:
        """Take one event and say what is to be done."""
        step, launcher, now = self._step, self._launcher, event.at_ns
        if now < step.now_ns:
            raise ValueError(f"time went back from {step.now_ns} to {now} ns at {type(event).__name__}")
        step.now_ns = now
        step.number += 1
        out: list[Action] = []
        step.out = out
        self._handlers[type(event)](event)  # type: ignore[operator]
        for request, refusal in self._hopeless(now):
            if request.sheddable:
                self._close(request, "shed", refusal.reason, refusal.retry_after_ns)
        last = launcher.last_batch
        launcher.start()
        if self._scaler_adjusts and self._roster.adjust():
            launcher.start()
        if launcher.last_batch == last:
            self._scheduler.idle(now)
            if self._unlearned:
                self._learn(LEARN)
        elif len(self._unlearned) > UNLEARNED:
            self._learn(1)
        if self.draining and not self.requests and not self._drained:
            self._drained = True
            out.append(Drained(step.number))
        return out

    # -- requests ---------------------------------------------------------------------------------------------

    def _request_arrived(self, event: RequestArrived) -> None:
        now = event.at_ns
        graph = self.graphs[event.graph]
        priority = event.priority or graph.graph.priority
        objective = event.objective_ns or now + graph.slo_ns
        if event.request in self.requests:
            raise ValueError(f"request {event.request} arrived twice")
        outcome, reason, retry_ns = "", "", 0
        if self.draining:
            outcome, reason, retry_ns = "shed", "the server is draining", DRAIN_RETRY_NS
        elif event.deadline_ns and event.deadline_ns <= now:
            outcome, reason = "expired", "its deadline had passed when it arrived"
        else:
            refusal = self._scheduler.admit(graph, priority, objective, now)
            if refusal is not None and (event.sheddable or refusal.firm):
                outcome, reason, retry_ns = "shed", refusal.reason, refusal.retry_after_ns
                for node in graph.entries:
                    node.queue.arrived += 1  # it was asked for, which the scaler has to know
        if outcome:
            self._reject(event, priority, outcome, reason, retry_ns)
            return
        request = Request(event.request, graph, priority, now, objective, event.deadline_ns, event.sheddable)
        self.requests[request.id] = request
        if event.deadline_ns:
            request.timer = self._step.set_timer(event.deadline_ns, request.id)
        for hint in self._scheduler.hints(request, now):
            self._step.out.append(LoadModel(self._step.number, hint.worker, hint.stage))
        try:
            ready = arrive(request, event.counts, now)
        except FanOutMismatch as error:
            self._close(request, "failed", str(error))
            return
        self._continue(request, ready)

    def _request_refused(self, event: RequestRefused) -> None:
        """Only the books need to know: it has its answer, and nothing of it is kept."""
        if event.request in self.requests:
            raise ValueError(f"request {event.request} was refused, but it is open")
        priority = event.priority or self.graphs[event.graph].graph.priority
        self._reject(event, priority, "shed", event.reason, event.retry_after_ns)

    def _reject(
        self, event: RequestArrived | RequestRefused, priority: int, outcome: str, reason: str, retry_ns: int
    ) -> None:
        """End a request before it has begun."""
        number, request, graph = self._step.number, event.request, event.graph
        reject = Reject(number, request, graph, priority, outcome, event.at_ns, 0.0, reason, retry_ns)
        self._step.out.append(reject)

    def _continue(self, request: Request, ready: list[Item], origin: int = 0) -> None:
        """Queue the items that have become ready, and answer if there is nothing left to do."""
        if not request.nodes_left:
            late = self._step.now_ns > request.objective_ns
            self._close(request, "late" if late else "ok")
            return
        nodes, now = request.graph.nodes, self._step.now_ns
        for item in ready:
            item.origin = origin
            node = item.node
            queue = nodes[node].queue
            queue.push(self._order(request, node), item)
            queue.arrived += 1
            self._note(item, now)
            self._touched[queue] = None

    def _close(self, request: Request, outcome: str, reason: str = "", retry_ns: int = 0) -> None:
        request.outcome, self.closed = outcome, request
        del self.requests[request.id]
        if request.timer:
            del self.timers[request.timer]
        if outcome != "ok" and outcome != "late":
            for queue in list(request.waiting):
                queue.forget(request)
                self._touched[queue] = None  # what it was held for may have been this request
        self._scheduler.closed(request)
        index = request.graph.index
        arrived, cost = request.arrived_ns, request.cost_usd
        step = self._step
        step.out.append(
            Reply(step.number, request.id, index, request.priority, outcome, arrived, cost)
            if outcome == "ok" or outcome == "late"
            else Reject(step.number, request.id, index, request.priority, outcome, arrived, cost, reason, retry_ns)
        )

    def _request_cancelled(self, event: RequestCancelled) -> None:
        request = self.requests.get(event.request)
        if request is not None:
            self._close(request, "cancelled", "the client gave up")

    # -- results ----------------------------------------------------------------------------------------------

    def _batch_finished(self, event: BatchFinished) -> None:
        batch = self._launcher.release(event.batch)
        if batch is None:
            return  # its worker was lost and the items have gone elsewhere
        now, end_ns = event.at_ns, event.end_ns
        duration = event.busy_ns or end_ns - event.begin_ns
        items, worker, config = batch.items, batch.worker, batch.config
        if batch.slice is not None:
            batch.slice.charge(event.begin_ns, event.begin_ns + duration)
        if event.first:
            predictor = self.policy.predictor
            predictor.observe_first(batch.queue.stage, worker.spec.kind, len(items), config, duration)
        elif self._companions is None:
            self._observe_run(batch.queue.stage, worker.spec.kind, len(items), config, duration)
        else:
            self._observe_beside(self._companions, batch, event, duration)
        if now > end_ns:
            batch.way_ns = now - end_ns
        self._scheduler.ended(batch, now, True)
        share_usd, cpu_usd = worker.usd_per_share_ns, worker.usd_per_cpu_ns
        cost = duration * (config.share_pct * share_usd + config.cpus * cpu_usd) / len(items)
        origin, counts, at = worker.id, event.counts, 0
        for item in items:
            request = item.request
            request.cost_usd += cost
            own = counts
            if counts:
                first, at = at, at + len(request.graph.nodes[item.node].counted)
                own = counts[first:at]
            if request.outcome:
                continue
            try:
                ready = item_done(item, own, now)
            except FanOutMismatch as error:
                self._close(request, "failed", str(error))
                continue
            self._continue(request, ready, origin)

    def _observe_beside(
        self, companions: Companions[Ran], batch: Batch, event: BatchFinished, duration_ns: int
    ) -> None:
        """Tell the predictor of a batch, and who was beside it, as soon as that is known of all of them."""
        worker, config, items = batch.worker, batch.config, len(batch.items)
        stage, kind = batch.queue.stage, worker.spec.kind
        end_ns = event.end_ns
        if event.batch // LOOK_FOR % LOOK_EVERY and not self.policy.predictor.curious(kind):
            self._observe_run(stage, kind, items, config, duration_ns)
            return
        running = running_on(worker, end_ns)
        whole_ns = end_ns - event.begin_ns
        # Who was stopped in between was not there all the time, and when it was is not known here.
        if duration_ns * STOPPED < whole_ns * (STOPPED - 1) or companions.alone(worker.id, running):
            self._observe_run(stage, kind, items, config, duration_ns)
            return
        load = self._load_of(stage, kind, items, config)
        ran = stage, kind, items, config, duration_ns, batch.said_ns
        self._unlearned.extend(companions.ended(worker.id, ran, load, event.begin_ns, end_ns, running))

    def _model_loaded(self, event: ModelLoaded) -> None:
        self._roster.model_loaded(event)
        worker = self.workers.get(event.worker)
        if self._companions is not None and worker is not None and event.load_ns:
            load = fetch(self.stages[event.stage].weights, event.load_ns)
            begin, end = event.at_ns - event.load_ns, event.at_ns
            self._unlearned.extend(self._companions.fetched(worker.id, load, begin, end, running_on(worker, end)))

    def _learn(self, most: int) -> None:
        """Tell the predictor of batches that were beside others, the first ones first."""
        unlearned = self._unlearned
        for told, beside in unlearned[:most]:
            self._observe_run(*told[:5], beside, told[5])
        del unlearned[:most]

    def _batch_failed(self, event: BatchFailed) -> None:
        batch = self._launcher.release(event.batch)
        if batch is not None:
            self._retry(batch, f"{event.reason}: {event.detail}" if event.detail else event.reason, event.reason)

    def _retry(self, batch: Batch, why: str, reason: str, guilty: bool | None = None) -> None:
        """Give the items of a failed batch another chance, or fail their requests.

        A lone item that is `guilty` of the end of its worker does not get to end another one. One that is known not
        to be has lost nothing but time; of others (None) we do not know.
        """
        queue = batch.queue
        alone = len(batch.items) == 1
        self._scheduler.ended(batch, self._step.now_ns, False)
        for item in batch.items:
            request = item.request
            if request.outcome:
                continue
            if reason == "too_late":
                # The worker never began it; items whose own deadline has not come go back into the queue.
                if request.deadline_ns and request.deadline_ns <= self._step.now_ns:
                    self._close(request, "expired", "its deadline passed before it could start")
                    continue
                item.refused += 1
                if self.binds_at_once and item.refused > MAX_REFUSALS and request.deadline_ns:
                    self._close(request, "expired", "no worker could start it before its deadline")
                    continue
            elif guilty is not False:
                item.attempts += 1
                if ((reason == "error" or guilty) and alone) or item.attempts >= MAX_ATTEMPTS:
                    self._close(request, "failed", why)
                    continue
            # One of several items may be what raised, killed the worker or was too large: run them alone, so that
            # it fails by itself.
            item.alone = item.alone or (reason != "too_late" and guilty is not False)
            queue.push(self._scheduler.order(request, item.node), item)
            self._touched[queue] = None

    def _worker_lost(self, event: WorkerLost) -> None:
        worker = self._roster.lost(event.worker, event.replaced)
        if self._companions is not None:
            self._companions.lost(event.worker)
        if worker is None:
            return
        self._slicing.lost(event.worker)
        running = list(worker.running)
        # A host process runs one batch after another, as they were sent; of a device we know only if there was one.
        guilty = running[0] if event.at_fault and (len(running) == 1 or (running and worker.spec.on_host)) else None
        for ident in running:
            batch = self._launcher.release(ident)
            if batch is not None:
                why = f"worker {worker.spec.name} was lost: {event.detail}"
                self._retry(batch, why, "worker_lost", None if guilty is None else ident == guilty)

    # -- time -------------------------------------------------------------------------------------------------

    def _timer_fired(self, event: TimerFired) -> None:
        if event.timer == self._roster.scaler_timer:
            self._roster.scaler_timer = 0
        purpose = self.timers.pop(event.timer, None)
        if isinstance(purpose, int):  # that of a queue was set so that it is asked now: `launch.py`
            request = self.requests[purpose]
            request.timer = 0
            self._close(request, "expired", "its deadline passed before it was done")

    def _drain_started(self, event: DrainStarted) -> None:
        self.draining = True
