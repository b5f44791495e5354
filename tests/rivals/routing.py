"""Routers with workers whose rows are written by hand, and workflows whose times are round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dovetail.lab.rivals.routed import PlannedRouter
from dovetail.place.transfer import Delays
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.state import CompiledGraph, Item, Request, Worker, WorkerRow, WorkerSpec, compile_graphs
from dovetail.units import MS
from dovetail.workflow.graph import Graph, StageSpec, chain

KB = 1024
MEMORY_BYTES = 14_000_000 * KB
SPEC = WorkerSpec("gpu", "t4", ("model",), memory_bytes=MEMORY_BYTES)


def weights_for(fetch_ms: float) -> int:
    """Bytes that take so long from host to device at 9.7 GB/s (the simulator's links, without a fixed part)."""
    return round(fetch_ms * 9.7 * 1048.58 * KB)


def stage(name: str, fetch_ms: float = 0.0, model: str = "") -> StageSpec:
    return StageSpec(name, "model", model=model or name, weights_bytes=weights_for(fetch_ms))


def compiled(graph: Graph) -> CompiledGraph:
    return compile_graphs([graph], lambda _graph, node: node.stage)[0][0]


def workflow(stages: Sequence[StageSpec], after: Mapping[str, Sequence[str]] | None = None) -> CompiledGraph:
    return compiled(chain("flow", 1, stages, after))


def predictor(times_ms: Mapping[str, float], delays: Delays | None = None) -> Estimator:
    entries = (Entry(n, "t4", points=(Point(1, 1, round(ms * MS), 0.0, 1),)) for n, ms in times_ms.items())
    return Estimator(ProfileTable(entries), load_ns=(delays or Delays()).load_ns)


def join(router: PlannedRouter, *idents: int, spec: WorkerSpec = SPEC) -> list[Worker]:
    workers = [Worker(ident, spec) for ident in idents]
    for worker in workers:
        router.joined(worker)
    return workers


def row(
    worker: int, *, wait_ms: float = 0.0, has: Mapping[str, int] | None = None, memory_bytes: int = MEMORY_BYTES
) -> WorkerRow:
    """A worker with such a wait that holds such models."""
    held = has or {}
    wait_ns = round(wait_ms * MS)
    return WorkerRow(worker, 0, wait_ns, wait_ns, tuple(held), memory_bytes - sum(held.values()))


def request(graph: CompiledGraph, ident: int = 1) -> Request:
    return Request(ident, graph, 1, 0, 0, 0)


def item(of: Request, node: str, *, origin: int = 0, index: int = 0) -> Item:
    names = [n.name for n in of.graph.graph.nodes]
    return Item(of, names.index(node), index, 0, origin)


def planned(router: PlannedRouter, of: Request, now_ns: int = 0) -> dict[str, int]:
    """The plan by node name."""
    router.hints(of, now_ns)
    names = [n.name for n in of.graph.graph.nodes]
    return {names[node]: worker for node, worker in router.plans[of.id].items()}


def other(spec: WorkerSpec, **changes: object) -> WorkerSpec:
    return msgspec.structs.replace(spec, **changes)
