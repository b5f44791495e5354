"""The rest of a wait by bisection is the rest of a wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.device.outlook import Tail
from dovetail.profile.kernels import Spread

TIMES = st.integers(0, 5_000_000)


def spread_of(waits: list[int]) -> Spread:
    spread = Spread()
    for wait in waits:
        spread.add(wait)
    return spread


@settings(max_examples=300, deadline=None)
@given(st.lists(TIMES, min_size=1, max_size=40), TIMES, TIMES)
def test_it_says_the_same_as_all_buckets_one_by_one(waits: list[int], duration: int, elapsed: int) -> None:
    spread = spread_of(waits)
    want = spread.expected_delay_ns(duration, elapsed)
    assert Tail(spread).expected_delay_ns(duration, elapsed) == pytest.approx(want, rel=1e-9, abs=1e-3)


def test_it_is_of_use_until_an_eighth_more_has_been_seen_or_some_were_forgotten() -> None:
    spread = spread_of([1000] * 16)
    tail = Tail(spread)
    for more in (0, 1, 2):
        assert tail.fits(spread), more
        spread.add(1000)
    assert not tail.fits(spread)
    assert not tail.fits(spread_of([1000] * 15)), "what was seen has faded"
    assert not Tail(spread_of([1] * 7)).fits(spread_of([1] * 8)), "of few each counts"
