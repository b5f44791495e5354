"""Quantiles by rank: of n durations, the quantile q is the ceil(q × n)-th, and never its neighbour."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.control import Reply
from dovetail.record.ledger import Histogram, Ledger
from dovetail.units import MS

#: Below 64 every duration has a bucket of its own, so a rank can be told from the next one.
EXACT = 63


@pytest.mark.parametrize(
    ("count", "q"), [(20, 0.95), (21, 0.95), (60, 0.99), (50, 0.5), (51, 0.5), (1, 0.99), (2, 0.5)]
)
def test_the_rank_is_the_one_that_the_share_reaches(count: int, q: float) -> None:
    histogram = Histogram()
    for ns in range(1, count + 1):
        histogram.add(ns)
    assert histogram.quantile(q) == ceil(round(q * count, 9))


@given(st.lists(st.integers(0, EXACT), min_size=1, max_size=80), st.integers(1, 99))
def test_a_quantile_is_the_smallest_duration_that_enough_do_not_exceed(values: list[int], per_cent: int) -> None:
    histogram = Histogram()
    for ns in values:
        histogram.add(ns)
    found = histogram.quantile(per_cent / 100)
    assert 100 * sum(ns <= found for ns in values) >= per_cent * len(values) - 1e-3 * len(values)
    assert 100 * sum(ns < found for ns in values) < per_cent * len(values)


def test_what_was_merged_counts_with_its_largest() -> None:
    one, other = Histogram(), Histogram()
    for ns in (5, 7):
        one.add(ns)
    for ns in (9, 1_000_003):
        other.add(ns)
    one.merge(other)
    assert (one.count, one.total_ns, one.max_ns) == (4, 1_000_024, 1_000_003)
    assert [one.quantile(q) for q in (0.25, 0.5, 0.75, 1.0)] == [5, 7, 9, 1_000_003], "never above the largest"


def test_no_durations_have_no_quantile() -> None:
    assert Histogram().quantile(0.99) == 0


def test_a_summary_names_the_quantiles_that_it_shows() -> None:
    ledger = Ledger([("flow", 100 * MS)])
    for number in range(1, 21):
        ledger.add(Reply(1, number, 0, 1, "ok" if number <= 15 else "late", 0, 0.002), number)
    (line,) = ledger.summary()
    assert (line.p50_ms, line.p95_ms, line.p99_ms) == (10e-6, 19e-6, 20e-6)
    assert line.mean_ms == pytest.approx(10.5e-6)
    assert (line.requests, line.hit_rate) == (20, 0.75)
    assert line.cost_usd_per_1000 == pytest.approx(2.0)
    assert line.goodput_per_s == pytest.approx(15 / 20e-9)
