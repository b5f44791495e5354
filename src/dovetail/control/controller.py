"""The Controller: `step(event) -> actions`.

Rules of this file:
1. One door. `step` is the only way in, and the list it returns the only way out.
2. No clock, no randomness, no threads, no input or output: time comes with the event.
3. Policies answer questions (`Policy`); this file keeps the books and the promises: every admitted request ends in
   exactly one outcome, shares never add up to more than a device, no work is lost when a worker is.
4. Nothing is kept of a request that has ended, so memory does not grow with the length of a run.

Work waits here, in queues, and goes to a worker that is free; or, if the policy has a router, it goes at once to a
worker that keeps a queue of its own (`_send`). Python stages always wait here. A worker that is about to be free, or
that lets a higher class in, may be sent a batch before there is room for it (`ahead.py`).

The walk through a graph (fan-out, joins, conditions) is `walk.py`, the invariants are `validate.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

import msgspec

from ..place import Placer, Router
from ..plan import Hold, Planner
from ..predict import Predictor
from ..scale import Scaler
from ..state import Batch, Cluster, Config, Item, Queue, Request, Worker, compile_graphs
from ..state.worker import FULL_SHARE
from ..units import MS
from ..workflow.graph import Graph, StageSpec
from .actions import NEVER_NS, Action, Drained, EvictModel, LoadModel, Reject, Reply, RunBatch, SetTimer
from .ahead import ENDING, HIGHER, Loan, ending, leave_line, outranked, settle
from .events import (
    BatchFailed,
    BatchFinished,
    DrainStarted,
    Event,
    LoadFailed,
    ModelEvicted,
    ModelLoaded,
    PeerStateReceived,
    RequestArrived,
    RequestCancelled,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)
from .walk import FanOutMismatch, arrive, item_done

__all__ = ["MAX_ATTEMPTS", "MAX_REFUSALS", "Controller", "Policy"]

#: Failed batches that an item may be part of before its request fails. Three: once in a batch with others, once
#: alone, and once more for a worker that died meanwhile.
MAX_ATTEMPTS = 3
#: Workers that may refuse an item for their queue; the next one has to take it, or no one can in time.
MAX_REFUSALS = 4
#: What a client is told to wait while the server drains: a restart takes about this long.
DRAIN_RETRY_NS = 2_000 * MS


class Policy(msgspec.Struct, frozen=True):
    """One implementation of each question that the controller asks."""

    planner: Planner
    placer: Placer
    scaler: Scaler
    predictor: Predictor
    #: Sends models' work ahead to workers that keep queues; None: it waits here until a worker is free.
    router: Router | None = None
    #: How long before a batch's expected end the next may be sent to its worker; 0: not before it has ended.
    lead_ns: int = 0


class Controller:
    """Schedules the requests of some graphs on the workers that have joined."""

    def __init__(self, graphs: Sequence[Graph], policy: Policy) -> None:
        self.policy = policy
        self.graphs, self.queues = compile_graphs(graphs, policy.planner.queue_key)
        self.stages: dict[str, StageSpec] = {s.name: s for g in graphs for s in g.stages}
        self.now_ns = 0
        #: Number of the current step; the cause of whatever it leads to.
        self.step_number = 0
        self.cluster = cluster = Cluster(self.queues, list(self.stages))
        self.requests, self.workers, self.batches = cluster.requests, cluster.workers, cluster.batches
        self.holders = cluster.holders
        policy.planner.bind(cluster)
        #: Timer -> what it is for: a request that expires, a queue that was held, a worker with a batch that is about
        #: to end, or (None) the scaler.
        self.timers: dict[int, int | str | Worker | None] = {}
        #: Whether a batch may ever be sent before there is room for it.
        self._looks_ahead = policy.lead_ns > 0
        self._router = policy.router
        self._scaler_adjusts = policy.scaler.adjusts
        self._scaler_timer = 0
        self.draining = False
        self._drained = False
        self._last_batch = 0
        self._last_timer = 0
        #: Queues that were given an item in this step.
        self._touched: list[Queue] = []
        self._freed = False
        self._out: list[Action] = []
        self._handlers = {
            RequestArrived: self._request_arrived,
            RequestCancelled: self._request_cancelled,
            BatchFinished: self._batch_finished,
            BatchFailed: self._batch_failed,
            ModelLoaded: self._model_loaded,
            ModelEvicted: self._model_evicted,
            PeerStateReceived: self._peer_state_received,
            LoadFailed: self._load_failed,
            WorkerJoined: self._worker_joined,
            WorkerLost: self._worker_lost,
            TimerFired: self._timer_fired,
            DrainStarted: self._drain_started,
        }

    def step(self, event: Event) -> list[Action]:
        """Take one event and say what is to be done."""
        if event.at_ns < self.now_ns:
            raise ValueError(f"time went back from {self.now_ns} to {event.at_ns} ns at {type(event).__name__}")
        self.now_ns = event.at_ns
        self.step_number += 1
        out: list[Action] = []
        self._out = out
        self._handlers[type(event)](event)  # type: ignore[operator]
        if self._freed:
            self._freed = False
            self._touched.clear()
            self._dispatch([q for q in self.queues.values() if q.size])
        elif self._touched:
            touched, self._touched = self._touched, []
            self._dispatch([q for q in dict.fromkeys(touched) if q.size])
        if self._looks_ahead:
            self._look_ahead()
        if self._scaler_adjusts:
            self._adjust()
        if self.draining and not self.requests and not self._drained:
            self._drained = True
            out.append(Drained(self.step_number))
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
            refusal = self.policy.planner.admit(graph, priority, objective, now)
            if refusal is not None:
                outcome, reason, retry_ns = "shed", refusal.reason, refusal.retry_after_ns
        if outcome:
            self._out.append(
                Reject(self.step_number, event.request, event.graph, priority, outcome, now, 0.0, reason, retry_ns)
            )
            return
        request = Request(event.request, graph, priority, now, objective, event.deadline_ns)
        self.requests[request.id] = request
        if event.deadline_ns:
            request.timer = self._set_timer(event.deadline_ns, request.id)
        if self._router is not None:
            for hint in self._router.plan(request, now):
                self._out.append(LoadModel(self.step_number, hint.worker, hint.stage))
        try:
            ready = arrive(request, event.counts, now)
        except FanOutMismatch as error:
            self._close(request, "failed", str(error))
            return
        self._continue(request, ready)

    def _continue(self, request: Request, ready: list[Item], origin: int = 0) -> None:
        """Queue the items that have become ready, and answer if there is nothing left to do."""
        if not request.nodes_left:
            late = self.now_ns > request.objective_ns
            self._close(request, "late" if late else "ok")
            return
        nodes = request.graph.nodes
        planner = self.policy.planner
        routed = self._router is not None
        for item in ready:
            item.origin = origin
            queue = nodes[item.node].queue
            if routed and not queue.stage.on_host:
                self._send(item, queue)
                continue
            queue.push(planner.order(request, item.node), item)
            planner.note(item, self.now_ns)
            self._touched.append(queue)

    def _close(self, request: Request, outcome: str, reason: str = "") -> None:
        request.outcome = outcome
        del self.requests[request.id]
        if request.timer:
            del self.timers[request.timer]
        if outcome != "ok" and outcome != "late":
            for queue in list(request.waiting):
                queue.forget(request)
                self._touched.append(queue)  # what it was held for may have been this request
        self.policy.planner.closed(request)
        if self._router is not None:
            self._router.closed(request)
        index = request.graph.index
        arrived, cost = request.arrived_ns, request.cost_usd
        self._out.append(
            Reply(self.step_number, request.id, index, request.priority, outcome, arrived, cost)
            if outcome == "ok" or outcome == "late"
            else Reject(self.step_number, request.id, index, request.priority, outcome, arrived, cost, reason)
        )

    def _request_cancelled(self, event: RequestCancelled) -> None:
        request = self.requests.get(event.request)
        if request is not None:
            self._close(request, "cancelled", "the client gave up")

    # -- batches ----------------------------------------------------------------------------------------------

    def _dispatch(self, queues: list[Queue]) -> None:
        """Start what can be started from these queues, which all have work; the one with the first item first."""
        if len(queues) == 1:
            queue = queues[0]
            while self._start_batch(queue) and queue.size:
                pass
            return
        # The position keeps ties in the order of the queues.
        candidates = [(queue.head_order(), position, queue) for position, queue in enumerate(queues)]
        heapify(candidates)
        while candidates:
            _, position, queue = candidates[0]
            if self._start_batch(queue) and queue.size:
                heapreplace(candidates, (queue.head_order(), position, queue))
            else:
                heappop(candidates)

    def _start_batch(self, queue: Queue) -> bool:
        """Start one batch from the queue if the policies find a configuration and a place; say whether it did."""
        stage = queue.stage
        holders = self.holders[stage.name]
        for worker in holders.values():
            if worker.free_pct:
                break
        else:
            return False  # whatever the policies would say, there is no room
        now = self.now_ns
        policy = self.policy
        choice = policy.planner.choose(queue, now)
        if isinstance(choice, Hold):
            if choice.until_ns <= now:
                raise ValueError(f"the planner holds queue {queue.key!r} until the past ({choice.reason})")
            if queue.held_until_ns != choice.until_ns:
                queue.held_until_ns = choice.until_ns
                self._set_timer(choice.until_ns, queue.key, choice.reason)
            return False
        for config in choice:
            chosen = policy.placer.choose(queue, config, holders, now)
            if chosen is not None:
                worker = chosen
                break
        else:
            return False
        queue.held_until_ns = 0
        batch = self._batch(queue, worker, config, queue.pop(config.batch))
        worker.free_pct -= config.share_pct
        worker.free_cpus -= config.cpus
        if worker.lending:
            batch.ahead = True
            worker.ahead.append(batch)
        self._run(batch, reason=worker.lending)
        return True

    def _look_ahead(self) -> None:
        """Send what waits to workers that let a higher class in, or are about to be free; see `ahead`."""
        now, lead = self.now_ns, self.policy.lead_ns
        waiting = [q for q in self.queues.values() if q.size and q.held_until_ns <= now and not q.stage.on_host]
        if not waiting:
            return
        for queue in waiting:
            for worker in list(self.holders[queue.stage.name].values()):
                head = queue.head() if worker.spec.preempts else None
                if head is not None and (lenders := outranked(worker, head.request.priority)):
                    loan = Loan(worker, lenders, HIGHER)
                    self._start_batch(queue)
                    loan.close(now)
        if not lead:
            return
        loans = []
        for worker in {w.id: w for q in waiting if q.size for w in self.holders[q.stage.name].values()}.values():
            lenders, next_ns = ending(worker, lead, now)
            if lenders:
                loans.append(Loan(worker, lenders, ENDING))
            elif next_ns and not now < worker.look_ns <= next_ns:
                worker.look_ns = next_ns
                self._set_timer(next_ns, worker, "a batch is about to end")
        if loans:
            self._dispatch([q for q in waiting if q.size])
            for loan in loans:
                loan.close(now)

    def _send(self, item: Item, queue: Queue) -> None:
        """Send one item to the worker that the router names; without any it waits here until one joins."""
        router, now = self._router, self.now_ns
        assert router is not None
        route = router.route(item, now)
        if route is None:
            queue.push(self.policy.planner.order(item.request, item.node), item)
            return
        worker = self.workers[route.worker]
        batch = self._batch(queue, worker, Config(1, worker.spec.cores or 1, FULL_SHARE), [item])
        # Whoever was refused so often goes where it is sent, however long it takes there.
        accept_ns = route.latest_ns if item.refused < MAX_REFUSALS else 0
        self._run(batch, route.order, route.reason, accept_ns)
        router.sent(batch, now)

    def _batch(self, queue: Queue, worker: Worker, config: Config, items: list[Item]) -> Batch:
        """Enter a new batch into the books."""
        self._last_batch = ident = self._last_batch + 1
        expected = self.policy.predictor.duration_ns(queue.stage, len(items), config, worker)
        batch = Batch(ident, queue, worker, config, items, self.now_ns, expected, self.now_ns)
        self.batches[ident] = worker.running[ident] = batch
        return batch

    def _run(self, batch: Batch, order: int = 0, reason: str = "", accept_ns: int = 0) -> None:
        """Tell the worker."""
        self.policy.planner.started(batch)
        # The window ends with the last deadline: until then the batch is of use to someone.
        latest = 0
        triples = []
        for item in batch.items:
            request = item.request
            triples.append((request.id, item.node, item.index))
            deadline = request.deadline_ns or NEVER_NS
            if deadline > latest:
                latest = deadline
        self._out.append(
            RunBatch(
                self.step_number,
                batch.id,
                batch.worker.id,
                batch.queue.stage.name,
                tuple(triples),
                batch.config.cpus,
                batch.config.share_pct,
                batch.sent_ns,
                latest,
                batch.expected_ns,
                order,
                reason,
                accept_ns,
            )
        )

    def _release(self, ident: int) -> Batch | None:
        """Take a batch off its worker; None if it is not known any more."""
        batch = self.batches.pop(ident, None)
        if batch is None:
            return None
        worker = batch.worker
        del worker.running[ident]
        if worker.spec.keeps_queue:
            return batch  # its own account, not ours
        if batch.ahead:  # it had no more than this
            leave_line(worker, batch)
            worker.free_pct += batch.got_pct
            worker.free_cpus += batch.got_cpus
        else:
            worker.free_pct += batch.config.share_pct
            worker.free_cpus += batch.config.cpus
        if self._looks_ahead:
            settle(worker, self.now_ns)
        self._freed = True
        return batch

    def _batch_finished(self, event: BatchFinished) -> None:
        batch = self._release(event.batch)
        if batch is None:
            return  # its worker was lost and the items have gone elsewhere
        duration = event.busy_ns or event.end_ns - event.begin_ns
        self.policy.predictor.observe(batch, duration)
        items = batch.items
        self.policy.planner.finished(batch)
        if batch.worker.spec.keeps_queue and self._router is not None:
            self._router.ended(batch, self.now_ns, True)
        cost = duration * batch.worker.usd_per_ns(batch.config) / len(items)
        origin = batch.worker.id
        counts = event.counts
        at = 0
        for item in items:
            request = item.request
            request.cost_usd += cost
            first = at
            if counts:
                at += len(request.graph.nodes[item.node].counted)
            if request.outcome:
                continue
            try:
                ready = item_done(item, counts[first:at], self.now_ns)
            except FanOutMismatch as error:
                self._close(request, "failed", str(error))
                continue
            self._continue(request, ready, origin)

    def _batch_failed(self, event: BatchFailed) -> None:
        batch = self._release(event.batch)
        if batch is not None:
            self._retry(batch, f"{event.reason}: {event.detail}" if event.detail else event.reason, event.reason)

    def _retry(self, batch: Batch, why: str, reason: str) -> None:
        """Give the items of a failed batch another chance, or fail their requests."""
        queue = batch.queue
        alone = len(batch.items) == 1
        routed = batch.worker.spec.keeps_queue and self._router is not None
        if routed:
            assert self._router is not None
            self._router.ended(batch, self.now_ns, False)
        for item in batch.items:
            request = item.request
            if request.outcome:
                continue
            if reason == "too_late":
                # The worker never began it; items whose own deadline has not come go back into the queue.
                if request.deadline_ns and request.deadline_ns <= self.now_ns:
                    self._close(request, "expired", "its deadline passed before it could start")
                    continue
                item.refused += 1
                if routed and item.refused > MAX_REFUSALS and request.deadline_ns:
                    self._close(request, "expired", "no worker could start it before its deadline")
                    continue
            else:
                item.attempts += 1
                if (reason == "error" and alone) or item.attempts >= MAX_ATTEMPTS:
                    self._close(request, "failed", why)
                    continue
            # One of several items may be what raised, killed the worker or was too large: run them alone, so that
            # it fails by itself.
            item.alone = item.alone or reason != "too_late"
            if routed:
                self._send(item, queue)
                continue
            queue.push(self.policy.planner.order(request, item.node), item)
            self._touched.append(queue)

    # -- workers ----------------------------------------------------------------------------------------------

    def _worker_joined(self, event: WorkerJoined) -> None:
        if event.worker in self.workers:
            raise ValueError(f"worker {event.worker} joined twice")
        worker = self.workers[event.worker] = Worker(event.worker, event.spec)
        if worker.spec.keeps_queue:
            if self._router is None:
                raise ValueError(f"worker {worker.spec.name} keeps a queue, but the policy has no router to fill it")
            self._router.joined(worker)
            for queue in self.queues.values():
                parked: list[Item] = []
                while queue.size and not queue.stage.on_host:
                    parked += queue.pop(queue.size)
                for item in parked:
                    self._send(item, queue)
            return
        self._looks_ahead = self._looks_ahead or worker.spec.preempts
        for stage in self.policy.scaler.residents(worker, list(self.stages.values())):
            self._load(worker, stage)

    def _load(self, worker: Worker, stage: StageSpec) -> None:
        worker.loading[stage.name] = stage.weights_bytes
        worker.resident_bytes += stage.weights_bytes
        self._out.append(LoadModel(self.step_number, worker.id, stage.name))

    def _adjust(self) -> None:
        """Ask the scaler, if work waits that could not be placed or its time has come."""
        now = self.now_ns
        starved = [q for q in self.queues.values() if q.size and q.held_until_ns <= now]
        if not starved and self._scaler_timer:
            return
        wanted = self.policy.scaler.adjust(self.cluster, starved, now)
        for ident, name, reason in wanted.evictions:
            worker = self.workers[ident]
            in_use = any(batch.queue.stage.name == name for batch in worker.running.values())
            if name in worker.resident and not in_use:
                worker.resident_bytes -= worker.resident.pop(name)
                del self.holders[name][ident]
                self._out.append(EvictModel(self.step_number, ident, name, reason))
        for ident, name in wanted.loads:
            worker, stage = self.workers[ident], self.stages[name]
            room = not worker.spec.memory_bytes or (
                worker.resident_bytes + stage.weights_bytes <= worker.spec.memory_bytes
            )
            if room and stage.kind in worker.spec.runs and name not in worker.resident and name not in worker.loading:
                self._load(worker, stage)
        if wanted.next_ns > now and not self._scaler_timer:
            self._scaler_timer = self._set_timer(wanted.next_ns, None)

    def _model_loaded(self, event: ModelLoaded) -> None:
        worker = self.workers.get(event.worker)
        if worker is not None and worker.spec.keeps_queue:
            self._holds(worker, self.stages[event.stage].weights, event.nbytes)
            return
        if worker is None or event.stage not in worker.loading:
            return
        worker.resident_bytes += event.nbytes - worker.loading.pop(event.stage)
        worker.resident[event.stage] = event.nbytes
        self.holders[event.stage][worker.id] = worker
        self._freed = True

    def _model_evicted(self, event: ModelEvicted) -> None:
        worker = self.workers.get(event.worker)
        if worker is not None:
            self._holds(worker, event.weights, None)

    def _holds(self, worker: Worker, weights: str, nbytes: int | None) -> None:
        """A worker that keeps its own memory said that a model has come, or (None) gone."""
        assert self._router is not None
        if nbytes is None:
            worker.resident.pop(weights, None)
        else:
            worker.resident[weights] = nbytes
        self._router.holds(worker.id, weights, nbytes is not None, self.now_ns)

    def _peer_state_received(self, event: PeerStateReceived) -> None:
        if self._router is not None:
            self._router.heard(event.rows, event.at_ns)

    def _load_failed(self, event: LoadFailed) -> None:
        worker = self.workers.get(event.worker)
        if worker is not None and worker.spec.keeps_queue:
            self._holds(worker, self.stages[event.stage].weights, None)
        elif worker is not None and event.stage in worker.loading:
            worker.resident_bytes -= worker.loading.pop(event.stage)

    def _worker_lost(self, event: WorkerLost) -> None:
        worker = self.workers.pop(event.worker, None)
        if worker is None:
            return
        if worker.spec.keeps_queue and self._router is not None:
            self._router.lost(worker)
        else:
            for stage in worker.resident:
                del self.holders[stage][worker.id]
        for ident in list(worker.running):
            batch = self._release(ident)
            if batch is not None:
                self._retry(batch, f"worker {worker.spec.name} was lost: {event.detail}", "worker_lost")
        worker.free_pct = FULL_SHARE

    # -- time -------------------------------------------------------------------------------------------------

    def _set_timer(self, at_ns: int, purpose: int | str | Worker | None, reason: str = "") -> int:
        self._last_timer += 1
        self.timers[self._last_timer] = purpose
        self._out.append(SetTimer(self.step_number, self._last_timer, at_ns, reason))
        return self._last_timer

    def _timer_fired(self, event: TimerFired) -> None:
        if event.timer == self._scaler_timer:
            self._scaler_timer = 0
        purpose = self.timers.pop(event.timer, None)
        if isinstance(purpose, str):
            queue = self.queues[purpose]
            # A hold that was replaced by another, or ended by a batch, leaves its timer behind: that means nothing.
            if 0 < queue.held_until_ns <= event.at_ns:
                queue.held_until_ns = 0
                self._touched.append(queue)
        elif isinstance(purpose, Worker):
            if purpose.look_ns <= event.at_ns:
                purpose.look_ns = 0
        elif purpose is not None:
            request = self.requests[purpose]
            request.timer = 0
            self._close(request, "expired", "its deadline passed before it was done")

    def _drain_started(self, event: DrainStarted) -> None:
        self.draining = True
