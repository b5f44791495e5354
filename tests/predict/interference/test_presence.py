"""Neighbours count only where they are seen to cost something."""

from __future__ import annotations

import math
import random

import pytest

from dovetail.predict.interference.presence import ENOUGH, LEAST, Presence, Stretches


def shown(beside: float, alone: float = 0.0, scatter: float = 0.0, count: int = 400) -> Presence:
    rng = random.Random(1)
    presence = Presence()
    for _ in range(count):
        presence.saw_alone(alone + rng.gauss(0, scatter))
        presence.saw_beside(beside + rng.gauss(0, scatter))
    return presence


@pytest.mark.parametrize(("cost", "felt"), [(0.0, False), (LEAST * 0.9, False), (LEAST * 1.1, True), (0.5, True)])
def test_it_is_felt_above_a_few_per_cent(cost: float, felt: bool) -> None:
    assert shown(cost).felt is felt


def test_scatter_alone_is_never_felt() -> None:
    for seed in range(20):
        rng, presence = random.Random(seed), Presence()
        for _ in range(2000):
            presence.saw_beside(rng.gauss(0, 0.05))
            assert not presence.felt


def test_a_profile_that_is_wrong_by_a_third_is_not_taken_for_neighbours() -> None:
    assert not shown(math.log(4 / 3), math.log(4 / 3), 0.02).felt
    assert shown(math.log(4 / 3) + 0.1, math.log(4 / 3), 0.02).felt


def test_a_few_batches_are_not_enough_and_one_outlier_counts_as_little_as_it_should() -> None:
    assert not shown(0.5, count=ENOUGH - 1).felt
    assert shown(0.5, count=ENOUGH).felt
    presence = shown(0.0)
    presence.saw_beside(50.0)
    assert not presence.felt


def test_what_is_gone_is_not_felt_any_more_and_comes_back() -> None:
    presence = shown(0.3)
    for _ in range(2000):
        presence.saw_beside(0.0)
    assert not presence.felt
    for _ in range(200):
        presence.saw_beside(0.3)
    assert presence.felt
    assert Presence(presence.state()).state() == presence.state()


def test_usual_company_is_a_mean_of_late_with_its_variance() -> None:
    stretches = Stretches()
    assert stretches.of("a") == (0.0, 0.0)
    for _ in range(300):
        stretches.add("a", 0.1)
        stretches.add("a", 0.3)
    mean, variance = stretches.of("a")
    assert mean == pytest.approx(0.2, abs=0.01)
    assert variance == pytest.approx(0.01, rel=0.1)
    assert Stretches(stretches.rows()).of("a") == (mean, variance)
