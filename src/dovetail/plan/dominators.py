"""Who must be passed on the way to whom: immediate dominators and post-dominators of a workflow.

Rules of this file
- Nodes are numbered in topological order, as `workflow.graph.Graph` keeps them; an edge goes from a smaller number
  to a larger one.
- Several entries and several exits are ordinary: a virtual source stands before all entries (number `SOURCE`) and a
  virtual sink after all exits (number n of a graph of n nodes), so every node has one dominator and one
  post-dominator.

The algorithm is Cooper, Harvey and Kennedy's ("A Simple, Fast Dominance Algorithm", 2001): the immediate dominator
of a node is where its predecessors' dominator chains meet. They iterate to a fixed point because of loops; a
workflow has none, so one pass in topological order is the fixed point. O(edges × depth of the dominator tree).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import DeclarationError
from ..workflow.graph import Graph

__all__ = ["SOURCE", "immediate_dominators", "immediate_post_dominators", "necessary_nodes", "successors_of"]

#: The virtual node before every entry.
SOURCE = -1


def successors_of(graph: Graph) -> list[list[int]]:
    """Who waits for each node, ascending and without repetition; conditions are edges as arguments are."""
    successors: list[list[int]] = [[] for _ in graph.nodes]
    for index, node in enumerate(graph.nodes):
        for source in sorted({s.node for s in node.sources() if s.node >= 0}):
            successors[source].append(index)
    return successors


def immediate_dominators(successors: Sequence[Sequence[int]]) -> list[int]:
    """For each node, and last for the virtual sink, the nearest node that every way from the source passes."""
    count = len(successors)
    predecessors: list[list[int]] = [[] for _ in range(count + 1)]
    for node, followers in enumerate(successors):
        for follower in followers or (count,):
            if not node < follower <= count:
                raise DeclarationError(f"edge {node} -> {follower} breaks the topological order of {count} nodes")
            predecessors[follower].append(node)
    dominator: list[int] = []
    for before in predecessors:
        meeting = before[0] if before else SOURCE
        for other in before[1:]:
            while meeting != other:  # the later of the two cannot dominate the earlier: step it back
                if meeting > other:
                    meeting = dominator[meeting]
                else:
                    other = dominator[other]
        dominator.append(meeting)
    return dominator


def immediate_post_dominators(successors: Sequence[Sequence[int]]) -> list[int]:
    """For each node, and last for the virtual source, the nearest node that every way to the sink passes.

    The join of a fork is its immediate post-dominator. A number of n is the virtual sink.
    """
    count = len(successors)
    mirrored: list[list[int]] = [[] for _ in range(count)]
    for node, followers in enumerate(successors):
        for follower in followers:
            mirrored[count - 1 - follower].append(count - 1 - node)
    dominator = immediate_dominators(mirrored)
    # The mirrored source, -1, turns into n, which is the sink's number; the mirrored sink is the source.
    return [count - 1 - dominator[count - 1 - node] for node in range(count)] + [count - 1 - dominator[count]]


def necessary_nodes(successors: Sequence[Sequence[int]]) -> list[int]:
    """The nodes that every way from source to sink passes, in order: the dominators of the sink."""
    dominator = immediate_dominators(successors)
    found: list[int] = []
    node = dominator[-1] if successors else SOURCE
    while node != SOURCE:
        found.append(node)
        node = dominator[node]
    return found[::-1]
