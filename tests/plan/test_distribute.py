"""Distribution of the objective: a worked example, and the laws for any graph."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.support import chain, dags, paths, series_parallels

from dovetail.errors import DeclarationError
from dovetail.plan.distribute import average_normalised_lengths, distribute
from dovetail.plan.series_parallel import decompose


def test_lengths_are_means_of_normalised_times():
    assert average_normalised_lengths([[1, 3], [3, 1], [4, 4]]) == pytest.approx([0.25, 0.25, 0.5])
    with pytest.raises(DeclarationError, match="same configurations"):
        average_normalised_lengths([[1, 2], [1]])


def test_a_chain_is_cut_into_groups():
    shares = distribute(decompose(chain(5)), [1, 1, 2, 2, 2], group_size=3)
    assert [s.group for s in shares] == [(0, 1, 2)] * 3 + [(3, 4)] * 2
    assert [s.deadline * 800 for s in shares] == [100, 200, 400, 600, 800]
    assert [s.group_deadline * 800 for s in shares] == [400, 400, 400, 800, 800]
    assert [(s.deadline - s.begin) * 800 for s in shares] == [100, 100, 200, 200, 200]


def test_branches_of_a_fork_each_get_its_whole_window():
    # 0 -> (1 -> 2 | 3) -> 4: the fork is as long as its longer branch, 1 -> 2.
    shares = distribute(decompose([[1, 3], [2], [4], [4], []]), [2, 1, 3, 1, 2], group_size=3)
    assert [s.deadline * 800 for s in shares] == [200, 300, 600, 600, 800]
    assert [s.group for s in shares] == [(0,), (1, 2), (1, 2), (3,), (4,)]


def test_a_tangle_is_as_long_as_its_longest_path_and_shares_out_slack():
    # 0 -> 2, 0 -> 3, 1 -> 3 with lengths 3, 1, 1, 1: the longest path is 4; 1 -> 3 has slack.
    shares = distribute(decompose([[2, 3], [3], [], []]), [3, 1, 1, 1], group_size=3)
    assert [s.deadline * 400 for s in shares] == [300, 200, 400, 400]
    assert all(s.group == (node,) for node, s in enumerate(shares))


def test_nonsense_is_refused():
    with pytest.raises(DeclarationError, match="at least one stage"):
        distribute(decompose(chain(2)), [1, 1], group_size=0)
    with pytest.raises(DeclarationError, match="negative"):
        distribute(decompose(chain(2)), [1, -1], group_size=3)


@given(
    st.one_of(dags(), series_parallels()),
    st.lists(st.floats(0.001, 1000), min_size=10, max_size=10),
    st.integers(1, 4),
)
def test_laws_of_any_graph(successors, lengths, group_size):
    count = len(successors)
    shares = distribute(decompose(successors), lengths[:count], group_size)
    deadlines, budgets = [s.deadline for s in shares], [s.deadline - s.begin for s in shares]

    assert all(deadline <= 1 for deadline in deadlines)
    for node, row in enumerate(successors):
        assert all(deadlines[node] <= deadlines[f] for f in row)
    for path in paths(successors):
        assert sum(budgets[node] for node in path) <= 1
    assert all(budget >= 0 for budget in budgets)

    exits = [deadlines[n] for n, row in enumerate(successors) if not row]
    assert max(exits) == 1, "the whole objective is given out"

    for node, share in enumerate(shares):
        assert node in share.group
        assert len(share.group) <= group_size
        assert all(shares[other].group == share.group for other in share.group), "in one group only"
        assert share.group_deadline == max(shares[other].deadline for other in share.group)
        assert all(shares[a].deadline == shares[b].begin for a, b in pairwise(share.group)), "a chain"
