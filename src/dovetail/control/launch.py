"""From queues to workers: what starts in a step, in which configuration and where.

One loop for every policy: take the first offer of the queue that comes first. If it starts within the scheduler's
`bind_ns`, send it; else look again when it does.

Rules of this file
- At the end of a step nothing waits that the scheduler would start within `bind_ns`, unless it is held and a timer is
  set for the end of the hold (promise 4). A queue is asked when its work or the room for it has changed, and when its
  hold is over. The answers of a restless scheduler change by themselves: its queues are asked in every step, and once
  more if another batch has started since.
- Queues wait in one heap, the one with the first item first. Asking stops when the scheduler says that there is no
  room for anything, and a queue for whose stage nobody has room sleeps until somebody does. So a step does not look
  at all queues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from ..predict.progress import look_again
from ..schedule.protocol import Hold, Offer
from ..state import Batch, Cluster, CompiledNode, Item, Queue, Request
from .actions import NEVER_NS, RunBatch
from .policy import Policy
from .step import Step

__all__ = ["MAX_REFUSALS", "Launcher"]

#: Workers that may refuse an item for their queue; the next one has to take it, or no one can in time.
MAX_REFUSALS: Final = 4

#: Why a timer is set for an offer that waits for its time.
LOOK: Final = "a worker is about to be free"

#: Lines in which queues wait: of devices (0), of host processes, and of stages with slices.
_HOST, _SLICED = 1, 2
#: (order of the head, when that came about, queue)
_Entry = tuple[int, int, Queue]


class Launcher:
    """Starts batches, and takes them off their workers again."""

    def __init__(self, cluster: Cluster, policy: Policy, step: Step, ingress: int = 0) -> None:
        self._ingress = ingress
        self._cluster = cluster
        self._batches = cluster.batches
        self._scheduler, self._predictor = scheduler, predictor = policy.scheduler, policy.predictor
        self._offers, self._started, self._run_of = scheduler.offers, scheduler.started, predictor.run
        self._bind_ns = policy.scheduler.bind_ns
        self._step = step
        self._restless = policy.scheduler.restless
        #: Queue -> when it was last asked for, of a scheduler that is not asked in every step; for `validate`.
        self.asked_ns: dict[str, int] = {}
        #: Queues whose work has changed in this step, and whether there is more room than before.
        self.touched: dict[Queue, None] = {}
        self.freed = False
        #: Queues with work by the order of their heads: those of devices, of host processes, and of stages with
        #: slices, for which no room is reckoned. What does not hold any more is dropped when it comes up.
        self._waiting: tuple[list[_Entry], list[_Entry], list[_Entry]] = ([], [], [])
        #: Queue -> which of them it waits in, once it was asked where.
        self._lines: dict[Queue, list[_Entry]] = {}
        #: Queue -> its valid entry there.
        self._entries: dict[Queue, _Entry] = {}
        self._entered = 0
        #: Stage -> queues with work that are not asked until somebody has room for the stage.
        self._asleep: dict[str, dict[str, Queue]] = {}
        #: (end, number, queue) of holds, the first to end first; what does not hold any more is dropped at its end.
        self._holds: list[tuple[int, int, Queue]] = []
        self._held = 0
        #: When queues are asked next because a worker is about to be free; 0: no timer is set.
        self._look_ns = 0
        #: Number of the batch that was started last, and what it was when the first queue of a round declined.
        self.last_batch = 0
        self._first_declined = 0

    # -- what waits -------------------------------------------------------------------------------------------

    def _enter(self, queue: Queue) -> None:
        """Put a queue with work where its head belongs."""
        order = queue.head_order()
        entry = self._entries.get(queue)
        if entry is not None and entry[0] == order:
            return
        self._entered = entered = self._entered + 1
        self._entries[queue] = entry = (order, entered, queue)
        line = self._lines.get(queue)
        heappush(self._line_of(queue) if line is None else line, entry)

    def _line_of(self, queue: Queue) -> list[_Entry]:
        """Where a queue waits."""
        sliced = queue.stage.name in self._cluster.sliced
        self._lines[queue] = line = self._waiting[_SLICED if sliced else queue.stage.on_host]
        return line

    # -- what starts ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start whatever can be started now that the event's own changes are made."""
        now, touched = self._step.now_ns, self.touched
        if self._holds and self._holds[0][0] <= now:
            self._end_holds()
        if self._asleep:
            self._wake()
        if 0 < self._look_ns <= now:
            self._look_ns = 0
            self.freed = True
        every = self._restless
        if self.freed:
            self.freed = False
            # Where nothing else waits, a queue has nobody to be compared with.
            every = every or len(touched) != 1 or bool(self._entries)
        if every:
            for queue in touched:
                if queue.size and not (self._asleep and self._sleeps_on(queue)):
                    self._enter(queue)
            if self._entries:
                self._dispatch(touched)
        elif len(touched) == 1:
            queue = next(iter(touched))
            while queue.size and self._start_batch(queue):
                pass
            if queue.size:
                self._enter(queue)
        elif touched:
            self._ask(list(touched))
        touched.clear()

    def _ask(self, queues: Sequence[Queue]) -> None:
        """Start what can be started from these queues, the one with the first item first."""
        # The position keeps ties in the order of the queues.
        heads = [(queue.head_order(), position, queue) for position, queue in enumerate(queues) if queue.size]
        heapify(heads)
        while heads:
            _, position, queue = heads[0]
            if self._start_batch(queue) and queue.size:
                heapreplace(heads, (queue.head_order(), position, queue))
                continue
            heappop(heads)
            if queue.size:
                self._enter(queue)

    def _end_holds(self) -> None:
        """Ask the queues whose time has come, whether or not their own timer has been heard of yet."""
        now, holds = self._step.now_ns, self._holds
        while holds and holds[0][0] <= now:
            until_ns, _, queue = heappop(holds)
            if queue.held_until_ns == until_ns:
                queue.hold(0)
                self.touched[queue] = None

    def _wake(self) -> None:
        """Queues that sleep are asked again if somebody may have room for them."""
        for stage in self._scheduler.woken():
            for queue in self._asleep.pop(stage, {}).values():
                if queue.size:
                    self._enter(queue)

    def _sleeps_on(self, queue: Queue) -> bool:
        """Whether a queue sleeps, and more work in it changes nothing: nobody has room for its head."""
        asleep = self._asleep.get(queue.stage.name)
        return asleep is not None and queue.key in asleep and self._scheduler.closed_to(queue)

    def _dispatch(self, touched: Mapping[Queue, None]) -> None:
        """Ask queues in order until there is no room, and again if what has started may change the answers."""
        while True:
            before = self.last_batch
            self._first_declined = NEVER_NS
            devices, hosts, sliced = self._waiting
            if devices:
                self._pass(0, devices, touched)
            if hosts:
                self._pass(_HOST, hosts, touched)
            if sliced:
                self._pass(_SLICED, sliced, touched)
            if not self._restless or self.last_batch == before:
                return
            touched = {}
            entered = self._entered
            if self._asleep:
                self._wake()
            if self._first_declined >= self.last_batch and self._entered == entered:
                return  # all were asked since the last batch has started

    def _pass(self, line: int, waiting: list[_Entry], touched: Mapping[Queue, None]) -> None:
        """One pass over the queues that wait; one that is held is asked only if its own work has changed."""
        entries, full, on_host, placed = self._entries, self._scheduler.full, line == _HOST, line != _SLICED
        declined: list[Queue] = []
        while waiting and not (placed and full(on_host)):
            entry = heappop(waiting)
            queue = entry[2]
            valid = entries.get(queue)
            if valid is None or valid[1] != entry[1]:  # not by `is`: a compiler makes tuples anew
                continue
            del entries[queue]
            if not queue.size or (queue.held_until_ns and queue not in touched):
                continue
            while self._start_batch(queue):
                if not queue.size:
                    break
                if (waiting and waiting[0][0] <= queue.head_order()) or (placed and full(on_host)):
                    self._enter(queue)  # others come first now, or nobody does
                    break
            else:
                declined.append(queue)
                if self.last_batch < self._first_declined:
                    self._first_declined = self.last_batch
        for queue in declined:
            if queue.held_until_ns:
                continue  # the end of its hold brings it back, or its own work
            if placed and self._scheduler.sleeps(queue):
                self._asleep.setdefault(queue.stage.name, {})[queue.key] = queue
            else:
                self._enter(queue)

    def _start_batch(self, queue: Queue) -> bool:
        """Start one batch from the queue if there is an offer that begins soon enough; say whether it did."""
        now = self._step.now_ns
        if not self._restless:
            self.asked_ns[queue.key] = now
        answer = self._offers(queue, now)
        if type(answer) is Hold:
            if answer.until_ns <= now:
                raise ValueError(f"the scheduler holds queue {queue.key!r} until the past ({answer.reason})")
            if queue.held_until_ns != answer.until_ns:
                queue.hold(answer.until_ns)
                self._held += 1
                heappush(self._holds, (answer.until_ns, self._held, queue))
                self._step.set_timer(answer.until_ns, queue.key, answer.reason)
            return False
        if not answer:
            return False
        offer = answer[0]
        look_ns = offer.start_ns - self._bind_ns
        if look_ns > now:
            if (self._bind_ns or offer.slice is not None) and not now < self._look_ns <= look_ns:
                self._look_ns = look_ns
                self._step.set_timer(look_ns, "", LOOK if offer.slice is None else offer.reason)
            return False
        if queue.held_until_ns:
            queue.hold(0)
        self._launch(queue, offer, queue.pop(offer.config.batch))
        return True

    # -- the books of what runs -------------------------------------------------------------------------------

    def _launch(self, queue: Queue, offer: Offer, items: list[Item]) -> None:
        """Enter a new batch into the books, and tell its worker all that it has to know of it."""
        step, stage, worker, config, piece = self._step, queue.stage, offer.worker, offer.config, offer.slice
        now, kind = step.now_ns, worker.spec.kind
        self.last_batch = ident = self.last_batch + 1
        ask = self._run_of if piece is None else self._predictor.usual
        expected = ask(stage, kind, len(items), config)
        mean_ns, spread = expected.mean_ns, expected.spread
        accept_ns = offer.accept_ns
        if accept_ns and items[0].refused >= MAX_REFUSALS:
            accept_ns = 0  # whoever was refused so often goes where it is sent, however long it takes there
        batch = Batch(ident, queue, worker, config, items, now, mean_ns, offer.beside, piece)
        if piece is not None:
            piece.running.append(ident)
        self._batches[ident] = batch
        worker.enter(batch)
        if len(worker.running) > 1 and self._predictor.felt(kind) and not batch.sliced:
            look_again(self._predictor, worker, now)
            mean_ns = batch.expected_ns
        self._started(batch, now)
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
                offer.order,
                offer.reason,
                accept_ns,
                priority,
                objective,
                spread,
                config.quota_pct,
                stage.client if piece is None else piece.client,
                follows,
                self._ingress,
            )
        )

    def release(self, ident: int) -> Batch | None:
        """Take a batch off its worker; None if it is not known any more."""
        batch = self._batches.pop(ident, None)
        if batch is None:
            return None
        worker = batch.worker
        worker.leave(batch, self._step.now_ns)
        if batch.slice is not None:
            batch.slice.running.remove(ident)
            batch.slice.idle_ns = self._step.now_ns
        if worker.running and self._predictor.felt(worker.spec.kind):
            look_again(self._predictor, worker, self._step.now_ns)
        self.freed = True
        return batch


def _joint(items: Sequence[Item]) -> tuple[int, int, int, bool]:
    """Of items that run together: the end of their window, their class, its first objective, whether a model follows.

    The window ends with the last deadline: until then the batch is of use to someone. Of its highest class alone
    counts when it should be answered, and what follows.
    """
    latest = max([item.request.deadline_ns or NEVER_NS for item in items])
    priority = min([item.request.priority for item in items])
    first = [item for item in items if item.request.priority == priority]
    objective = min([item.request.objective_ns for item in first])
    for item in first:
        node = item.request.graph.nodes[item.node]
        if node.models_next and _follows(item.request, node):
            return latest, priority, objective, True
    return latest, priority, objective, False


def _follows(request: Request, node: CompiledNode) -> bool:
    """Whether a model follows as soon as an item of this node is done: one that waits for nothing else."""
    for index in node.models_next:  # noqa: SIM110 - this is asked for every batch
        if request.missing[index] <= 1 or index in node.each_next:
            return True
    return False
