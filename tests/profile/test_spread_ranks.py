"""Quantiles of kernel times: the rank, the place inside a bucket, and how old observations fade."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dovetail.profile.kernels import KernelStats, Spread


def spread_of(*values: int) -> Spread:
    spread = Spread()
    for value in values:
        spread.add(value)
    return spread


@pytest.mark.parametrize(("q", "expected"), [(0.05, 1), (0.1, 2), (0.5, 10), (0.55, 11), (0.95, 19), (1.0, 20)])
def test_short_times_are_told_apart_and_the_rank_is_the_one_that_the_share_reaches(q: float, expected: int) -> None:
    # A bucket of one time reaches to the next, and all of it lies below its upper edge.
    assert spread_of(*range(1, 21)).quantile_ns(q) == expected + 1


def test_inside_a_bucket_the_place_is_that_of_the_rank() -> None:
    spread = spread_of(*[4096] * 4)
    edges = [spread.quantile_ns(q) for q in (0.25, 0.5, 0.75, 1.0)]
    assert edges[0] > 4096
    assert [b - a for a, b in pairwise(edges)] == [edges[0] - 4096] * 3


def test_of_no_times_it_is_nothing() -> None:
    assert Spread().quantile_ns(0.5) == 0


def test_a_duration_is_the_low_quantile_of_its_kernel_unless_another_is_asked_for() -> None:
    stats = KernelStats.empty("s", ["a", "b"], min_count=10)
    for ns in range(1, 11):
        stats.observe(1, ns)
    assert stats.duration_ns(0) is None, "never seen"
    assert stats.duration_ns(1, 0.5) == 6
    assert stats.duration_ns(1, 0.9) == 10
