"""What a front knows beside its steps, for those who watch: taken from the books, nothing is counted anew."""

from __future__ import annotations

from collections.abc import Sequence

from .. import __version__
from ..live.front.system import LiveSystem
from ..record.follow import Present
from ..record.sight import Banner, Evicted, MemoryNow, Node, Sample, StageInfo, Totals, Workflow
from ..units import MS
from ..workflow.graph import Graph

__all__ = ["banner_of", "present_of", "sample_of", "totals_of"]


def banner_of(graphs: Sequence[Graph], policy: str, device: str, started_unix_ns: int) -> Banner:
    """What does not change."""
    stages = {stage.name: stage for graph in graphs for stage in graph.stages}
    return Banner(
        dovetail=__version__,
        policy=policy,
        device=device,
        started_unix_ms=started_unix_ns // MS,
        workflows=tuple(_workflow(graph) for graph in graphs),
        stages=tuple(StageInfo(s.name, s.kind, s.batch, s.weights, s.weights_bytes) for s in stages.values()),
    )


def _workflow(graph: Graph) -> Workflow:
    return Workflow(
        name=graph.name,
        objective_ms=graph.slo_ns / MS,
        priority=graph.priority,
        inputs=tuple(port.name for port in graph.inputs),
        outputs=tuple(port.name for port in graph.outputs),
        nodes=tuple(
            Node(
                node.name,
                node.stage,
                tuple(dict.fromkeys(source.node for source in node.sources())),
                node.mapped,
                node.when is not None,
            )
            for node in graph.nodes
        ),
        results=tuple(dict.fromkeys(source.node for source in graph.results)),
    )


def totals_of(system: LiveSystem) -> tuple[Totals, ...]:
    """Requests that have ended, by workflow and class."""
    return tuple(
        Totals(*key, *row.outcomes.values())  # in the order of `OUTCOMES`
        for key, row in sorted(system.ledger.rows.items())
    )


def present_of(system: LiveSystem) -> Present:
    """What there is now, for who begins to follow."""
    controller = system.controller
    index = {id(graph): number for number, graph in enumerate(controller.graphs)}
    workers = {ident: worker.spec for ident, worker in controller.workers.items()}
    return Present(
        now_ns=system.now_ns(),
        number=controller.step_number,
        workers=workers,
        names={ident: spec.name for ident, spec in workers.items()},
        holders={stage: list(holders) for stage, holders in controller.holders.items()},
        ordered={ident for ident, worker in controller.workers.items() if not worker.swaps},
        open={ident: index[id(request.graph)] for ident, request in controller.requests.items()},
    )


def sample_of(system: LiveSystem) -> Sample:
    """The books at this moment."""
    controller, memory = system.controller, system.memory
    depth: dict[str, int] = {}
    for queue in controller.queues.values():
        depth[queue.stage.name] = depth.get(queue.stage.name, 0) + queue.size
    keys = ("held_bytes", "usable_bytes", "hits", "misses", "loads", "evictions")
    arenas = [memory.arenas[ident].size for ident in memory.used_bytes if ident in memory.arenas]
    return Sample(
        now_ns=system.now_ns(),
        totals=totals_of(system),
        depth=depth,
        open=len(controller.requests),
        draining=controller.draining,
        resident={ident: dict(worker.resident) for ident, worker in controller.workers.items()},
        loading={ident: list(worker.loading) for ident, worker in controller.workers.items()},
        memory={name: MemoryNow(*(told[key] for key in keys)) for name, told in system.statistics.memory().items()},
        evictions=tuple(
            Evicted(at_ns / MS, worker, told.weights, told.nbytes, told.reason)
            for at_ns, worker, told in system.statistics.evictions
        ),
        arena_used_bytes=memory.front.used_bytes + sum(memory.used_bytes.values()),
        arena_bytes=memory.front.size + sum(arenas),
    )
