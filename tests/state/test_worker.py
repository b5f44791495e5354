"""Workers and batches: what they cost, what is free at first, and whose class counts."""

from __future__ import annotations

import pytest

from dovetail.state import Batch, Cluster, Config, Item, Queue, Request, Worker, WorkerSpec, compile_graphs
from dovetail.workflow.graph import StageSpec, chain

STAGE = StageSpec("read", "model", (1, 4))
GRAPH = chain("flow", 1000, [STAGE])


def request(ident: int, priority: int) -> Request:
    compiled, _ = compile_graphs([GRAPH], lambda _graph, node: node.stage)
    return Request(ident, compiled[0], priority, 0, 1000, 0)


def test_a_batch_costs_its_share_of_the_device_and_its_cores() -> None:
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",), usd_per_hour=3600.0, usd_per_core_hour=36.0))
    assert worker.usd_per_ns(Config(1, 0, 100)) == pytest.approx(1e-9)
    assert worker.usd_per_ns(Config(1, 0, 25)) == pytest.approx(0.25e-9)
    assert worker.usd_per_ns(Config(1, 3, 100)) == pytest.approx(1e-9 + 3 * 0.01e-9)


def test_all_of_a_worker_is_free_at_first() -> None:
    counted, uncounted = (Worker(n, WorkerSpec("cpu", "cpu", ("onnx",), cores=n)) for n in (4, 0))
    assert (counted.free_pct, counted.free_cpus) == (100, 4)
    assert uncounted.free_cpus > 10**6
    assert (counted.resident, counted.loading, counted.resident_bytes, counted.running) == ({}, {}, 0, {})
    assert counted.line == [], "nobody waits there"


def test_a_batch_is_of_the_highest_class_in_it() -> None:
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",)))
    items = [Item(request(n, priority), 0, 0, 0) for n, priority in ((1, 3), (2, 1), (3, 2))]
    batch = Batch(1, Queue("read", STAGE), worker, Config(4, 1, 100), items, 0, 10)
    assert batch.priority() == 1


def test_an_item_s_data_is_nowhere_at_first_and_a_batch_waits_for_nothing() -> None:
    item = Item(request(1, 1), 0, 0, 0)
    assert (item.origin, item.attempts, item.refused, item.alone) == (0, 0, 0, False)
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",)))
    batch = Batch(1, Queue("read", STAGE), worker, Config(1, 1, 100), [item], 5, 10)
    assert (batch.waits, batch.begun_ns) == (False, 5)


def test_a_cluster_counts_how_often_its_holders_have_changed() -> None:
    cluster = Cluster({}, ["read", "sort"])
    worker = Worker(7, WorkerSpec("gpu", "gpu", ("model",)))
    assert cluster.moves == 0
    cluster.hold("read", worker)
    assert (cluster.moves, cluster.holders["read"], cluster.holders["sort"]) == (1, {7: worker}, {})
    cluster.let_go("read", 7)
    assert (cluster.moves, cluster.holders["read"]) == (2, {})
