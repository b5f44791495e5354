"""Windows inside a tangle, against all its paths; and nodes of no length."""

from __future__ import annotations

import random
from fractions import Fraction

from tests.plan.support import chain, paths

from dovetail.plan.distribute import distribute
from dovetail.plan.series_parallel import Tangle, decompose


def tangles() -> list[list[list[int]]]:
    """Random graphs that are one tangle as a whole."""
    rng = random.Random(5)
    found = []
    for _ in range(600):
        count = rng.randint(4, 7)
        successors = [[j for j in range(i + 1, count) if rng.random() < 0.4] for i in range(count)]
        parts = decompose(successors).parts
        if len(parts) == 1 and isinstance(parts[0], Tangle):
            found.append(successors)
    return found


def test_in_a_tangle_a_nodes_deadline_is_what_is_over_of_the_longest_path_through_it() -> None:
    rng = random.Random(6)
    seen = tangles()
    assert len(seen) > 20
    for successors in seen:
        lengths = [rng.randint(1, 9) for _ in successors]
        shares = distribute(decompose(successors), lengths, 3)
        for node, share in enumerate(shares):
            through = [path for path in paths(successors) if node in path]
            head = max(sum(lengths[n] for n in path[: path.index(node) + 1]) for path in through)
            left = max(sum(lengths[n] for n in path[path.index(node) + 1 :]) for path in through)
            assert share.deadline == Fraction(head, head + left)
            before = [b for b, row in enumerate(successors) if node in row]
            assert share.begin == max((shares[b].deadline for b in before), default=0)


def test_a_tangle_of_several_steps_by_hand() -> None:
    # 0 -> 2 -> 4, 0 -> 3, 1 -> 3 -> 4, 1 -> 5: the longest path is 0 -> 3 -> 4 with 2 + 5 + 1.
    successors: list[list[int]] = [[2, 3], [3, 5], [4], [4], [], []]
    shares = distribute(decompose(successors), [2, 1, 3, 5, 1, 1], 3)
    assert [s.deadline for s in shares] == [
        Fraction(2, 8),
        Fraction(1, 7),
        Fraction(5, 6),
        Fraction(7, 8),
        1,
        1,
    ]


def test_a_node_of_no_length_has_a_window_that_is_next_to_nothing_but_not_empty() -> None:
    shares = distribute(decompose(chain(3)), [0, 1, 1], 3)
    first = shares[0]
    assert 0 < first.deadline - first.begin < Fraction(1, 10**9)
