"""What predictions buy, in small; and that they cost nothing where nothing interferes."""

from __future__ import annotations

import pytest

from dovetail.lab.experiments import interference_worth as world
from dovetail.lab.experiments.interference_worth import Worth, run, worth
from dovetail.predict.interference import Interference


def test_ours_keeps_more_promises_than_nobody_who_knows_of_neighbours() -> None:
    none, ours = ([worth(Worth(seed, rival, 0.3, 40.0)) for seed in (1, 2)] for rival in ("none", "ours"))
    assert sum(run.missed[1] for run in ours) < sum(run.missed[1] for run in none) / 3
    assert sum(run.goodput for run in ours) > 1.3 * sum(run.goodput for run in none)


def test_a_rival_can_take_our_place() -> None:
    assert worth(Worth(1, "gpulets", 0.3, 20.0)).goodput > worth(Worth(1, "none", 0.3, 20.0)).goodput


@pytest.mark.parametrize("load", [0.3, 1.0])
def test_where_nothing_interferes_nothing_changes(monkeypatch: pytest.MonkeyPatch, load: float) -> None:
    monkeypatch.setattr(world, "_COST", 0.0)
    model = Interference()
    job = Worth(2, "ours", load, 30.0)
    assert run(job, model) == run(job, None)
    (kind,) = model.kinds()
    assert kind.presence.count >= 64
    assert not kind.presence.felt
