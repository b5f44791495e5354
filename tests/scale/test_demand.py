"""What is asked for: means, surges, what waits, and a forecast that only raises."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.scale.demand import Demand, DemandSettings
from dovetail.units import SECOND


def played(counts: list[int], *, waiting: int = 0, lead_s: int = 5) -> list[float]:
    demand, arrived, found = Demand(DemandSettings(), lead_s * SECOND), 0, []
    demand.look(0, 0, 0, 0)
    for second, count in enumerate(counts, 1):
        arrived += count
        found.append(demand.look(arrived, waiting, 0, second * SECOND).per_s)
    return found


def test_an_even_load_is_known_as_it_is() -> None:
    assert all(abs(rate - 20) < 0.01 for rate in played([20] * 30)[1:])


def test_a_surge_is_taken_at_once_and_so_is_its_end() -> None:
    found = played([10] * 10 + [80] * 5 + [10] * 5)
    assert found[10] >= 79 and found[9] < 12
    demand = Demand(DemandSettings(settle_ns=0), 0)
    demand.look(0, 0, 0, 0)
    for second in range(1, 12):
        last = demand.look(80 * min(second, 8) + 10 * max(0, second - 8), 0, 0, second * SECOND)
    assert last.rate_per_s < 15


def test_on_the_way_down_the_highest_of_the_last_seconds_counts() -> None:
    demand = Demand(DemandSettings(settle_ns=4 * SECOND), 0)
    arrived = 0
    demand.look(0, 0, 0, 0)
    for second in range(1, 20):
        arrived += 100 if second < 10 else 1
        need = demand.look(arrived, 0, 0, second * SECOND)
        if second == 12:
            assert need.per_s < 50 and need.settled_per_s > 90
    assert need.settled_per_s < 5


def test_what_waits_counts_as_far_as_the_rate_does_not_explain_it() -> None:
    demand = Demand(DemandSettings(drain_ns=2 * SECOND), 0)
    demand.look(0, 0, 0, 0)
    demand.look(10, 0, 0, SECOND)
    usual = demand.look(20, 5, SECOND // 2, 2 * SECOND)
    much = demand.look(30, 45, SECOND // 2, 3 * SECOND)
    assert usual.queued_per_s == 0 and much.queued_per_s == 20


@given(st.lists(st.integers(0, 50), min_size=15, max_size=40), st.integers(0, 30))
def test_a_forecast_never_lowers_what_is_asked_for(counts: list[int], lead_s: int) -> None:
    blind = DemandSettings(line=10_000)
    seeing, without = Demand(DemandSettings(), lead_s * SECOND), Demand(blind, lead_s * SECOND)
    arrived = 0
    for second, count in enumerate(counts):
        arrived += count
        a, b = (d.look(arrived, 0, 0, second * SECOND) for d in (seeing, without))
        assert a.per_s >= b.per_s - 1e-9 and a.settled_per_s >= a.per_s - 1e-9
        assert a.rate_per_s == b.rate_per_s


def test_a_steady_rise_is_seen_coming() -> None:
    rising = played([20 + 2 * n for n in range(30)], lead_s=10)
    flat = played([20 + 2 * n for n in range(30)], lead_s=0)
    assert rising[-1] > flat[-1] + 15


def test_after_the_last_one_the_rate_ends() -> None:
    assert played([1] + [0] * 40)[-1] == 0
