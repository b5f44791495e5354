"""The shape of a graph: known ones, and laws that hold for any."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.support import chain, dags, finish, paths, predecessors_of, series_parallels

from dovetail.errors import DeclarationError
from dovetail.plan.series_parallel import Leaf, Parallel, Series, Tangle, decompose, layered, path_count


def line(*parts: object) -> Series:
    return Series(tuple(Leaf(p) if isinstance(p, int) else p for p in parts))  # type: ignore[misc]


def fork(*branches: Series | int) -> Parallel:
    return Parallel(tuple(line(b) if isinstance(b, int) else b for b in branches))


@pytest.mark.parametrize(
    ("successors", "shape"),
    [
        (chain(3), line(0, 1, 2)),
        ([[1, 2], [2], []], line(0, 1, 2)),  # 0 -> 2 skips over 1 and adds no waiting
        ([[1, 2], [3], [3], []], line(0, fork(1, 2), 3)),
        ([[1, 2], [3], [3, 4], [4], []], line(0, fork(1, 2), 3, 4)),
        ([[1, 2], [], []], line(0, fork(1, 2))),  # two exits
        ([[1, 2], [], [3], []], line(0, fork(1, line(2, 3)))),  # one early exit
        ([[2], [2], []], line(fork(0, 1), 2)),  # two entries
        ([[], []], line(fork(0, 1))),
        ([[1, 4], [2, 3], [5], [5], [5], []], line(0, fork(line(1, fork(2, 3)), 4), 5)),  # nested
        ([[2, 3], [2, 3], [], []], line(fork(0, 1), fork(2, 3))),  # a barrier without a node
        ([[2, 3], [3], [], []], line(Tangle((0, 1, 2, 3), ((0, 2), (0, 3), (1, 3))))),  # the N
        ([[1, 2], [3, 4], [4], [5], [5], []], line(0, Tangle((1, 2, 3, 4), ((1, 3), (1, 4), (2, 4))), 5)),
    ],
)
def test_known_shapes(successors, shape):
    assert decompose(successors) == shape


def test_an_edge_backwards_and_an_empty_graph_are_refused():
    with pytest.raises(DeclarationError, match="1 -> 0"):
        decompose([[], [0]])
    with pytest.raises(DeclarationError, match="at least one stage"):
        decompose([])


def has_tangle(series: Series) -> bool:
    return any(
        isinstance(p, Tangle) or (isinstance(p, Parallel) and any(has_tangle(b) for b in p.branches))
        for p in series.parts
    )


def length(series: Series, times: list[int]) -> int:
    total = 0
    for part in series.parts:
        if isinstance(part, Leaf):
            total += times[part.node]
        else:
            assert isinstance(part, Parallel)
            total += max(length(b, times) for b in part.branches)
    return total


@given(series_parallels(), st.data())
def test_what_is_series_parallel_has_no_tangle_and_takes_as_long(successors, data):
    shape = decompose(successors)
    assert not has_tangle(shape)
    times = data.draw(st.lists(st.integers(0, 9), min_size=len(successors), max_size=len(successors)))
    assert length(shape, times) == finish(successors, np_row(times))[0]


@given(dags(), st.data())
def test_any_graph_has_each_node_once_and_layers_only_add_waiting(successors, data):
    shape = decompose(successors)
    assert sorted(shape.nodes()) == list(range(len(successors)))
    times = data.draw(st.lists(st.integers(0, 9), min_size=len(successors), max_size=len(successors)))
    assert not has_tangle(layered(shape))
    assert length(layered(shape), times) >= finish(successors, np_row(times))[0]


@given(dags())
def test_no_waiting_is_lost(successors):
    """Whoever waits for another still does in the shape."""
    ends: dict[int, int] = {}
    begins: dict[int, int] = {}

    def walk(series: Series, now: int) -> int:
        for part in series.parts:
            if isinstance(part, Leaf):
                begins[part.node], ends[part.node] = now, now + 1
                now += 1
            else:
                assert isinstance(part, Parallel)
                now = max(walk(b, now) for b in part.branches)
        return now

    walk(layered(decompose(successors)), 0)
    for node, before in enumerate(predecessors_of(successors)):
        assert all(ends[b] <= begins[node] for b in before)


@given(series_parallels(7))
def test_paths_are_counted_without_those_that_skip(successors):
    reduced = [
        [f for f in row if not any(f in p[1:] and len(p) > 2 and p[0] == n for p in stretches(successors, n, f))]
        for n, row in enumerate(successors)
    ]
    assert path_count(decompose(successors)) == sum(1 for _ in paths(reduced))


def stretches(successors: list[list[int]], begin: int, end: int) -> list[list[int]]:
    """Every way from one node to another."""
    if begin == end:
        return [[end]]
    return [[begin, *way] for f in successors[begin] for way in stretches(successors, f, end)]


def np_row(times: list[int]) -> np.ndarray:
    return np.array([times])
