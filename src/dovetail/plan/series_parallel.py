"""A workflow as parts one after the other and side by side: the shape both planners work on.

    Series    parts one after the other
    Leaf      one node
    Parallel  branches side by side, each a Series; all begin together and the next part waits for all
    Tangle    nodes whose order is neither (the smallest: a -> c, a -> d, b -> d)

Rules of this file
- Only who waits for whom matters. An edge that skips over others (a -> b -> c and a -> c) adds no waiting, because
  c waits for b and b for a; such edges are removed first (transitive reduction).
- The reduction goes from the outside in, which finds the same regions as collapsing fork...join regions from the
  inside out [I: A.5 of our notes on ESG gives the latter]. In a connected region, first the nodes that every way
  passes cut it (dominators); between two of them lies a fork...join region, whose connected components are its
  branches. If no single node is passed, a barrier may be: all of some nodes before all of the others, as in {a, b}
  -> {c, d}.
- With those three steps Leaf, Series and Parallel alone result exactly if the order is series-parallel, that is,
  has no "N" inside (Valdes, Tarjan and Lawler, 1982). What contains an N and cannot be cut becomes a Tangle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ..errors import DeclarationError
from .dominators import necessary_nodes

__all__ = ["Leaf", "Parallel", "Part", "Series", "Tangle", "decompose", "layered", "path_count"]


class Leaf(msgspec.Struct, frozen=True):
    """One node."""

    node: int


class Parallel(msgspec.Struct, frozen=True):
    """Branches side by side."""

    branches: tuple[Series, ...]


class Tangle(msgspec.Struct, frozen=True):
    """Nodes that cannot be reduced, ascending, and the (reduced) edges between them."""

    nodes: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]

    def layers(self) -> list[list[int]]:
        """Nodes by the number of nodes on the longest way to them; every edge leads to a later layer."""
        depth = dict.fromkeys(self.nodes, 0)
        for before, after in sorted(self.edges):
            depth[after] = max(depth[after], depth[before] + 1)
        return [[n for n in self.nodes if depth[n] == level] for level in range(max(depth.values()) + 1)]


Part = Leaf | Parallel | Tangle


class Series(msgspec.Struct, frozen=True):
    """Parts one after the other; never empty, and no part is itself a series."""

    parts: tuple[Part, ...]

    def nodes(self) -> Iterator[int]:
        """Every node inside, each once."""
        for part in self.parts:
            if isinstance(part, Leaf):
                yield part.node
            elif isinstance(part, Tangle):
                yield from part.nodes
            else:
                for branch in part.branches:
                    yield from branch.nodes()


def decompose(successors: Sequence[Sequence[int]]) -> Series:
    """The shape of a graph given by the successors of each node, nodes in topological order."""
    if not successors:
        raise DeclarationError("a workflow without nodes has no shape; give it at least one stage")
    #: Bit j of after[i]: node j comes after node i.
    after = [0] * len(successors)
    kept: list[list[int]] = [[] for _ in successors]
    for node in range(len(successors) - 1, -1, -1):
        for follower in sorted(set(successors[node])):  # nearest first: a skipped-over edge is met last
            if follower <= node or follower >= len(successors):
                raise DeclarationError(f"edge {node} -> {follower} breaks the topological order of the nodes")
            if not after[node] >> follower & 1:
                kept[node].append(follower)
                after[node] |= after[follower] | 1 << follower
    return Series(tuple(_parts(list(range(len(successors))), kept, after)))


def _parts(members: list[int], kept: Sequence[Sequence[int]], after: Sequence[int]) -> Iterator[Part]:
    """The parts of the region made of `members` (ascending)."""
    if len(members) == 1:
        yield Leaf(members[0])
        return
    components = _components(members, kept)
    if len(components) > 1:
        yield Parallel(tuple(Series(tuple(_parts(c, kept, after))) for c in components))
        return
    local = {node: i for i, node in enumerate(members)}
    inner = [[local[f] for f in kept[node] if f in local] for node in members]
    rest = members
    for cut in (members[i] for i in necessary_nodes(inner)):
        before = [n for n in rest if n != cut and after[n] >> cut & 1]
        rest = [n for n in rest if after[cut] >> n & 1]
        if before:
            yield from _parts(before, kept, after)
        yield Leaf(cut)
    if len(rest) < len(members):
        if rest:
            yield from _parts(rest, kept, after)
        return
    barrier = _barrier(members, after)
    if barrier:
        yield from _parts(members[:barrier], kept, after)
        yield from _parts(members[barrier:], kept, after)
        return
    yield Tangle(tuple(members), tuple((members[i], members[j]) for i, row in enumerate(inner) for j in row))


def _components(members: Sequence[int], kept: Sequence[Sequence[int]]) -> list[list[int]]:
    """Members by connected component (edges taken both ways), in order of their first node."""
    root = {node: node for node in members}

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = node = root[root[node]]
        return node

    for node in members:
        for follower in kept[node]:
            if follower in root:
                a, b = find(node), find(follower)
                root[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = {}
    for node in members:
        groups.setdefault(find(node), []).append(node)
    return list(groups.values())


def _barrier(members: Sequence[int], after: Sequence[int]) -> int:
    """How many of the first members all come before all of the others; 0 if there is no such place."""
    later = sum(1 << node for node in members)
    common = later
    for place, node in enumerate(members[:-1], start=1):
        later &= ~(1 << node)
        common &= after[node]
        if common & later == later:
            return place
    return 0


def layered(series: Series) -> Series:
    """The same without tangles: each becomes its layers, and a layer waits for the whole layer before it.

    That only adds waiting, so a plan that is in time here is in time in truth; its cost is the same.
    """
    parts: list[Part] = []
    for part in series.parts:
        if isinstance(part, Leaf):
            parts.append(part)
        elif isinstance(part, Parallel):
            parts.append(Parallel(tuple(layered(branch) for branch in part.branches)))
        else:
            for layer in part.layers():
                leaves = [Leaf(node) for node in layer]
                parts.append(leaves[0] if len(leaves) == 1 else Parallel(tuple(Series((leaf,)) for leaf in leaves)))
    return Series(tuple(parts))


def path_count(series: Series) -> int:
    """Number of ways from the first part to the last; tangles are counted by their layers."""
    count = 1
    for part in layered(series).parts:
        if isinstance(part, Parallel):
            count *= sum(path_count(branch) for branch in part.branches)
    return count
