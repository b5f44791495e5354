"""Sending a batch before there is room for it.

Between the end of a batch and the begin of the next a worker waits for its answer to reach the controller and for the
decision to come back: a third of a millisecond live. So a batch that is about to end lends its room: the next one is
decided a little early, sent, and waits at the worker. And where a worker runs batches kernel by kernel, one of a
lower class lends its room to one of a higher class at any time.

Rules of this file
- Nothing is lent unless something waits that found no room, and what is not used is taken back in the same step.
- A batch lends once at a time, so at most one batch waits at a worker for each that runs.
- Those that wait are never promised more room than those that run have.
- Batches that wait there are in line: room that comes free is theirs before anything else is sent.
"""

from __future__ import annotations

from ..state import Batch, Worker

#: The part of what is expected by which a batch may well end earlier: run times are not exact. No more than the lead
#: is set aside for that: of a long batch it would be long, and the turn of a worker that it saves is short.
EARLIER = 10

#: Reasons of batches that are sent before there is room for them.
ENDING, HIGHER = "its worker is about to be free", "over a lower class"

__all__ = ["ENDING", "HIGHER", "Loan", "drop_out", "ending", "leave_line", "outranked", "settle"]


class Loan:
    """Room that batches of a worker lend for the length of a step: whatever is started on it meanwhile is ahead."""

    __slots__ = ("_before", "_lenders", "_worker")

    def __init__(self, worker: Worker, lenders: list[Batch], reason: str) -> None:
        self._worker = worker
        self._lenders = tuple(lenders)
        self._before = (worker.free_pct, worker.free_cpus, len(worker.ahead))
        worker.lending = reason
        share_pct = sum(batch.config.share_pct for batch in lenders)
        cpus = sum(batch.config.cpus for batch in lenders)
        if reason == ENDING:
            # Room that came free went to whoever was first in line: those behind wait for what is left of their
            # lenders, and for others.
            begun = [batch for batch in worker.running.values() if not batch.ahead and not batch.routed]
            owed_pct = sum(batch.config.share_pct - batch.got_pct for batch in worker.ahead)
            owed_cpus = sum(batch.config.cpus - batch.got_cpus for batch in worker.ahead)
            share_pct = min(share_pct, max(0, sum(batch.config.share_pct for batch in begun) - owed_pct))
            cpus = min(cpus, max(0, sum(batch.config.cpus for batch in begun) - owed_cpus))
        worker.free_pct += share_pct
        worker.free_cpus += cpus

    def close(self, now_ns: int) -> None:
        """Take the room back."""
        worker = self._worker
        worker.lending = ""
        worker.free_pct, worker.free_cpus, ahead = self._before
        for borrower in worker.ahead[ahead:]:
            borrower.lenders = self._lenders
            for batch in self._lenders:
                batch.lent += 1
        settle(worker, now_ns)


def ending(worker: Worker, lead_ns: int, now_ns: int) -> tuple[list[Batch], int]:
    """Batches that should end within the lead, and when the next one will be so near its end (0: none will)."""
    near: list[Batch] = []
    next_ns = 0
    for batch in worker.running.values():
        if batch.lent or batch.ahead or batch.routed:
            continue
        spare_ns = min(batch.expected_ns // EARLIER, lead_ns)
        at_ns = batch.begun_ns + max(0, batch.expected_ns - spare_ns - lead_ns)
        if at_ns <= now_ns:
            near.append(batch)
        elif not next_ns or at_ns < next_ns:
            next_ns = at_ns
    return near, next_ns


def outranked(worker: Worker, priority: int) -> list[Batch]:
    """Batches of lower classes than this one that have not lent their room."""
    running = worker.running.values()
    return [batch for batch in running if not batch.lent and not batch.routed and batch.priority() > priority]


def settle(worker: Worker, now_ns: int) -> None:
    """Give free room to those that wait at the worker, in their order, and let begin whoever has enough."""
    while worker.ahead:
        batch = worker.ahead[0]
        share_pct = min(worker.free_pct, batch.config.share_pct - batch.got_pct)
        cpus = min(worker.free_cpus, batch.config.cpus - batch.got_cpus)
        batch.got_pct += share_pct
        batch.got_cpus += cpus
        worker.free_pct -= share_pct
        worker.free_cpus -= cpus
        if batch.got_pct < batch.config.share_pct or batch.got_cpus < batch.config.cpus:
            return
        batch.begun_ns = now_ns
        leave_line(worker, batch)


def drop_out(worker: Worker, batch: Batch) -> None:
    """A batch that was ahead has ended out of turn: whoever was sent into its room is now sent into its lenders'.

    Otherwise they would lend it once more, and again, and ever more batches would wait at the worker.
    """
    heirs, lenders = [other for other in worker.ahead if batch in other.lenders], batch.lenders
    leave_line(worker, batch)
    for heir in heirs:
        more = tuple(lender for lender in lenders if lender not in heir.lenders)
        heir.lenders = (*(lender for lender in heir.lenders if lender is not batch), *more)
        for lender in more:
            lender.lent += 1


def leave_line(worker: Worker, batch: Batch) -> None:
    """A batch that was ahead has begun, or is gone."""
    worker.ahead.remove(batch)
    batch.ahead = False
    for lender in batch.lenders:
        lender.lent -= 1
    batch.lenders = ()
