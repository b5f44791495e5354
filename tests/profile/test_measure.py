"""The stopping rule on timers that are made up, so that nothing here depends on the machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import cycle
from math import inf
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.profile.measure import FULL, QUICK, Rule, Series, Timer, measure, robust_mean, wall_timer
from dovetail.units import MS, SECOND

ONE_BY_ONE = Rule(turn_ns=1)


def nothing() -> None:
    """What the made-up timers do not run."""


def scripted(times_ns: Iterator[int]) -> Timer:
    return lambda run: next(times_ns)


def measured(times_ns: Iterator[int], rule: Rule = ONE_BY_ONE, variants: int = 1) -> Series:
    series = Series(1, 1, [nothing] * variants)
    list(measure([series], rule, scripted(times_ns)))
    return series


times = st.lists(st.floats(1, 1e12), min_size=2, max_size=60)


@given(times)
def test_the_mean_lies_among_the_values_and_never_above_the_plain_mean(values: list[float]) -> None:
    found, error = robust_mean(values)
    assert min(values) * 0.999999 <= found <= mean(values) * 1.000001
    assert error >= 0


@given(times, st.floats(1, 1e6))
def test_the_unit_does_not_matter(values: list[float], factor: float) -> None:
    found, error = robust_mean(values)
    scaled, scaled_error = robust_mean([v * factor for v in values])
    assert scaled == pytest.approx(found * factor)
    assert scaled_error == pytest.approx(error, abs=1e-6)


@given(st.lists(st.floats(1, 1e6), min_size=5, max_size=60), st.floats(1, 1e6))
def test_how_slow_the_slowest_run_was_does_not_matter(values: list[float], extra: float) -> None:
    values = sorted(values)
    assert robust_mean(values) == robust_mean([*values[:-1], values[-1] + extra])


def test_one_run_has_a_mean_but_no_interval() -> None:
    assert robust_mean([7.0]) == (7.0, inf)


def test_the_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng = random.Random(5)
    # What is estimated is the mean of the nine fastest tenths: of a uniform 1..2 that is 1.45.
    covered = 0
    for _ in range(400):
        found, error = robust_mean([rng.uniform(1, 2) for _ in range(40)])
        covered += abs(found - 1.45) <= error * found
    assert 0.91 <= covered / 400 <= 0.98


def test_a_steady_stage_settles_as_soon_as_the_rule_allows() -> None:
    result = measured(cycle([5 * MS])).result(ONE_BY_ONE)
    assert result.runs == ONE_BY_ONE.least_cycles
    assert (result.mean_ns, result.p50_ns, result.p95_ns, result.spread, result.error) == (5 * MS,) * 3 + (0, 0)
    assert not result.quick


def test_warm_up_runs_are_not_counted() -> None:
    times_ns = iter([900 * MS, 900 * MS, *[5 * MS] * 5])
    assert measured(times_ns).result(ONE_BY_ONE).mean_ns == 5 * MS


def test_a_stage_that_varies_is_run_until_its_interval_is_narrow() -> None:
    rng = random.Random(1)
    result = measured(iter(lambda: int(rng.gauss(MS, MS / 20)), None)).result(ONE_BY_ONE)
    assert ONE_BY_ONE.least_cycles < result.runs < ONE_BY_ONE.most_cycles
    assert result.error <= ONE_BY_ONE.target
    assert result.mean_ns == pytest.approx(MS, rel=0.05)


def test_a_stage_that_never_settles_has_its_time_and_no_more() -> None:
    result = measured(cycle([10 * MS, 90 * MS])).result(ONE_BY_ONE)
    assert result.runs * 50 * MS == pytest.approx(SECOND, rel=0.1)
    assert result.error > ONE_BY_ONE.target and not result.quick


def test_a_slow_stage_has_its_least_number_of_runs_beyond_its_time() -> None:
    assert measured(cycle([3 * SECOND, 9 * SECOND])).result(FULL).runs == FULL.least_cycles


def test_a_stage_that_takes_no_time_ends_at_the_most_cycles() -> None:
    result = measured(cycle([0, 0, 1, 900]), FULL).result(FULL)
    assert result.runs <= FULL.most_cycles and result.mean_ns >= 1


def test_short_runs_come_in_bursts_at_several_moments() -> None:
    result = measured(cycle([MS]), FULL).result(FULL)
    assert result.runs == FULL.least_turns * FULL.turn_ns // MS


def test_a_bad_moment_falls_on_all_points_alike() -> None:
    order: list[str] = []

    def named(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    series = [Series(batch, 1, [named(str(batch))]) for batch in (1, 2, 4)]

    def timer(run: Callable[[], object]) -> int:
        run()
        return 20 * MS

    done = list(measure(series, FULL, timer))
    turns = order[3 * FULL.warmups :]
    assert turns == ["1", "2", "4"] * FULL.least_cycles
    assert done == sorted(done) and done[-1] == 1.0


def test_large_items_are_not_taken_for_interference() -> None:
    # Ten variants, one of them ten times as long: trimming single runs would lose just that one.
    result = measured(cycle([MS] * 9 + [10 * MS]), variants=10).result(ONE_BY_ONE)
    assert result.mean_ns == pytest.approx(1.9 * MS) and result.error == 0
    assert result.p50_ns == MS and result.p95_ns == 10 * MS
    assert result.runs == 10 * ONE_BY_ONE.least_cycles


def test_what_was_cut_short_is_marked_as_quick() -> None:
    series = Series(1, 1, [nothing])
    running = measure([series], ONE_BY_ONE, scripted(cycle([10 * MS, 90 * MS])))
    for _ in range(ONE_BY_ONE.least_cycles - 1):
        next(running)
    assert not series.enough(ONE_BY_ONE)
    next(running)
    assert series.enough(ONE_BY_ONE) and not series.settled
    assert series.result(ONE_BY_ONE).quick


def test_quick_stops_earlier_and_says_so() -> None:
    slow = measured(cycle([10 * MS, 12 * MS]), FULL).result(FULL)
    quick = measured(cycle([10 * MS, 12 * MS]), QUICK).result(QUICK)
    assert quick.runs < slow.runs
    assert quick.quick and not slow.quick


def test_the_wall_timer_runs_what_it_times_once() -> None:
    calls: list[int] = []
    assert wall_timer(lambda: calls.append(1)) >= 0
    assert calls == [1]
