"""A lone ingress writes the rows of workers itself: what was sent counts until it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.lab.rivals.single_ingress import SingleIngress
from dovetail.state import Batch, Config, Queue, Worker, WorkerRow, WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

STAGE = StageSpec("read", "model", model="read", weights_bytes=40)


class Listener:
    """A router that keeps the rows it hears."""

    def __init__(self) -> None:
        self.rows: list[WorkerRow] = []

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        self.rows += rows

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_a_row_has_what_was_sent_and_has_not_ended_and_what_others_sent() -> None:
    listener = Listener()
    ingress = SingleIngress(listener)  # type: ignore[arg-type]
    worker = Worker(7, WorkerSpec("gpu", "gpu", ("model",), memory_bytes=100))
    ingress.joined(worker)
    batches = [
        Batch(n, Queue("read", STAGE), worker, Config(1, 1, 100), [], 0, took_ms * MS)
        for n, took_ms in ((1, 30), (2, 5))
    ]
    for batch in batches:
        ingress.started(batch, MS)
    ingress.ended(batches[0], 2 * MS, True)
    worker.resident["read"] = 40
    ingress.holds(worker, "read", True, 3 * MS)
    assert listener.rows == [
        WorkerRow(7, MS, 30 * MS, 31 * MS, (), 100),
        WorkerRow(7, MS, 35 * MS, 36 * MS, (), 100),
        WorkerRow(7, 2 * MS, 5 * MS, 7 * MS, (), 100),
        WorkerRow(7, 3 * MS, 5 * MS, 8 * MS, ("read",), 60),
    ]
    ingress.heard([WorkerRow(7, 4 * MS, 25 * MS, 29 * MS, ("read",), 60)], 4 * MS)
    ingress.ended(batches[1], 5 * MS, False)
    assert listener.rows[-1] == WorkerRow(7, 5 * MS, 20 * MS, 25 * MS, ("read",), 60), "20 ms are those of others"
