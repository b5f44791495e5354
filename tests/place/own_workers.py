"""A cluster for tests of placement: workers join, load and run without a controller."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dovetail.place import Hint, OwnSettings, OwnWorkers, Spot
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.state import Batch, Cluster, Config, Item, Queue, Request, Worker, WorkerSpec, compile_graphs
from dovetail.units import SECOND
from dovetail.workflow.graph import StageSpec, chain

READ = StageSpec("read", "model", (1,), model="read", weights_bytes=1000)
SORT = StageSpec("sort", "model", (1,), model="sort", weights_bytes=1000)
HALF = Config(1, 1, 50)


class Shop:
    """Workers of one ingress, and what an index says of them."""

    def __init__(
        self, load_ns: int, settings: OwnSettings | None = None, *stages: StageSpec, bind_ns: int = 0, run_ns: int = 0
    ) -> None:
        stages = stages or (READ, SORT)
        self.graphs, queues = compile_graphs([chain("flow", SECOND, stages)], lambda _graph, node: node.stage)
        self.cluster = Cluster(queues, [s.name for s in stages])
        self.stages = {s.name: s for s in stages}
        points = (Point(1, 1, run_ns or 1, 0.0, 1),)
        table = ProfileTable([Entry(s.name, "gpu", points=points) for s in stages])
        predictor = Estimator(table, load_ns=lambda nbytes: load_ns)
        self.own = OwnWorkers(predictor, settings, bind_ns=bind_ns)
        self.own.bind(self.cluster)
        self.now_ns = 0
        self.last = 0

    def settings(self, **settings: int) -> None:
        self.own._settings = msgspec.structs.replace(self.own._settings, **settings)

    def item(self, stage: StageSpec, priority: int = 1) -> Item:
        self.last += 1
        node = next(n.index for n in self.graphs[0].nodes if n.stage.name == stage.name)
        return Item(Request(self.last, self.graphs[0], priority, 0, SECOND, 0), node, 0, 0)

    def join(
        self,
        ident: int,
        *,
        swaps: bool,
        memory_bytes: int = 0,
        preempts: bool = False,
        cores: int = 0,
        kind: str = "gpu",
    ) -> Worker:
        spec = WorkerSpec(f"gpu{ident}", kind, ("model",), cores, memory_bytes=memory_bytes, preempts=preempts)
        worker = Worker(ident, spec)
        self.cluster.join(worker)
        worker.swaps = swaps
        for name in self.stages:
            self.cluster.hold(name, worker)
        self.own.joined(worker)
        if not swaps:
            for stage in self.stages.values():
                self.load(ident, stage)
        return worker

    def load(self, ident: int, stage: StageSpec, *, here: bool = True) -> None:
        worker = self.cluster.workers[ident]
        if here:
            worker.resident[stage.weights] = stage.weights_bytes
            worker.fetched(stage.weights, self.now_ns)
        else:
            worker.resident.pop(stage.weights, None)
        self.own.holds(worker, stage.weights, here, self.now_ns)

    def holds(self, ident: int, stage: StageSpec) -> bool:
        return stage.weights in self.cluster.workers[ident].resident

    def run(self, ident: int, stage: StageSpec, config: Config, expected_ns: int, priority: int = 1) -> Batch:
        item = self.item(stage, priority)
        worker = self.cluster.workers[ident]
        fetches = worker.swaps and bool(stage.weights_bytes) and stage.weights not in worker.resident
        queue = self.cluster.queues[stage.name]
        batch = Batch(self.last, queue, worker, config, [item], self.now_ns, expected_ns, fetches)
        self.cluster.batches[batch.id] = batch
        worker.enter(batch)
        self.own.started(batch, self.now_ns)
        return batch

    def end(self, batch: Batch, *, done: bool = True) -> None:
        del self.cluster.batches[batch.id]
        batch.worker.leave(batch, self.now_ns)
        self.own.ended(batch, self.now_ns, done)

    def lose(self, ident: int) -> None:
        worker = self.cluster.workers.pop(ident)
        self.own.lost(worker)
        for name, holders in self.cluster.holders.items():
            if ident in holders:
                self.cluster.let_go(name, ident)

    def spot(self, stage: StageSpec, config: Config, priority: int = 1) -> Spot | None:
        queue: Queue = self.cluster.queues[stage.name]
        ready = self.own.ready(stage, config, self.now_ns)
        return ready or self.own.spot(queue, self.item(stage, priority), config, self.now_ns)

    def chosen(self, stage: StageSpec, config: Config) -> int | None:
        """Who could start it now."""
        spot = self.spot(stage, config)
        return None if spot is None or spot.start_ns > self.now_ns else spot.worker.id

    def hints(self) -> Sequence[Hint]:
        return self.own.hints(self.item(READ).request, self.now_ns)
