"""Upward rank: how much of a workflow still lies ahead of a node, itself included.

    rank(t) = run(t) + max over followers s of (move(t) + rank(s)),   rank(exit) = run(exit)

HEFT's order (Topcuoglu et al. 2002): who has the longest way ahead is placed first. Compass's simulator ranks so; our
own router does as well. Whoever comes before a node has at least its rank, and ties keep the graph's own order, so
ranks sorted downwards are a topological order even where run times are nought.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..workflow.graph import Graph

__all__ = ["followers_of", "rank_order", "sources_of", "upward_ranks"]


def sources_of(graph: Graph) -> list[tuple[int, ...]]:
    """Per node, the nodes whose results it waits for, each once, ascending."""
    return [tuple(sorted({s.node for s in node.sources() if s.node >= 0})) for node in graph.nodes]


def followers_of(graph: Graph) -> list[tuple[int, ...]]:
    """Per node, the nodes that wait for its result, ascending."""
    followers: list[list[int]] = [[] for _ in graph.nodes]
    for index, sources in enumerate(sources_of(graph)):
        for source in sources:
            followers[source].append(index)
    return [tuple(row) for row in followers]


def upward_ranks(graph: Graph, run_ns: Sequence[int], move_ns: Sequence[int]) -> list[int]:
    """Each node's rank from its run time and the time its result takes to another worker.

    A mapped node counts as one of its items: how many there will be is not known when ranks are needed.
    """
    followers = followers_of(graph)
    ranks = [0] * len(graph.nodes)
    for index in range(len(ranks) - 1, -1, -1):
        ahead = max((move_ns[index] + ranks[s] for s in followers[index]), default=0)
        ranks[index] = run_ns[index] + ahead
    return ranks


def rank_order(ranks: Sequence[int]) -> list[int]:
    """Nodes by falling rank; among equals in the graph's own order, which is topological."""
    return sorted(range(len(ranks)), key=lambda index: -ranks[index])
