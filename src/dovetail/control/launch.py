"""From queues to workers: what starts in a step, in which configuration and where.

Rules of this file
- Work waits in queues and goes to a worker that is free; or, if the policy has a router, it goes at once to a worker
  that keeps a queue of its own (`send`). A worker that is about to be free, or that lets a higher class in, may be
  sent a batch before there is room for it (`ahead.py`).
- At the end of a step nothing waits that the planner would start and the placer would place, unless it is held and
  a timer is set for the end of the hold (promise 4). A queue is asked when its work or the room for it has changed,
  and when its hold is over. The answers of a restless planner change by themselves: its queues are asked in every
  step, and once more if another batch has started since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final

from ..plan import Hold
from ..state import Batch, Cluster, CompiledNode, Config, Item, Queue, Request, Worker
from ..state.worker import FULL_SHARE
from ..workflow.graph import StageSpec
from .actions import NEVER_NS, RunBatch
from .early_send import ENDING, HIGHER, Loan, drop_out, ending, outranked, settle
from .policy import Policy
from .step import Step

__all__ = ["MAX_REFUSALS", "Launcher"]

#: Workers that may refuse an item for their queue; the next one has to take it, or no one can in time.
MAX_REFUSALS: Final = 4
#: Batches of a stage with a quota that a worker has at once: one that runs and one that waits [our choice].
MOST_SLICED: Final = 2


class Launcher:
    """Starts batches, and takes them off their workers again."""

    def __init__(self, cluster: Cluster, policy: Policy, step: Step, ingress: int = 0) -> None:
        self._ingress = ingress
        self._queues, self._holders, self._batches = cluster.queues, cluster.holders, cluster.batches
        self._workers = cluster.workers
        #: Every queue, and the workers that hold its stage's model.
        self._rooms = [(queue, cluster.holders[queue.stage.name]) for queue in cluster.queues.values()]
        self._planner, self._placer, self._predictor = policy.planner, policy.placer, policy.predictor
        self._router = policy.router
        self._lead_ns = policy.lead_ns
        self._step = step
        self._restless = policy.planner.restless
        #: Whether a batch may ever be sent before there is room for it.
        self.looks_ahead = policy.lead_ns > 0
        #: Queues whose work has changed in this step, and whether there is more room than before.
        self.touched: list[Queue] = []
        self.freed = False
        #: Queues with a hold that has not been ended.
        self._held: dict[str, Queue] = {}
        self._last_batch = 0

    # -- what starts ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start whatever can be started now that the event's own changes are made."""
        if self._held:
            self._end_holds()
        touched = self.touched
        before = self._last_batch
        if self.freed:
            self.freed = False
            queues = []
            for queue, holders in self._rooms:  # of those without work or room the planner need not be asked
                if queue.size:
                    for worker in holders.values():
                        if worker.free_pct or queue.stage.sliced:
                            queues.append(queue)
                            break
            if queues:
                self._dispatch(queues)
        elif self._restless:
            self._dispatch([q for q in self._queues.values() if q.size and (not q.held_until_ns or q in touched)])
        elif len(touched) == 1:
            queue = touched[0]
            while queue.size and self._start_batch(queue):
                pass
        elif touched:
            self._dispatch([q for q in dict.fromkeys(touched) if q.size])
        touched.clear()
        if self._restless and self._last_batch != before:
            self._start_rest()
        if self.looks_ahead and self._look_ahead() and self._restless:
            self._start_rest()

    def _end_holds(self) -> None:
        """Ask the queues whose time has come, whether or not their own timer has been heard of yet."""
        now = self._step.now_ns
        for queue in [q for q in self._held.values() if q.held_until_ns <= now]:
            self._let_go(queue)
            self.touched.append(queue)

    def _let_go(self, queue: Queue) -> None:
        queue.held_until_ns = 0
        self._held.pop(queue.key, None)

    def _start_rest(self) -> None:
        """What has started changed the planner's mind, perhaps: ask until nothing more starts."""
        before = -1
        while self._last_batch != before:
            before = self._last_batch
            self._dispatch([q for q in self._queues.values() if q.size and not q.held_until_ns])

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
        holders = self._holders[stage.name]
        for worker in holders.values():
            if sliced_room(worker, stage) if stage.sliced else worker.free_pct:
                break
        else:
            return False  # whatever the policies would say, there is no room
        now = self._step.now_ns
        choice = self._planner.choose(queue, now)
        if type(choice) is Hold:
            if choice.until_ns <= now:
                raise ValueError(f"the planner holds queue {queue.key!r} until the past ({choice.reason})")
            if queue.held_until_ns != choice.until_ns:
                queue.held_until_ns = choice.until_ns
                self._held[queue.key] = queue
                self._step.set_timer(choice.until_ns, queue.key, choice.reason)
            return False
        if stage.sliced:
            return self._start_sliced(queue, holders, next(iter(choice)))
        if stage.share_pct:
            choice = [declared(config, stage, worker) for config in choice]
        for config in choice:
            chosen = self._placer.choose(queue, config, holders, now)
            if chosen is not None:
                worker = chosen
                break
        else:
            return False
        if queue.held_until_ns:
            self._let_go(queue)
        worker.free_pct -= config.share_pct
        worker.free_cpus -= config.cpus
        lending = worker.lending
        batch = self._launch(queue, worker, config, queue.pop(config.batch), 0, lending)
        if lending:
            batch.ahead = True
            worker.ahead.append(batch)
        return True

    def _start_sliced(self, queue: Queue, holders: Mapping[int, Worker], config: Config) -> bool:
        """A stage with a quota waits for tokens at the device: two of its batches may be there, whatever else is."""
        if queue.held_until_ns:
            self._let_go(queue)
        worker = min(
            (w for w in holders.values() if sliced_room(w, queue.stage)), key=lambda w: (len(w.running), w.id)
        )
        config = declared(config, queue.stage, worker)
        self._launch(queue, worker, config, queue.pop(config.batch), routed=True)
        return True

    def _look_ahead(self) -> bool:
        """Send what waits to workers that let a higher class in, or are about to be free; see `ahead`.

        Says whether anything was sent.
        """
        now, lead = self._step.now_ns, self._lead_ns
        holders = self._holders
        waiting = [q for q in self._queues.values() if q.size and q.held_until_ns <= now and not q.stage.on_host]
        if not waiting:
            return False
        before = self._last_batch
        for queue in waiting:
            for worker in list(holders[queue.stage.name].values()):
                head = queue.head() if worker.spec.preempts else None
                if head is not None and (lenders := outranked(worker, head.request.priority)):
                    loan = Loan(worker, lenders, HIGHER)
                    self._start_batch(queue)
                    loan.close(now)
        if lead:
            self._lend_ends(waiting, lead)
        return self._last_batch != before

    def _lend_ends(self, waiting: list[Queue], lead_ns: int) -> None:
        """Let batches that are about to end lend their room to what still waits of these queues."""
        now, holders = self._step.now_ns, self._holders
        loans = []
        for worker in {w.id: w for q in waiting if q.size for w in holders[q.stage.name].values()}.values():
            lenders, next_ns = ending(worker, lead_ns, now)
            if lenders:
                loans.append(Loan(worker, lenders, ENDING))
            elif next_ns and not now < worker.look_ns <= next_ns:
                worker.look_ns = next_ns
                self._step.set_timer(next_ns, worker, "a batch is about to end")
        if loans:
            self._dispatch([q for q in waiting if q.size])
            for loan in loans:
                loan.close(now)

    def send(self, item: Item, queue: Queue) -> None:
        """Send one item to the worker that the router names; without any it waits here until one joins."""
        router, now = self._router, self._step.now_ns
        assert router is not None
        route = router.route(item, now)
        if route is None:
            queue.push(self._planner.order(item.request, item.node), item)
            return
        worker = self._workers[route.worker]
        config = Config(1, worker.spec.cores or 1, FULL_SHARE)
        # Whoever was refused so often goes where it is sent, however long it takes there.
        accept_ns = route.latest_ns if item.refused < MAX_REFUSALS else 0
        batch = self._launch(queue, worker, config, [item], route.order, route.reason, accept_ns, True)
        router.sent(batch, now)

    # -- the books of what runs -------------------------------------------------------------------------------

    def _launch(
        self,
        queue: Queue,
        worker: Worker,
        config: Config,
        items: list[Item],
        order: int = 0,
        reason: str = "",
        accept_ns: int = 0,
        routed: bool = False,
    ) -> Batch:
        """Enter a new batch into the books, and tell its worker all that it has to know of it."""
        step, stage = self._step, queue.stage
        now = step.now_ns
        self._last_batch = ident = self._last_batch + 1
        expected = self._predictor.run(stage, worker.spec.kind, len(items), config)
        mean_ns, spread = expected.mean_ns, expected.spread
        batch = Batch(ident, queue, worker, config, items, now, mean_ns, routed)
        self._batches[ident] = worker.running[ident] = batch
        self._planner.started(batch)
        if len(items) == 1:
            item = items[0]
            request, node = item.request, item.node
            triples: tuple[tuple[int, int, int], ...] = ((request.id, node, item.index),)
            latest, priority, objective = request.deadline_ns or NEVER_NS, request.priority, request.objective_ns
            compiled = request.graph.nodes[node]
            follows = bool(compiled.models_next) and _follows(request, compiled)
        else:
            triples = tuple([(item.request.id, item.node, item.index) for item in items])
            latest, priority, objective, follows = _joint(items)
        step.out.append(
            RunBatch(
                step.number,
                ident,
                worker.id,
                stage.name,
                triples,
                config.cpus,
                config.share_pct,
                now,
                latest,
                mean_ns,
                order,
                reason,
                accept_ns,
                priority,
                objective,
                spread,
                stage.quota_pct or config.quota_pct,
                stage.client,
                follows,
                self._ingress,
            )
        )
        return batch

    def release(self, ident: int) -> Batch | None:
        """Take a batch off its worker; None if it is not known any more."""
        batch = self._batches.pop(ident, None)
        if batch is None:
            return None
        worker = batch.worker
        del worker.running[ident]
        if batch.routed:
            self.freed = self.freed or batch.queue.stage.sliced
            return batch  # its worker's own account, not ours
        if batch.ahead:  # it had no more than this
            drop_out(worker, batch)
            worker.free_pct += batch.got_pct
            worker.free_cpus += batch.got_cpus
        else:
            worker.free_pct += batch.config.share_pct
            worker.free_cpus += batch.config.cpus
        if self.looks_ahead:
            settle(worker, self._step.now_ns)
        self.freed = True
        return batch


def sliced_room(worker: Worker, stage: StageSpec) -> bool:
    """Whether one more batch of a stage with a quota may go to this worker."""
    return sum(batch.queue.stage.name == stage.name for batch in worker.running.values()) < MOST_SLICED


def declared(config: Config, stage: StageSpec, worker: Worker) -> Config:
    """A configuration with the slice that the stage declares: a share of the device is as much of its cores."""
    if not stage.share_pct:
        return config
    cpus = max(1, worker.spec.cores * stage.share_pct // FULL_SHARE) if worker.spec.cores else config.cpus
    return Config(config.batch, cpus, stage.share_pct, config.quota_pct)


def _joint(items: Sequence[Item]) -> tuple[int, int, int, bool]:
    """Of items that run together: the end of their window, their class, its first objective, whether a model follows.

    The window ends with the last deadline: until then the batch is of use to someone. Of its highest class alone
    counts when it should be answered, and what follows.
    """
    latest = max([item.request.deadline_ns or NEVER_NS for item in items])
    priority = min([item.request.priority for item in items])
    first = [item for item in items if item.request.priority == priority]
    objective = min([item.request.objective_ns for item in first])
    follows = any(_follows(item.request, item.request.graph.nodes[item.node]) for item in first)
    return latest, priority, objective, follows


def _follows(request: Request, node: CompiledNode) -> bool:
    """Whether a model follows as soon as an item of this node is done: one that waits for nothing else."""
    for index in node.models_next:  # noqa: SIM110 - this is asked for every batch
        if request.missing[index] <= 1 or index in node.each_next:
            return True
    return False
