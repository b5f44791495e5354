"""Rivals of the predictor of interference, and the device that they are compared on."""

from __future__ import annotations

import random

import pytest

from dovetail.lab.experiments.interference_world import CHANGES, World, samples
from dovetail.lab.rivals.interference import RIVALS, Sample
from dovetail.predict.interference import Beside, Load

V = Load("v", 1, 50, 53, "", 0.5, 0.2, 0.4)
GENTLE, ROUGH = Load("gentle", 1, 50, 53, "", 0.9, 0.1, 0.1), Load("rough", 1, 50, 53, "", 0.1, 0.5, 0.9)
FOREVER = 1 << 62
QUICK = [name for name in RIVALS if name != "boosting"]


def sample(other: Load | None, slow: float, end: int = FOREVER) -> Sample:
    beside = () if other is None else (Beside(other, 0, end),)
    return Sample("k", V, 1_000_000, round(1_000_000 * slow), beside, beside)


def fitted(name: str) -> object:
    rival = RIVALS[name]()
    rng = random.Random(1)
    rival.fit([s for _ in range(60) for s in (sample(GENTLE, 1.2 * rng.lognormvariate(0, 0.01)), sample(ROUGH, 2.0))])
    return rival


def test_what_each_of_them_can_tell_apart() -> None:
    said = {name: [fitted(name).predict(sample(o, 1.0)) for o in (GENTLE, ROUGH)] for name in RIVALS}  # type: ignore[attr-defined]
    assert said["none"] == [1.0, 1.0]
    assert said["constant"][0] == said["constant"][1] == pytest.approx(1.6, abs=0.02)
    for name in set(RIVALS) - {"none", "constant", "ewma", "sgd"}:
        assert said[name] == pytest.approx([1.2, 2.0], abs=0.12), name


@pytest.mark.parametrize("name", sorted(set(RIVALS) - {"none", "boosting"}))
def test_nobody_beside_costs_nothing_and_bounds_are_above(name: str) -> None:
    rival = fitted(name)
    assert rival.predict(sample(None, 1.0)) == pytest.approx(1.0, abs=0.25)  # type: ignore[attr-defined]
    assert rival.bound(sample(ROUGH, 1.0)) >= rival.predict(sample(ROUGH, 1.0)) * 0.98  # type: ignore[attr-defined]


def test_static_ones_stay_as_they_are_and_the_others_follow() -> None:
    for name in QUICK:
        rival = fitted(name)
        before = rival.predict(sample(ROUGH, 1.0))  # type: ignore[attr-defined]
        for _ in range(60):
            rival.observe(sample(ROUGH, 3.0))  # type: ignore[attr-defined]
        after = rival.predict(sample(ROUGH, 1.0))  # type: ignore[attr-defined]
        if name in ("none", "constant", "gpulets", "fine", "igniter"):
            assert after == before, name
        else:
            assert after > before + 0.3, name
    assert after == pytest.approx(3.0, rel=0.05), "ours"


def test_only_fine_ones_know_how_long_somebody_was_there() -> None:
    half = sample(ROUGH, 1.0, end=500_000)
    for name in QUICK:
        rival = fitted(name)
        shorter = rival.predict(half, came=True) < rival.predict(sample(ROUGH, 1.0), came=True) - 0.1  # type: ignore[attr-defined]
        assert shorter is (name in ("fine", "ours")), name


def test_the_device_is_the_same_for_the_same_seed_and_changes_only_at_its_time() -> None:
    plain = samples(World(5, before=150, after=50))
    assert plain == samples(World(5, before=150, after=50))
    assert len(plain) == 150
    for change in CHANGES:
        other = samples(World(5, change, 150, 50))
        assert other[:150] == plain, change
        assert len(other) == 200
    new = samples(World(5, "new model", 150, 50))
    assert {s.victim.model for s in new[150:]} - {s.victim.model for s in plain} == {"new"}
    more = samples(World(5, "more at once", 150, 100))
    assert max(len(s.known) for s in more[:150]) == 3 < max(len(s.known) for s in more[150:])


def test_samples_say_who_was_there() -> None:
    seen = samples(World(6, before=300))
    assert all(s.slowdown > 0.95 for s in seen)
    for s in seen:
        assert len(s.known) <= len(s.beside)
        assert all(b.begin_ns <= s.duration_ns for b in s.beside)
        assert sum(b.begin_ns <= 0 for b in s.beside) >= len(s.known)
    alone = [s.slowdown for s in seen if not s.beside]
    crowded = [s.slowdown for s in seen if len(s.known) == 3]
    assert max(alone) < 1.05 < sum(crowded) / len(crowded)
