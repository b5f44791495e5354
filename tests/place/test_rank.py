"""Upward ranks: worked out by hand, and in topological order whatever the times are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.place.rank import followers_of, rank_order, sources_of, upward_ranks
from dovetail.workflow.graph import Graph, StageSpec, chain


def diamond() -> Graph:
    specs = [StageSpec(name, "model") for name in "abcd"]
    return chain("diamond", 1, specs, {"b": ["a"], "c": ["a"], "d": ["b", "c"]})


def test_ranks_of_a_diamond_by_hand() -> None:
    ranks = upward_ranks(diamond(), [5, 10, 20, 1], [2, 3, 4, 7])
    # d: 1; c: 20 + 4 + 1; b: 10 + 3 + 1; a: 5 + 2 + 25
    assert ranks == [32, 14, 25, 1]
    assert rank_order(ranks) == [0, 2, 1, 3]


def test_sources_and_followers_of_a_diamond() -> None:
    assert sources_of(diamond()) == [(), (0,), (0,), (1, 2)]
    assert followers_of(diamond()) == [(1, 2), (3,), (3,), ()]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 8))
    names = [f"s{i}" for i in range(count)]
    after = {
        names[i]: [names[j] for j in sorted(draw(st.sets(st.integers(0, i - 1), max_size=3)))]
        for i in range(1, count)
    }
    return chain("any", 1, [StageSpec(name, "model") for name in names], after)


@given(graphs(), st.data())
def test_rank_order_is_a_topological_order_even_where_nothing_takes_time(graph: Graph, data: st.DataObject) -> None:
    times = st.lists(st.integers(0, 3), min_size=len(graph.nodes), max_size=len(graph.nodes))
    order = rank_order(upward_ranks(graph, data.draw(times), data.draw(times)))
    assert sorted(order) == list(range(len(graph.nodes)))
    place = {node: i for i, node in enumerate(order)}
    for node, sources in enumerate(sources_of(graph)):
        assert all(place[source] < place[node] for source in sources)
