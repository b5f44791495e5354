"""The estimator's rules one by one: bounds of what others learned, turn-arounds, and how many loads count."""

from __future__ import annotations

import math

import pytest

from dovetail.predict import Estimator
from dovetail.predict.estimate import GUESSED_SPREAD, GUESSED_TURNAROUND_NS
from dovetail.predict.state import _MOST_COUNT, _MOST_NS, EstimatorState, LearnedLoad, LearnedRun, trouble_of
from dovetail.profile.table import ProfileTable
from dovetail.units import MS


def load(**fields: object) -> LearnedLoad:
    return LearnedLoad(**{"weights": "a", "kind": "gpu", "count": 1, "mean_ns": 5, "squares": 0.0, **fields})  # type: ignore[arg-type]


def run(**fields: object) -> LearnedRun:
    usual = {
        "stage": "a",
        "kind": "gpu",
        "items": 1,
        "cpus": 1,
        "share_pct": 100,
        "count": 1,
        "mean_ns": 5,
        "squares": 0.0,
    }
    return LearnedRun(**{**usual, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("count", 0, -1),
        ("count", _MOST_COUNT, _MOST_COUNT + 1),
        ("mean_ns", 0, -1),
        ("mean_ns", _MOST_NS, _MOST_NS + 1),
        ("squares", 0.0, -1.0),
        ("squares", 1e300, math.inf),
        ("squares", 1.0, math.nan),
    ],
)
def test_times_from_elsewhere_have_bounds(field: str, good: float, bad: float) -> None:
    for make, place in ((load, "loads"), (run, "runs")):
        assert trouble_of(EstimatorState(**{place: (make(**{field: good}),)})) == ""  # type: ignore[arg-type]
        assert trouble_of(EstimatorState(**{place: (make(**{field: bad}),)})) != ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("items", 1, 0),
        ("items", _MOST_COUNT, _MOST_COUNT + 1),
        ("cpus", 0, -1),
        ("cpus", _MOST_COUNT, _MOST_COUNT + 1),
        ("share_pct", 1, 0),
        ("share_pct", 100, 101),
    ],
)
def test_configurations_from_elsewhere_have_bounds(field: str, good: int, bad: int) -> None:
    assert trouble_of(EstimatorState(runs=(run(**{field: good}),))) == ""
    assert f"{bad}" in trouble_of(EstimatorState(runs=(run(), run(**{field: bad}))))


def test_a_turn_around_moves_by_an_eighth_and_is_unsure_until_some_were_seen() -> None:
    estimator = Estimator(ProfileTable([]))
    assert estimator.turnaround("gpu").mean_ns == GUESSED_TURNAROUND_NS
    estimator.observe_turnaround(GUESSED_TURNAROUND_NS + 80_000, "gpu")
    found = estimator.turnaround("gpu")
    assert found.mean_ns == GUESSED_TURNAROUND_NS + 10_000
    # The variance is an eighth of 80,000 × 70,000; one was seen, so the guess's spread counts in full.
    spread = (80_000 * 70_000 / 8) ** 0.5 / found.mean_ns
    assert found.spread == pytest.approx((spread**2 + GUESSED_SPREAD**2) ** 0.5)
    for _ in range(999):
        estimator.observe_turnaround(1 * MS, "gpu")
    late = estimator.turnaround("gpu")
    assert late.mean_ns == pytest.approx(1 * MS, rel=1e-3)
    assert late.spread < 0.01


def test_a_turn_around_without_time_scatters_by_nothing() -> None:
    estimator = Estimator(ProfileTable([]))
    for _ in range(400):
        estimator.observe_turnaround(0, "gpu")
    assert estimator.turnaround("gpu").mean_ns == 0
    assert math.isfinite(estimator.turnaround("gpu").spread)


def test_of_loads_the_last_few_count() -> None:
    estimator = Estimator(ProfileTable([]))
    for ns in (100, 200, 300, 400):
        estimator.observe_load("a", "gpu", ns * MS)
    assert estimator.load("a", 10, "gpu").mean_ns == 250 * MS
    for _ in range(1):
        estimator.observe_load("a", "gpu", 650 * MS)
    assert estimator.load("a", 10, "gpu").mean_ns == 350 * MS, "the newest moves the mean by a quarter of the way"
