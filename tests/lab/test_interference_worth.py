"""What predictions buy, in small; and that they cost nothing where nothing interferes."""

from __future__ import annotations

import pytest

from dovetail.lab.experiments import interference_worth as world
from dovetail.lab.experiments.interference_worth import Worth, run, worth
from dovetail.predict.interference import Interference


def test_ours_keeps_more_promises_than_nobody_who_knows_of_neighbours() -> None:
    none, ours = worth(Worth(1, "none", 0.3, 40.0)), worth(Worth(1, "ours", 0.3, 40.0))
    assert ours.missed[1] < none.missed[1] / 3
    assert ours.goodput > 1.3 * none.goodput


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
