"""The price of a late answer, rule by rule: halved while certainty is too dear, six times at most, never too late."""

from __future__ import annotations

import pytest

from dovetail.plan.chance import StageOptions, laws_of
from dovetail.plan.options import Option
from dovetail.plan.price import HALVINGS, funded_price_usd, weighed
from dovetail.plan.stepwise import finish
from dovetail.state import Config
from dovetail.units import MS

#: A chain in which the percentile asks for more than the mean needs; (milliseconds, dollars) per stage.
ROWS = (((86, 1.0), (50, 1.12)), ((168, 3.8), (127, 4.3)), ((147, 1.7), (85, 1.9)))
STAGES = [
    StageOptions([Option(Config(1, 1, 1 + i), ms * MS, 0.05, usd) for i, (ms, usd) in enumerate(row)], {1: 0})
    for row in ROWS
]
AFTER = [[1], [2], []]
LATE = 20.0
#: `LATE` times the least cost of a request: 1.0 + 3.8 + 1.7 dollars.
HIGHEST_USD = LATE * 6.5


def price_usd(premium: float, *, slo_ms: int = 421, most_late: float = 1.0) -> float:
    return finish(funded_price_usd(STAGES, AFTER, slo_ms * MS, late=LATE, premium=premium, most_late=most_late))


@pytest.mark.parametrize(
    ("premium", "halvings"),
    # The cheapest plan that is in time on average costs 6.5 dollars, and a sure one 6.62: 1.8 % more.
    [(1.0, 0), (0.019, 0), (0.01, 4), (0.0, 6)],
)
def test_the_price_is_halved_while_certainty_costs_more_than_the_premium(premium: float, halvings: int) -> None:
    assert price_usd(premium) == pytest.approx(HIGHEST_USD / 2**halvings)


def test_one_halving_is_enough_where_it_brings_the_cost_within_the_budget() -> None:
    assert price_usd(0.0025, slo_ms=400) == pytest.approx(HIGHEST_USD / 2)


def test_the_price_is_not_halved_to_where_too_many_would_be_late() -> None:
    most_late = 0.005
    found_usd = price_usd(0.0, most_late=most_late)
    assert HIGHEST_USD / 2**HALVINGS < found_usd < HIGHEST_USD

    def late(usd: float) -> float:
        return finish(weighed(STAGES, AFTER, 421 * MS, usd, late=LATE, premium=0.0, most_late=1.0)).late

    assert late(found_usd) <= most_late < late(found_usd / 2)


def test_a_price_at_which_too_many_would_be_late_is_doubled_until_it_is_the_highest() -> None:
    low_usd = HIGHEST_USD / 4096
    assert finish(weighed(STAGES, AFTER, 421 * MS, low_usd, late=LATE, premium=0.0, most_late=1.0)).late > 0.05
    assert finish(weighed(STAGES, AFTER, 421 * MS, low_usd, late=LATE, premium=0.0, most_late=0.01)).late <= 0.01
    # 200 ms are less than the fastest plan takes: everybody is late at any price, and the search ends.
    late = finish(weighed(STAGES, AFTER, 200 * MS, low_usd, late=LATE, premium=0.0, most_late=0.01)).late
    assert late == pytest.approx(1.0, abs=1e-6)


def test_a_wait_for_a_batch_is_counted_in_steps_and_rounded_up() -> None:
    waits_ns = {1: 0, 2: 3 * MS, 4: 9000 * MS}
    row = [Option(Config(batch, 1, 1), 50 * MS + wait_ns, 0.05, 1.0) for batch, wait_ns in waits_ns.items()]
    of_stage = StageOptions(row, waits_ns)
    _, fills = finish(laws_of([of_stage], 2 * MS, 100))
    assert fills == [{1: 0, 2: 2, 4: 101}], "never in the plan's favour; and beyond the objective all are the same"
