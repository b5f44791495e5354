"""Every invariant of the controller's state, checked after each step under test.

Rules of this file: it reads and never repairs; a broken invariant raises AssertionError with what was found. The
numbers are those of docs/invariants.md.
"""

from __future__ import annotations

from collections import Counter

from ..schedule.protocol import Hold
from ..state import Queue
from ..state.run_batch import FULL_QUOTA
from ..state.worker import FULL_SHARE
from .controller import Controller

__all__ = ["validate"]


def validate(controller: Controller) -> None:
    """Raise AssertionError if the controller's books do not balance.

    Whether something idle could run (4) only the scheduler knows, so it is asked: nothing that the step itself has
    not asked it, so that a run is the same with and without these checks.
    """
    _requests(controller)
    _batches(controller)
    _workers(controller)
    _slices(controller)
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
    waits = c.cluster.waiting
    assert waits.items == len(seen), f"{waits.items} items are said to wait, {len(seen)} do [1]"
    ready = sum(queue.size > 0 and not queue.held_until_ns for queue in c.queues.values())
    assert waits.ready == ready, f"{waits.ready} queues are said to have work and no hold, {ready} have [1]"
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
        if not batch.worker.swaps:
            here = batch.queue.stage.weights in batch.worker.resident
            assert here, f"batch {ident} runs without its model [3]"


def _workers(c: Controller) -> None:
    for worker in c.workers.values():
        for batch in worker.line:
            assert batch.waits and worker.running.get(batch.id) is batch, f"batch {batch.id} waits for nothing [2]"
            assert batch.got_pct < batch.config.share_pct or batch.got_cpus < batch.config.cpus, (
                f"batch {batch.id} has its room and does not begin [2]"
            )
        for batch in worker.running.values():
            assert batch.waits == (batch in worker.line), f"batch {batch.id} is not in line [2]"
            whole = (batch.got_pct, batch.got_cpus) == (batch.config.share_pct, batch.config.cpus)
            assert batch.waits or whole or batch.fetches or batch.sliced, (
                f"batch {batch.id} runs on less than its room [2]"
            )
            assert not batch.fetches or (not batch.got_pct and batch.queue.stage.weights not in worker.resident), (
                f"batch {batch.id} is fetched for and has room, or its model [2]"
            )
        fetching = sum(batch.fetches for batch in worker.running.values())
        assert worker.fetching == fetching, f"worker {worker.id} counts {worker.fetching} fetches [2]"
        used = sum(b.got_pct for b in worker.running.values())
        assert 0 <= worker.free_pct <= FULL_SHARE, f"worker {worker.id} has {worker.free_pct} % free [2]"
        assert used + worker.free_pct == FULL_SHARE, (
            f"worker {worker.id}: {used} % used, {worker.free_pct} % free [2]"
        )
        cpus = sum(b.got_cpus for b in worker.running.values())
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


def _slices(c: Controller) -> None:
    """A slice is on a worker that is there, and what runs in it knows it."""
    cluster = c.cluster
    for stage, holders in cluster.holders.items():
        pieces = cluster.declared.get(stage)
        assert pieces is None or set(holders) <= set(pieces), f"stage {stage} has no slice where it has its model [2]"
    for pieces in (*cluster.slices.values(), *cluster.declared.values()):
        for ident, piece in pieces.items():
            assert piece.id == ident and piece.worker in c.workers, f"slice {ident} is on a lost worker [2]"
            assert 0 < piece.share_pct <= FULL_SHARE and 0 < piece.quota_pct <= FULL_QUOTA, (
                f"slice {ident} is none [2]"
            )
            assert len(piece.running) <= piece.at_once, f"slice {ident} has batches {piece.running} at once [2]"
            for number in piece.running:
                assert number in c.batches and c.batches[number].slice is piece, f"slice {ident} runs nothing [2]"
    for batch in c.batches.values():
        if batch.slice is not None:
            assert batch.id in batch.slice.running, f"batch {batch.id} is not in its slice [2]"
        sliced = batch.queue.stage.name in cluster.sliced
        assert sliced == (batch.slice is not None), f"batch {batch.id} is not where its stage has slices [2]"


def _work_conserving(c: Controller) -> None:
    """Idle device and runnable work means a launch, unless the policy declares the hold, its reason and its end."""
    held = {purpose for purpose in c.timers.values() if isinstance(purpose, str)}
    scheduler = c.policy.scheduler
    for queue in c.queues.values():
        if not queue.size:
            continue
        if queue.held_until_ns > c.now_ns:
            assert queue.key in held, f"queue {queue.key} is held without an end [4]"
            continue
        # Whoever is asked only when work comes and when a batch ends may say something else as time goes by.
        asked_ns = c.asked_ns(queue.key)
        answer = scheduler.offers(queue, asked_ns)
        assert not isinstance(answer, Hold), f"queue {queue.key} is held ({answer.reason}), but nobody was told [4]"
        if answer:
            start_ns = answer[0].start_ns - scheduler.bind_ns
            assert start_ns > asked_ns, f"queue {queue.key} could run on worker {answer[0].worker.id} but waits [4]"
            looks = scheduler.bind_ns or answer[0].slice is not None
            assert not looks or "" in held, f"queue {queue.key} waits for an offer, but nobody looks [4]"
