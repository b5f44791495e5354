"""All rivals in ESG's world: invariants hold after every step, no request is lost, the same run does the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.rivals.support import play

from dovetail.control import RunBatch, SetTimer
from dovetail.lab.rivals.aquatope import AquatopePlanner
from dovetail.lab.rivals.common import Market, Rival
from dovetail.lab.rivals.fast_gshare import FastGSharePlanner
from dovetail.lab.rivals.infless import INFlessPlanner
from dovetail.lab.rivals.orion import OrionPlanner
from dovetail.lab.rivals.ray_serve import RayServePlanner, RayServeSettings
from dovetail.lab.rivals.triton import TritonPlanner
from dovetail.record.ledger import Ledger
from dovetail.sim import Simulation


def quick_aquatope(market: Market) -> Rival:
    """The best of ten random plans: what it optimises is tested elsewhere, here it has to run."""
    return AquatopePlanner(market, seed=1, rounds=0)


def patient_ray(market: Market) -> Rival:
    """With routers that refuse nobody."""
    return RayServePlanner(market, RayServeSettings(max_queued=0))


RIVALS: list[Callable[[Market], Rival]] = [
    INFlessPlanner,
    FastGSharePlanner,
    OrionPlanner,
    quick_aquatope,
    TritonPlanner,
    patient_ray,
]
SETTINGS = ["strict-light", "moderate-normal", "relaxed-heavy"]

every_rival = pytest.mark.parametrize(
    "make", RIVALS, ids=["infless", "fast-gshare", "orion", "aquatope", "triton", "ray-serve"]
)


def outcomes(ledger: Ledger) -> dict[str, int]:
    total: dict[str, int] = {}
    for line in ledger.summary():
        for outcome, count in line.outcomes.items():
            total[outcome] = total.get(outcome, 0) + count
    return total


def all_answered(ledger: Ledger, simulation: Simulation) -> bool:
    ended = outcomes(ledger)
    return ended["ok"] + ended["late"] == sum(ended.values()) == simulation.arrived


@every_rival
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_request_is_answered_and_every_invariant_holds(make: Callable[[Market], Rival], setting: str) -> None:
    done, ledger, simulation = play(make, setting, seconds=4)
    assert all_answered(ledger, simulation)
    assert simulation.arrived > 50
    assert done


@every_rival
def test_the_same_run_does_the_same(make: Callable[[Market], Rival]) -> None:
    first, _, _ = play(make, "moderate-normal", seconds=2.5)
    again, _, _ = play(make, "moderate-normal", seconds=2.5)
    assert first == again


@every_rival
def test_a_lost_worker_costs_no_request(make: Callable[[Market], Rival]) -> None:
    _, ledger, simulation = play(make, "moderate-normal", seconds=3, lose_at_s=1.7)
    assert all_answered(ledger, simulation)


def test_with_time_to_spare_infless_fills_batches_and_holds_them() -> None:
    done, ledger, simulation = play(INFlessPlanner, "relaxed-heavy", seconds=4, patience=3)
    assert all_answered(ledger, simulation)
    assert {len(a.items) for a in done if isinstance(a, RunBatch)} >= {1, 2, 4}
    assert any(isinstance(a, SetTimer) and a.reason == "waits for a batch to fill" for a in done)


@pytest.mark.parametrize(
    ("make", "setting", "least"),
    [
        (INFlessPlanner, "strict-light", 0.8),
        (FastGSharePlanner, "moderate-normal", 0.8),
        (OrionPlanner, "strict-light", 0.95),
        (OrionPlanner, "relaxed-heavy", 0.95),
    ],
)
def test_a_rival_is_no_straw_man(make: Callable[[Market], Rival], setting: str, least: float) -> None:
    """A guard against a later change that cripples one: where it should do well, it does."""
    _, ledger, _ = play(make, setting, seconds=6)
    ended = outcomes(ledger)
    assert ended["ok"] / sum(ended.values()) >= least
