"""How much of a workflow's objective each of its nodes may use, and which stages are searched together.

This is dominator-based distribution in the way of ESG. Its outline is second hand [B], the formula of the length is
a recollection [M], the concrete algorithm is ours [I]: section A.5 of our notes; nothing of it is verified against
the paper.

Rules of this file
- Deadlines are exact fractions of the objective, counted from arrival: time that was saved or lost earlier is
  carried forward by itself.
- A series splits its window in proportion to the lengths of its parts. Branches of a fork each get the whole window
  of the fork, and are split in the same way inside.
- A tangle is one part as long as its longest path. Inside, a node's deadline is the fraction of the longest path
  *through that node* that is over when it ends, so nodes off the longest path get their slack, too.
- A group is what is searched jointly: at most `group_size` leaves that follow each other directly. A fork ends a
  group.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import msgspec

from ..errors import DeclarationError
from .series_parallel import Leaf, Parallel, Part, Series, Tangle

__all__ = ["NodeShare", "average_normalised_lengths", "distribute"]

#: A node of no length counts as this part of the longest, so that no window is empty.
_LEAST = 2.0**-32


class NodeShare(msgspec.Struct, frozen=True):
    """A node's window, as fractions of the objective after arrival, and the group it is searched with."""

    begin: Fraction
    deadline: Fraction
    #: Nodes of the group in the order in which they run.
    group: tuple[int, ...]
    #: Deadline of the group's last node: what a search for this node has left is this minus now.
    group_deadline: Fraction


def average_normalised_lengths(times_ns: Sequence[Sequence[int]]) -> list[float]:
    """Per node the mean over configurations of its part of all nodes' time in that configuration (ANL).

    `times_ns[node][c]` is the node's time in configuration c, the same configurations for all nodes.
    """
    configurations = len(times_ns[0]) if times_ns else 0
    if not configurations or any(len(row) != configurations for row in times_ns):
        raise DeclarationError(
            "lengths compare nodes in the same configurations: give each node a time for each of them"
        )
    lengths = [0.0] * len(times_ns)
    for column in zip(*times_ns, strict=True):
        total = sum(column)
        for node, time_ns in enumerate(column):
            lengths[node] += time_ns / total / configurations
    return lengths


def distribute(shape: Series, lengths: Sequence[float], group_size: int) -> tuple[NodeShare, ...]:
    """Node by node its share of an objective, by the workflow's shape and any measure of how long each node is."""
    if group_size < 1:
        raise DeclarationError(f"a group has at least one stage, not {group_size}")
    top = max(lengths)
    if min(lengths) < 0 or top <= 0:
        raise DeclarationError("lengths cannot be negative, and one at least must be above nought")
    weights = [Fraction(max(length, top * _LEAST)) for length in lengths]
    shares: dict[int, NodeShare] = {}
    _split(shape, Fraction(0), Fraction(1), weights, group_size, shares)
    return tuple(shares[node] for node in range(len(lengths)))


def _split(
    series: Series,
    begin: Fraction,
    window: Fraction,
    weights: Sequence[Fraction],
    group_size: int,
    shares: dict[int, NodeShare],
) -> None:
    """Give each part of the series its stretch of the window [begin, begin + window]."""
    total = _length(series, weights)
    run: list[tuple[int, Fraction, Fraction]] = []

    def close_group() -> None:
        group = tuple(node for node, _, _ in run)
        for node, node_begin, node_end in run:
            shares[node] = NodeShare(node_begin, node_end, group, run[-1][2])
        run.clear()

    done = Fraction(0)
    for part in series.parts:
        part_begin = begin + window * done / total
        done += _part_length(part, weights)
        part_end = begin + window * done / total
        if isinstance(part, Leaf):
            run.append((part.node, part_begin, part_end))
            if len(run) == group_size:
                close_group()
            continue
        close_group()
        if isinstance(part, Parallel):
            for branch in part.branches:
                _split(branch, part_begin, part_end - part_begin, weights, group_size, shares)
        else:
            _split_tangle(part, part_begin, part_end - part_begin, weights, shares)
    close_group()


def _split_tangle(
    tangle: Tangle, begin: Fraction, window: Fraction, weights: Sequence[Fraction], shares: dict[int, NodeShare]
) -> None:
    """Each node alone; its deadline is how much of the longest path through it is over.

    Deadlines do not fall along an edge u -> v: head(v) >= head(u) + weight(v) and tail(u) >= weight(u) + tail(v), and
    head / (head + what is left) grows with its first and falls with its second.
    """
    head = {node: weights[node] for node in tangle.nodes}  # longest path that ends with the node
    left = dict.fromkeys(tangle.nodes, Fraction(0))  # longest path after the node
    for before, after in sorted(tangle.edges):
        head[after] = max(head[after], head[before] + weights[after])
    for before, after in sorted(tangle.edges, reverse=True):
        left[before] = max(left[before], weights[after] + left[after])
    ends = {node: begin + window * head[node] / (head[node] + left[node]) for node in tangle.nodes}
    for node in tangle.nodes:
        node_begin = max((ends[before] for before, after in tangle.edges if after == node), default=begin)
        shares[node] = NodeShare(node_begin, ends[node], (node,), ends[node])


def _length(series: Series, weights: Sequence[Fraction]) -> Fraction:
    """Length of the longest path."""
    return sum((_part_length(part, weights) for part in series.parts), Fraction(0))


def _part_length(part: Part, weights: Sequence[Fraction]) -> Fraction:
    if isinstance(part, Leaf):
        return weights[part.node]
    if isinstance(part, Parallel):
        return max(_length(branch, weights) for branch in part.branches)
    reached = {node: weights[node] for node in part.nodes}
    for before, after in sorted(part.edges):
        reached[after] = max(reached[after], reached[before] + weights[after])
    return max(reached.values())
