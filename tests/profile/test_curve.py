from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.profile.curve import Curve, fit

MS = 1_000_000
RESNET_LIKE = Curve((1, 2, 4, 8), (20 * MS, 20 * MS, 21 * MS, 24 * MS), (1 * MS, 2 * MS, 3 * MS, 6 * MS))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    batches = draw(st.lists(st.integers(1, 256), min_size=1, max_size=6, unique=True).map(sorted))
    times = st.lists(st.integers(1, 10**12), min_size=len(batches), max_size=len(batches)).map(sorted)
    return Curve(tuple(batches), tuple(draw(times)), tuple(draw(times)))


@given(curves(), st.integers(1, 600), st.integers(1, 600), st.integers(1, 100), st.integers(1, 100))
def test_a_larger_batch_or_a_smaller_share_is_never_faster(curve: Curve, a: int, b: int, s: int, t: int) -> None:
    faster = curve.latency_ns(min(a, b), max(s, t))
    slower = curve.latency_ns(max(a, b), min(s, t))
    assert isinstance(faster, int)
    assert 0 < faster <= slower


@given(curves(), st.integers(1, 100))
def test_measured_batches_are_met_exactly(curve: Curve, share_pct: int) -> None:
    for batch, floor_ns, work_ns in zip(curve.batches, curve.floor_ns, curve.work_ns, strict=True):
        assert curve.at(batch) == (floor_ns, work_ns)
        assert curve.latency_ns(batch, share_pct) == max(floor_ns, -(-work_ns * 100 // share_pct))


@given(curves(), st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_scaled_curve_is_a_curve(curve: Curve, floor_factor: float, work_factor: float) -> None:
    scaled = curve.scaled(floor_factor, work_factor)  # its own checks refuse anything that is not monotone
    assert scaled.batches == curve.batches


def test_share_matters_only_below_saturation() -> None:
    assert RESNET_LIKE.latency_ns(8, 100) == RESNET_LIKE.latency_ns(8, 25) == 24 * MS
    assert RESNET_LIKE.latency_ns(8, 10) == 60 * MS
    assert RESNET_LIKE.latency_ns(1, 10) == 20 * MS


def test_between_and_beyond_measured_batches_it_is_linear() -> None:
    assert RESNET_LIKE.at(6) == (22_500_000, 4_500_000)
    assert RESNET_LIKE.at(16) == (30 * MS, 12 * MS)


def test_below_the_first_measured_batch_nothing_is_faster() -> None:
    assert Curve((4, 8), (40, 80), (4, 8)).at(1) == (40, 4)


def test_a_single_measured_batch_promises_no_gain_from_batching() -> None:
    assert Curve((2,), (10 * MS,), (4 * MS,)).at(6) == (30 * MS, 12 * MS)


@pytest.mark.parametrize("batch, share_pct", [(0, 50), (-1, 50), (1, 0), (1, 101)])
def test_impossible_questions_are_refused(batch: int, share_pct: int) -> None:
    with pytest.raises(ValueError):
        RESNET_LIKE.latency_ns(batch, share_pct)


@pytest.mark.parametrize(
    "batches, floor_ns, work_ns",
    [
        ((), (), ()),
        ((1, 2), (1,), (1, 2)),
        ((0, 2), (1, 2), (1, 2)),
        ((2, 1), (1, 2), (1, 2)),
        ((1, 2), (2, 1), (1, 2)),
        ((1, 2), (1, 2), (2, 1)),
        ((1,), (0,), (1,)),
    ],
)
def test_tables_that_are_not_monotone_are_refused(
    batches: tuple[int, ...], floor_ns: tuple[int, ...], work_ns: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError):
        Curve(batches, floor_ns, work_ns)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"batches": batches, "floor_ns": floor_ns, "work_ns": work_ns}, Curve)


@given(curves(), st.lists(st.integers(1, 100), min_size=1, max_size=8, unique=True))
def test_a_fit_is_a_curve_and_states_its_error(curve: Curve, shares: list[int]) -> None:
    times = {b: {s: curve.latency_ns(b, s) for s in shares} for b in curve.batches}
    made = fit(times)
    assert made.points == len(shares) * len(curve.batches)
    assert made.curve.batches == curve.batches
    assert made.mape_pct >= 0
    assert made.p90_pct >= 0


def test_a_fit_finds_the_curve_that_made_the_times() -> None:
    shares = range(5, 101, 5)
    made = fit({b: {s: RESNET_LIKE.latency_ns(b, s) for s in shares} for b in RESNET_LIKE.batches})
    assert made.curve == RESNET_LIKE
    assert made.mape_pct < 0.001


def test_one_bad_measurement_does_not_move_a_fit() -> None:
    times = {1: {s: RESNET_LIKE.latency_ns(8, s) for s in range(5, 101, 5)}}
    times[1][60] *= 10
    made = fit(times)
    assert made.curve.latency_ns(1, 60) == 24 * MS


def test_batches_that_came_out_in_the_wrong_order_are_pooled() -> None:
    made = fit({1: {50: 30, 100: 30}, 2: {50: 20, 100: 20}})
    assert made.curve.floor_ns == (25, 25)
    assert made.mape_pct == pytest.approx((5 / 30 + 5 / 20) / 2 * 100, rel=0.05)
