"""The bound on low-priority work: what no plan can exceed, checked against all plans of small cases."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.lab.experiments.fikit_bound import PRICES, _best, lowest_low, most_left
from dovetail.lab.experiments.fikit_world import Job, simulate

times = st.lists(st.integers(1, 30), min_size=1, max_size=4)


def every_plan(gaps: list[int], durations: list[int], begin: int) -> list[tuple[int, int]]:
    """(work, delay) of all ways to run whole kernels in order in these gaps."""
    found = []
    for counts in product(range(5), repeat=len(gaps)):
        at, work, delay = begin, 0, 0
        for gap, count in zip(gaps, counts, strict=True):
            used = sum(durations[(at + i) % len(durations)] for i in range(count))
            at, work, delay = at + count, work + used, delay + max(0, used - gap)
        found.append((work, delay))
    return found


@settings(deadline=None, max_examples=60)
@given(times, times, st.integers(0, 40))
def test_no_plan_within_a_budget_does_more_than_the_bound(gaps: list[int], durations: list[int], budget: int) -> None:
    bound = min(_best(gaps, durations, price) + price * budget for price in PRICES)
    for begin in range(len(durations)):
        for work, delay in every_plan(gaps, durations, begin):
            assert delay > budget or work <= bound + 1e-6


@settings(deadline=None, max_examples=60)
@given(times, st.lists(st.integers(8, 30), min_size=1, max_size=4), st.sampled_from(PRICES))
def test_the_best_plan_at_a_price_is_one_that_exists(gaps: list[int], durations: list[int], price: float) -> None:
    plans = [plan for begin in range(len(durations)) for plan in every_plan(gaps, durations, begin)]
    assert _best(gaps, durations, price) == pytest.approx(max(work - price * delay for work, delay in plans))


def test_one_kernel_at_a_time_ours_stays_below_the_bound() -> None:
    job = Job("mobilenetv2", "bert-large", "sync", "ours", 101, 3, beside=False)
    outcome = simulate(job)
    assert outcome.high < 1.06
    assert 1.0 < lowest_low(job) < 1 / outcome.low_rate


@pytest.mark.parametrize("host", ["ahead", "host", "sync"])
def test_nobody_gives_more_than_is_left_while_high_tasks_are_in_time(host: str) -> None:
    for policy in ("ours", "parts", "fikit"):
        job = Job("mobilenetv2", "bert-large", host, policy, 101, 3, beside=False)
        outcome = simulate(job)
        # What a task found running may have made it later than the bound allows for; then more was left.
        late = max(0.0, outcome.high - 1.05) / 4
        assert outcome.low_rate < most_left(job) + late + 0.01


def test_in_parts_more_is_filled_than_any_plan_with_whole_kernels_could() -> None:
    job = Job("transformer-xl", "mobilenetv2-train", "sync", "parts", 101, 3)
    assert simulate(job).low_rate > 1 / lowest_low(job)
