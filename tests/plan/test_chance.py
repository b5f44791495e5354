"""Chances of being in time, weighed in money: against closed forms, against all plans, and by hand-checked cases."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.plan.chance import STEPS, StageOptions
from dovetail.plan.frontier import build
from dovetail.plan.options import Option
from dovetail.plan.price import funded_price_usd, weighed
from dovetail.plan.quantile import z_value
from dovetail.plan.series_parallel import decompose
from dovetail.plan.stepwise import finish
from dovetail.state import Config
from dovetail.units import MS

ALL_THE_MONEY = 1e9


def stage(*rows, spread=0.0):
    """Options of batch 1 from (milliseconds, dollars); the share tells them apart."""
    options = [Option(Config(1, 1, 1 + i), ms * MS, spread, usd) for i, (ms, usd) in enumerate(rows)]
    return StageOptions(options, {1: 0})


def tables(stages, objective_ms, *, late, premium=ALL_THE_MONEY, most_late=1.0):
    after = [[i] for i in range(1, len(stages))] + [[]]
    steps = funded_price_usd(stages, after, objective_ms * MS, late=late, premium=premium, most_late=most_late)
    price_usd = finish(steps)
    tables = weighed(stages, after, objective_ms * MS, price_usd, late=late, premium=0.0, most_late=most_late)
    return finish(tables)


def test_one_stage_costs_its_price_and_its_chance_of_being_late():
    chances = tables([stage((100, 1.0), spread=0.1)], 200, late=3.0)
    # Log-normal with mean 1 and spread 0.1: the median is 0.9950, the 90th percentile 1.1304, the 99th 1.2549.
    for left_ms, chance in ((99.50, 0.5), (113.04, 0.1), (125.49, 0.01), (50, 1.0), (190, 0.0)):
        way = chances.weigh(0, round(left_ms * MS), 1)
        assert way.value_usd == pytest.approx(1.0 + 3.0 * chance, abs=0.1), "within a step of the time left"


times_and_costs = st.lists(
    st.tuples(st.integers(1, 60), st.floats(0.1, 2.0)), min_size=1, max_size=4, unique_by=lambda row: row[0]
)


@given(st.lists(times_and_costs, min_size=1, max_size=3), st.integers(1, 150), st.floats(0.1, 5.0))
def test_without_scatter_it_is_the_best_of_all_plans(rows, left_ms, late):
    chances = tables([stage(*row) for row in rows], 150, late=late)
    late_usd = late * sum(min(usd for _, usd in row) for row in rows)

    def best(left_ns):
        return min(
            sum(usd for _, usd in plan) + (late_usd if sum(ms * MS for ms, _ in plan) > left_ns else 0.0)
            for plan in itertools.product(*rows)
        )

    # Counting in steps loses less than one for the time left, and one for each stage.
    lost_ns = (len(rows) + 2) * (150 * MS // STEPS + 1)
    value_usd = chances.weigh(0, left_ms * MS, 1).value_usd
    assert best(left_ms * MS + lost_ns) - 1e-9 <= value_usd <= best(left_ms * MS - lost_ns) + 1e-9


@given(st.lists(times_and_costs, min_size=1, max_size=3), st.floats(0.0, 0.3))
def test_more_time_is_never_worth_less(rows, spread):
    chances = tables([stage(*row, spread=spread) for row in rows], 100, late=2.0)
    values = [chances.weigh(0, ms * MS, 1).value_usd for ms in range(101)]
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(values))


#: A chain in which the percentile asks for more than the mean needs: one of twenty is late by the cheaper plan.
ROWS = (((86, 1.0), (50, 1.12)), ((168, 3.8), (127, 4.3)), ((147, 1.7), (85, 1.9)))


def test_speed_is_bought_at_the_last_stage_that_can_still_make_up_and_not_at_the_first():
    stages = [stage(*row, spread=0.05) for row in ROWS]
    z = z_value(0.99, spread=0.05)
    percentile = build(decompose([[1], [2], []]), [s.options for s in stages], 421 * MS, z=z)
    assert percentile.choose(0, 421 * MS).option.mean_ns == 50 * MS, "the percentile pays at once"
    chances = tables(stages, 421, late=1.0)
    assert chances.weigh(0, 421 * MS, 1).config.share_pct == 1
    assert chances.weigh(2, 170 * MS, 1).config.share_pct == 1, "time enough"
    assert chances.weigh(2, 150 * MS, 1).config.share_pct == 2, "now it is needed"
    assert chances.weigh(2, 50 * MS, 1).config.share_pct == 1, "and now it would be in vain"
    assert chances.late < 0.01
    assert chances.work_usd < 1.12 + 3.8 + 1.7, "less than the plan of the percentile"


@given(st.sampled_from([0.0, 0.001, 0.0025, 0.005, 0.01, 0.1]), st.sampled_from([0.001, 0.02, 0.05, 1.0]))
def test_a_smaller_premium_costs_less_and_is_late_more_often_but_not_beyond_the_bound(premium, most_late):
    stages = [stage(*row, spread=0.05) for row in ROWS]
    free = tables(stages, 421, late=20.0)
    bound = tables(stages, 421, late=20.0, premium=premium, most_late=most_late)
    assert bound.work_usd <= free.work_usd + 1e-9
    assert free.late - 1e-9 <= bound.late <= max(most_late, free.late)


def test_large_batches_do_not_make_giving_up_pay():
    """Slow batches are so cheap here that with a low price of being late nobody would be in time."""
    rows = []
    for row in ROWS:
        single = stage(*row, spread=0.05).options
        slow = Option(Config(8, 1, 1), 2000 * MS, 0.05, row[0][1] / 2)
        rows.append(StageOptions([*single, slow], {1: 0, 8: 0}))
    chances = tables(rows, 421, late=20.0, premium=0.0, most_late=0.05)
    assert chances.late <= 0.05
    assert chances.weigh(0, 421 * MS, 8).value_usd > chances.weigh(0, 421 * MS, 1).value_usd
    assert chances.weigh(0, 421 * MS, 4) is None, "no such batch"


def test_an_option_far_slower_than_the_objective_is_only_late():
    chances = tables([stage((10, 1.0), (3_600_000, 0.5), spread=0.2)], 20, late=10.0)
    assert chances.weigh(0, 20 * MS, 1).config.share_pct == 1
    assert chances.weigh(0, 0, 1).config.share_pct == 2


def test_certainty_that_costs_less_than_the_premium_is_bought_though_the_price_is_low():
    stages = [stage((50, 1.0), spread=0.1), stage((60, 1.0), (40, 1.001), spread=0.1)]
    found = {
        premium: finish(weighed(stages, [[1], []], 120 * MS, 0.005, late=20.0, premium=premium, most_late=0.5))
        for premium in (0.0, 0.0025)
    }
    assert found[0.0025].late < found[0.0].late / 2
    assert found[0.0].work_usd < found[0.0025].work_usd <= found[0.0].work_usd * 1.0025
