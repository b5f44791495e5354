"""Dominators against their definition: u dominates v if without u there is no way to v."""

import pytest
from hypothesis import given
from tests.plan.support import dags, predecessors_of

from dovetail.errors import DeclarationError
from dovetail.plan.dominators import (
    SOURCE,
    immediate_dominators,
    immediate_post_dominators,
    necessary_nodes,
    successors_of,
)
from dovetail.workflow.graph import StageSpec
from dovetail.workflow.graph import chain as workflow


def test_a_diamond_with_a_tail():
    successors = [[1, 2], [3], [3], [4], []]
    assert immediate_dominators(successors) == [SOURCE, 0, 0, 0, 3, 4]
    assert immediate_post_dominators(successors) == [3, 3, 3, 4, 5, 0]
    assert necessary_nodes(successors) == [0, 3, 4]


def test_two_entries_and_two_exits_meet_only_outside():
    assert immediate_dominators([[2], [2, 3], [], []]) == [SOURCE, SOURCE, SOURCE, 1, SOURCE]
    assert necessary_nodes([[2], [2, 3], [], []]) == []


def test_an_edge_backwards_is_refused():
    with pytest.raises(DeclarationError, match="1 -> 0"):
        immediate_dominators([[1], [0]])


def test_the_successors_of_a_workflow():
    stages = [StageSpec(name, "model") for name in "abcd"]
    graph = workflow("w", 1, stages, {"b": ["a"], "c": ["a"], "d": ["b", "c", "a"]})
    assert [[graph.nodes[f].name for f in row] for row in successors_of(graph)] == [["b", "c", "d"], ["d"], ["d"], []]


@given(dags())
def test_dominators_are_what_cannot_be_avoided(successors):
    count = len(successors)

    def reached(without: int | None, edges: list[list[int]], starts: list[int]) -> set[int]:
        seen: set[int] = set()
        stack = [s for s in starts if s != without]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += [f for f in edges[node] if f != without]
        return seen

    before = predecessors_of(successors)
    entries = [n for n in range(count) if not before[n]]
    exits = [n for n in range(count) if not successors[n]]
    dominator, post = immediate_dominators(successors), immediate_post_dominators(successors)
    for node in range(count):
        strict = [u for u in range(count) if u != node and node not in reached(u, successors, entries)]
        assert dominator[node] == max(strict, default=SOURCE)
        strict = [u for u in range(count) if u != node and node not in reached(u, before, exits)]
        assert post[node] == min(strict, default=count)
    unavoidable = [u for u in range(count) if not set(exits) & reached(u, successors, entries)]
    assert necessary_nodes(successors) == unavoidable
