"""Room that is lent before it is free: those that wait at a worker are never promised more than runs there."""

from __future__ import annotations

import pytest

from dovetail.control.early_send import ENDING, HIGHER, Loan
from dovetail.state import Batch, Config, Queue, Worker, WorkerSpec
from dovetail.workflow.graph import StageSpec

READ = StageSpec("read", "model", (1,), model="read")


def full(ahead: int) -> tuple[Worker, list[Batch]]:
    """A worker with four batches of a quarter, and so many that wait there for a quarter each."""
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",), cores=8))
    made = []
    for ident in range(4 + ahead):
        batch = Batch(ident, Queue("read", READ), worker, Config(1, 1, 25), [], 0, 8)
        worker.running[ident] = batch
        made.append(batch)
        if ident >= 4:
            batch.ahead = True
            worker.ahead.append(batch)
    worker.free_pct, worker.free_cpus = 0, 4
    return worker, made[:4]


@pytest.mark.parametrize(("ahead", "lent_pct"), [(0, 50), (2, 50), (3, 25), (4, 0)])
def test_what_waits_is_promised_no_more_than_runs(ahead: int, lent_pct: int) -> None:
    worker, running = full(ahead)
    loan = Loan(worker, running[:2], ENDING)
    assert (worker.free_pct, worker.free_cpus) == (lent_pct, 4 + lent_pct // 25)
    loan.close(0)
    assert worker.free_pct == 0 or not ahead


def test_a_higher_class_takes_what_a_lower_one_has_whoever_waits_for_it() -> None:
    worker, running = full(4)
    loan = Loan(worker, running[:2], HIGHER)
    assert worker.free_pct == 50
    loan.close(0)
