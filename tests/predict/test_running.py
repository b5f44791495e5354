"""Means that follow what was seen of late."""

from __future__ import annotations

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
