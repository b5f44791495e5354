"""Delays against the figures of the source, in both of its forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.place.transfer import CASCADE, SIMULATOR, Delays

KB = 1024
MS = 1_000_000


@pytest.mark.parametrize(
    ("kb", "ms"),
    [(5_720_000, 562.4), (800_000, 78.7), (2_000_000, 196.6), (2_140_000, 210.4), (3_900_000, 383.4)],
)
def test_fetching_a_model_takes_what_the_source_says(kb: int, ms: float) -> None:
    assert Delays(SIMULATOR).load_ns(kb * KB) / MS == pytest.approx(ms, abs=0.05)
    assert Delays(CASCADE).load_ns(kb * KB) == Delays(SIMULATOR).load_ns(kb * KB) + 2_000


def test_results_between_devices_go_over_both_hosts() -> None:
    delays = Delays(SIMULATOR)
    assert delays.result_ns(3_000 * KB) / MS == pytest.approx(0.83, abs=0.005)
    assert delays.result_ns(2 * KB) / MS == pytest.approx(0.0027, abs=0.00005)
    assert delays.result_ns(2 * KB) == delays.save_ns(2 * KB) + delays.message_ns(2 * KB) + delays.load_ns(2 * KB)


def test_messages_have_three_ranges() -> None:
    delays = Delays(SIMULATOR)
    assert delays.message_ns(1023) == 2_000
    assert delays.message_ns(2 * KB) == 2_000 + 272  # 2 KB at 7 GB/s
    assert delays.message_ns(12 * KB) == 2_000 + 954  # 12 KB at 12 GB/s


def test_cascade_copies_back_at_half_the_speed_and_slips_in_small_messages() -> None:
    simulator, cascade = Delays(SIMULATOR), Delays(CASCADE)
    large = 2_000_000 * KB
    assert (cascade.save_ns(large) - 2_000) / simulator.save_ns(large) == pytest.approx(9.7 / 4.7, rel=1e-6)
    assert cascade.message_ns(2 * KB) == 2_000
    assert cascade.message_ns(12 * KB) == simulator.message_ns(12 * KB)


@pytest.mark.parametrize("links", [SIMULATOR, CASCADE])
def test_nothing_is_fetched_at_once(links: object) -> None:
    assert Delays(links).load_ns(0) == 0  # type: ignore[arg-type]


@given(st.sampled_from([SIMULATOR, CASCADE]), st.integers(4 * KB, 1 << 40), st.integers(0, 1 << 30))
def test_more_bytes_never_take_less_time(links: object, nbytes: int, more: int) -> None:
    delays = Delays(links)  # type: ignore[arg-type]
    for ns in (delays.load_ns, delays.save_ns, delays.message_ns, delays.result_ns):
        assert 0 < ns(nbytes) <= ns(nbytes + more)
