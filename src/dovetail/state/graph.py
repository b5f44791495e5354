"""Graphs prepared for the controller: every look-up that would be repeated per request is done once, here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..workflow.graph import Graph, Node, StageSpec
from .queue import Queue

__all__ = ["CompiledGraph", "CompiledNode", "compile_graphs"]


class CompiledNode:
    """A node with its queue and its followers."""

    __slots__ = (
        "counted", "each_next", "each_sources", "index", "mapped", "models_next", "node", "plain", "queue", "stage",
        "whole_next",
    )  # fmt: skip

    def __init__(self, index: int, node: Node, stage: StageSpec, queue: Queue) -> None:
        self.index = index
        self.node = node
        self.stage = stage
        self.queue = queue
        #: Neither mapped nor conditional: one item, no counts.
        self.plain = not node.mapped and node.when is None
        self.mapped = node.mapped
        #: Nodes that wait for the whole of this one.
        self.whole_next: tuple[int, ...] = ()
        #: Mapped nodes whose element i waits for element i of this one.
        self.each_next: tuple[int, ...] = ()
        #: Those of both that are models: what comes after a Python stage is too far away to be waited for.
        self.models_next: tuple[int, ...] = ()
        #: How many element-wise sources it has.
        self.each_sources = sum(s.each for s in node.args)
        #: Outputs whose count a worker reports with each item.
        self.counted: tuple[int, ...] = ()


class CompiledGraph:
    """A graph as the controller walks it."""

    __slots__ = ("entries", "graph", "index", "input_counted", "missing", "name", "nodes", "slo_ns")

    def __init__(self, index: int, graph: Graph, queue_of: Callable[[int, int], Queue]) -> None:
        self.index = index
        self.graph = graph
        self.name = graph.name
        self.slo_ns = graph.slo_ns
        self.nodes = [
            CompiledNode(i, node, graph.stage_of(i), queue_of(index, i)) for i, node in enumerate(graph.nodes)
        ]
        self.input_counted = graph.counted_inputs()
        self.missing = [len({s.node for s in n.sources() if s.node >= 0 and not s.each}) for n in graph.nodes]
        for compiled in self.nodes:
            i = compiled.index
            compiled.counted = graph.counted(i)
            compiled.whole_next = tuple(
                j for j, n in enumerate(graph.nodes) if any(s.node == i and not s.each for s in n.sources())
            )
            compiled.each_next = tuple(j for j, n in enumerate(graph.nodes) for s in n.args if s.node == i and s.each)
            followers = compiled.each_next if compiled.node.mapped else (*compiled.whole_next, *compiled.each_next)
            compiled.models_next = tuple(j for j in followers if not graph.stage_of(j).on_host)
        #: Nodes that can open when the request arrives.
        self.entries = tuple(
            c for c, missing in zip(self.nodes, self.missing, strict=True) if not missing and not c.each_sources
        )


def compile_graphs(
    graphs: Sequence[Graph], queue_key: Callable[[Graph, Node], str]
) -> tuple[list[CompiledGraph], dict[str, Queue]]:
    """Prepare graphs; nodes of one stage for which `queue_key` gives the same key share a queue and its batches."""
    queues: dict[str, Queue] = {}

    def queue_of(graph: int, node: int) -> Queue:
        spec = graphs[graph].stage_of(node)
        key = queue_key(graphs[graph], graphs[graph].nodes[node])
        queue = queues.setdefault(key, Queue(key, spec))
        if queue.stage != spec:
            raise ValueError(f"queue {key!r} mixes the stages {queue.stage.name!r} and {spec.name!r}")
        return queue

    return [CompiledGraph(i, g, queue_of) for i, g in enumerate(graphs)], queues
