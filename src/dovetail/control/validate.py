"""Every invariant of the controller's state, checked after each step under test.

Rules of this file: it reads and never repairs; a broken invariant raises AssertionError with what was found. The
numbers are those of docs/invariants.md.
"""

from __future__ import annotations

from collections import Counter

from ..plan import Hold
from ..state import Queue
from ..state.worker import FULL_SHARE
from .controller import Controller
from .launch import sliced_room

__all__ = ["validate"]


def validate(controller: Controller) -> None:
    """Raise AssertionError if the controller's books do not balance.

    Whether something idle could run (4) only planner and placer know, so they are asked: nothing that the step itself
    has not asked them, so that a run is the same with and without these checks.
    """
    _requests(controller)
    _batches(controller)
    _workers(controller)
    _work_conserving(controller)


def _requests(c: Controller) -> None:
    waiting: Counter[tuple[int, Queue]] = Counter()
    seen: set[tuple[int, int, int]] = set()
    for queue in c.queues.values():
        items = queue.open_items()
        assert queue.size == len(items), f"queue {queue.key} says {queue.size}, holds {len(items)} [1]"
        for item in items:
            assert item.request.id in c.requests, f"queue {queue.key} holds an item of an unknown request [1]"
            waiting[item.request.id, queue] += 1
            key = (item.request.id, item.node, item.index)
            assert key not in seen, f"item {key} waits twice [1]"
            seen.add(key)
    for batch in c.batches.values():
        for item in batch.items:
            key = (item.request.id, item.node, item.index)
            assert item.request.outcome or key not in seen, f"item {key} waits and runs, or runs twice [1]"
            seen.add(key)
    for request in c.requests.values():
        assert not request.outcome, f"request {request.id} is closed ({request.outcome}) but still open [1]"
        assert request.nodes_left > 0, f"request {request.id} is done but not answered [1]"
        busy = any(key[0] == request.id for key in seen)
        assert busy, f"request {request.id} is open but nothing of it waits or runs: it is lost [1]"
        for queue, count in request.waiting.items():
            assert waiting[request.id, queue] == count, f"request {request.id} counts {count} in {queue.key} [1]"
        if request.timer:
            assert c.timers.get(request.timer) == request.id, f"request {request.id} lost its timer [1]"


def _batches(c: Controller) -> None:
    for ident, batch in c.batches.items():
        assert batch.items, f"batch {ident} is empty [2]"
        assert len(batch.items) <= batch.config.batch, f"batch {ident} is larger than its configuration [2]"
        assert batch.worker.running.get(ident) is batch, f"batch {ident} is not on its worker [2]"
        assert batch.worker.id in c.workers, f"batch {ident} runs on a lost worker [2]"
        if not batch.routed and not batch.worker.swaps:
            here = batch.queue.stage.weights in batch.worker.resident
            assert here, f"batch {ident} runs without its model [3]"


def _workers(c: Controller) -> None:
    for worker in c.workers.values():
        if c.policy.router is not None and not worker.spec.on_host:
            continue  # it keeps its own books, and checks them: `device`
        for batch in worker.ahead:
            assert batch.ahead and worker.running.get(batch.id) is batch, f"batch {batch.id} is ahead of nothing [2]"
            assert batch.got_pct < batch.config.share_pct or batch.got_cpus < batch.config.cpus, (
                f"batch {batch.id} has its room and does not begin [2]"
            )
        for batch in worker.running.values():
            borrowers = sum(batch in other.lenders for other in worker.ahead)
            assert batch.lent == borrowers, f"batch {batch.id} lent to {batch.lent}, {borrowers} borrow [2]"
            assert batch.ahead == (batch in worker.ahead), f"batch {batch.id} is not in line [2]"
        assert not worker.lending, f"worker {worker.id} still lends room [2]"
        own = [b for b in worker.running.values() if not b.routed]
        used = sum(b.got_pct if b.ahead else b.config.share_pct for b in own)
        assert 0 <= worker.free_pct <= FULL_SHARE, f"worker {worker.id} has {worker.free_pct} % free [2]"
        assert used + worker.free_pct == FULL_SHARE, (
            f"worker {worker.id}: {used} % used, {worker.free_pct} % free [2]"
        )
        cpus = sum(b.got_cpus if b.ahead else b.config.cpus for b in own)
        assert not worker.spec.cores or cpus + worker.free_cpus == worker.spec.cores, (
            f"worker {worker.id}: {cpus} cpus [2]"
        )
        assert worker.free_cpus >= 0, f"worker {worker.id} runs more than its cores [2]"
        if worker.swaps:
            continue  # it keeps its own memory
        held = sum(worker.resident.values()) + sum(worker.loading.values())
        assert held == worker.resident_bytes, f"worker {worker.id} counts {worker.resident_bytes}, holds {held} B [3]"
        limit = worker.spec.memory_bytes
        assert not limit or held <= limit, f"worker {worker.id} holds {held} B of {limit} B [3]"
    for stage, holders in c.holders.items():
        weights = c.stages[stage].weights
        for ident in holders:
            worker = c.workers[ident]
            assert worker.swaps or weights in worker.resident, f"worker {ident} is said to hold {stage} [3]"


def _work_conserving(c: Controller) -> None:
    """Idle device and runnable work means a launch, unless the policy declares the hold, its reason and its end."""
    held = {purpose for purpose in c.timers.values() if isinstance(purpose, str)}
    for queue in c.queues.values():
        holders = c.holders[queue.stage.name]
        if queue.stage.sliced:
            room = any(sliced_room(worker, queue.stage) for worker in holders.values())
            held_back = isinstance(c.policy.planner.choose(queue, c.now_ns), Hold) if queue.size and room else True
            assert held_back, f"queue {queue.key} has a slice with room and waits [4]"
            continue
        if not queue.size or not any(worker.free_pct for worker in holders.values()):
            continue
        if queue.held_until_ns > c.now_ns:
            assert queue.key in held, f"queue {queue.key} is held without an end [4]"
            continue
        choice = c.policy.planner.choose(queue, c.now_ns)
        assert not isinstance(choice, Hold), f"queue {queue.key} is held ({choice.reason}), but nobody was told [4]"
        for config in choice:
            place = c.policy.placer.choose(queue, config, holders, c.now_ns)
            assert place is None, f"queue {queue.key} could run on worker {place and place.id} but waits [4]"
