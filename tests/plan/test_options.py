"""Options: the price of one item, and the front."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.support import option

from dovetail.plan.options import Option, Prices, item_cost_usd, pareto
from dovetail.state import Config


def test_an_item_pays_for_its_part_of_the_batch():
    half_an_hour = 1_800_000_000_000
    prices = Prices(device_usd_per_hour=4.0, core_usd_per_hour=0.5)
    # Half an hour of a quarter of the device and of two cores is 0.5 × (1 + 1); eight items share it.
    assert item_cost_usd(Config(8, 2, 25), half_an_hour, prices) == pytest.approx(1.0 / 8)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=20))
def test_the_front_holds_exactly_what_nothing_beats(pairs):
    front = [(o.mean_ns, o.cost_usd) for o in pareto(option(t, float(c)) for t, c in pairs)]
    beaten = {p for p in pairs for q in pairs if q != p and q[0] <= p[0] and q[1] <= p[1]}
    assert front == sorted({(t, float(c)) for t, c in pairs if (t, c) not in beaten})


def test_of_equal_options_the_one_that_takes_least_stays():
    small, large = (Option(Config(1, 1, share), 5, 0.0, 1.0) for share in (10, 20))
    assert pareto([large, small]) == [small]
