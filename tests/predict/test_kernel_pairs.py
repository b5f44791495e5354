"""What kernels cost each other that run side by side: the prior at first, and what was seen later."""

from __future__ import annotations

import pytest

from dovetail.predict import Estimator
from dovetail.predict.interference import Beside, Load
from dovetail.predict.kernel_pairs import KernelPairs
from dovetail.profile.table import ProfileTable
from dovetail.units import MS

A, B, C = Load("a", 1, 50), Load("b", 1, 50), Load("c", 1, 50)


def learned(times: dict[Load, float], rounds: int = 200) -> KernelPairs:
    """`a` takes so many times as long beside these."""
    pairs = KernelPairs("cpu")
    for _ in range(rounds):
        for other, slow in times.items():
            pairs.observe(A, MS, round(MS * slow), [Beside(other)])
    return pairs


def test_before_anything_was_seen_every_pair_costs_what_is_published() -> None:
    assert KernelPairs("cpu").extra(A, (B,)) == pytest.approx(0.09)


def test_who_costs_much_and_who_costs_nothing_is_told_apart() -> None:
    pairs = learned({B: 1.5, C: 1.0})
    assert pairs.extra(A, (B,)) == pytest.approx(0.5, abs=0.05)
    assert pairs.extra(A, (C,)) == pytest.approx(0.0, abs=0.02)


def test_an_answer_follows_what_is_seen_and_not_every_single_kernel() -> None:
    pairs = learned({B: 1.0})
    before = pairs.extra(A, (B,))
    pairs.observe(A, MS, 2 * MS, [Beside(B)])
    assert pairs.extra(A, (B,)) == before
    for _ in range(pairs.seen // 8 + 1):
        pairs.observe(A, MS, 2 * MS, [Beside(B)])
    assert pairs.extra(A, (B,)) > before + 0.1


def test_kinds_of_devices_are_learned_apart_and_nothing_is_learned_of_nobody() -> None:
    predictor = Estimator(ProfileTable())
    assert predictor.pairs("cpu") is predictor.pairs("cpu")
    predictor.pairs("cpu").observe(A, MS, 2 * MS, [Beside(B)])
    predictor.pairs("cpu").observe(A, MS, 2 * MS, [])
    assert (predictor.pairs("cpu").seen, predictor.pairs("gpu").seen) == (1, 0)
