"""Means that follow what was seen of late."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.predict.running import Mean, Rate, Seen


def test_means_follow_and_rates_need_a_few_arrivals() -> None:
    mean = Mean(window=2)
    for value in (10, 20, 20, 20, 20, 20, 20):
        mean.add(value)
    assert 18 <= mean.value <= 20
    rate = Rate()
    for at in range(0, 50, 10):
        assert rate.expected_ns(1) is None
        rate.arrived(at)
    assert rate.expected_ns(3) == 30
    assert rate.steady_interval_ns() == 10


def test_the_mean_of_what_was_seen_is_that_of_a_mean() -> None:
    mean, seen = Mean(8), Seen(8)
    for value in (5, 90, 41, 7, 7, 1000, 3, 3, 12, 77, 0, 15):
        mean.add(value)
        seen.add(value)
        assert seen.mean == mean.value
    assert seen.count == 12


@given(st.lists(st.integers(10**6, 10**12), min_size=1, max_size=40), st.integers(0, 40))
def test_many_at_once_are_the_same_as_one_by_one_while_nothing_fades(values: list[int], first: int) -> None:
    one, many = Seen(64), Seen(64)
    for value in values:
        one.add(value)
    many.add_many(values[:first])
    many.add_many(values[first:])
    assert many.count == one.count
    assert many.mean == pytest.approx(sum(values) / len(values), abs=len(values))
    assert many.spread() == pytest.approx(one.spread(), rel=1e-3)


def test_many_at_once_fade_what_was_before() -> None:
    seen = Seen(64)
    for value in (100, 300):
        for _ in range(20):
            seen.add_many([value - 10, value + 10] * 32)
    assert seen.mean == pytest.approx(300, abs=2)
    assert seen.spread() == pytest.approx(10 / 300, rel=0.1)


def test_squares_are_rounded_once_compiled_or_not() -> None:
    """Squares of nanoseconds are more than a float holds exactly; what follows must not depend on the build."""
    values = [700_000_001, 700_000_024, 700_000_027]
    seen = Seen(64)
    seen.add_many(values)
    off, total = sum(values), len(values)
    assert float(off * off) / total != off * off / total, "these values do not tell one rounding from two"
    around = sum(value * value for value in values) - float(Fraction(off * off, total))
    assert seen.squares == around
