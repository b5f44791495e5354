"""What is worked out once per workflow to place its nodes: order, ways between nodes, what is left behind each node.

Rules of this file: run and load times are those of the first kind of worker that could run a stage, since ranks and
rests only order things; how long a stage runs on a given worker is asked for when it is placed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ..state import CompiledGraph
from ..workflow.graph import StageSpec
from .rank import rank_order, sources_of, upward_ranks
from .transfer import Delays

__all__ = ["NodeOutline", "Outline", "outline"]


class NodeOutline(msgspec.Struct, frozen=True):
    """One node as it is placed."""

    node: int
    stage: StageSpec
    #: Nodes whose results it waits for, each with the time that the result takes to another worker.
    sources: tuple[tuple[int, int], ...]
    #: Time that its inputs take to a worker that has none of them: for an entry, the request's own.
    inputs_ns: int
    #: Its model, empty if it has none that takes room; and how long that takes to fetch.
    weights: str
    weights_bytes: int
    fetch_ns: int
    run_ns: int
    #: The longest way from its start to the end of the workflow.
    path_ns: int


class Outline(msgspec.Struct, frozen=True):
    """A workflow as it is placed."""

    tasks: tuple[NodeOutline, ...]
    #: Nodes by falling upward rank.
    order: tuple[int, ...]


def outline(
    graph: CompiledGraph,
    run_ns: Callable[[StageSpec], int],
    load_ns: Callable[[StageSpec], int],
    delays: Delays,
    in_bytes: Mapping[tuple[str, str], int],
) -> Outline:
    """Work it out."""
    nodes = graph.graph.nodes
    sources = sources_of(graph.graph)
    runs = [run_ns(n.stage) for n in graph.nodes]
    moves = [delays.result_ns(n.out_bytes) for n in nodes]
    ranks = upward_ranks(graph.graph, runs, moves)
    tasks = []
    for index, compiled in enumerate(graph.nodes):
        node, stage = nodes[index], compiled.stage
        size = stage.weights_bytes
        entry_ns = delays.message_ns(in_bytes.get((graph.name, node.name), node.out_bytes))
        tasks.append(
            NodeOutline(
                index,
                stage,
                tuple((s, moves[s]) for s in sources[index]),
                max((moves[s] for s in sources[index]), default=entry_ns),
                stage.weights if size else "",
                size,
                load_ns(stage),
                runs[index],
                ranks[index],
            )
        )
    return Outline(tuple(tasks), tuple(rank_order(ranks)))
