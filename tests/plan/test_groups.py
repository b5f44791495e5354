"""What a plan by groups pays and how often it is late, beside what can be worked out by hand."""

from __future__ import annotations

import pytest

from dovetail.plan.branches import steps_for
from dovetail.plan.chance import StageOptions, laws_of
from dovetail.plan.groups import by_groups
from dovetail.plan.options import Option
from dovetail.plan.stepwise import finish
from dovetail.state import Config
from dovetail.units import MS

FORK = [[1, 2], [3], [3], []]


def stage(*rows: tuple[int, float], spread: float = 0.0, kind: str = "") -> StageOptions:
    options = [Option(Config(1, 1, 1 + i, kind=kind), ms * MS, spread, usd) for i, (ms, usd) in enumerate(rows)]
    return StageOptions(options, {1: 0})


def paid(stages: list[StageOptions], after: list[list[int]], objective_ms: int) -> tuple[float, float]:
    steps = steps_for(len(stages))
    step_ns = objective_ms * MS // steps + 1
    laws, _ = finish(laws_of(stages, step_ns, steps))
    return finish(by_groups(stages, after, laws, step_ns, objective_ms * MS))


def test_with_time_enough_it_takes_the_cheapest_of_everything() -> None:
    usd, late = paid([stage((10, 3.0), (20, 1.0))] * 4, FORK, 200)
    assert (usd, late) == (pytest.approx(4.0), pytest.approx(0.0))


def test_without_time_it_takes_the_fastest_of_everything_and_is_late() -> None:
    usd, late = paid([stage((40, 3.0), (80, 1.0))] * 4, FORK, 100)
    assert (usd, late) == (pytest.approx(12.0), pytest.approx(1.0))


def test_a_branch_has_the_time_that_its_group_has_and_no_more() -> None:
    """Three stages in a row, each of which would take 20 or 10 of 50 ms: one has to be fast."""
    usd, late = paid([stage((10, 3.0), (20, 1.0))] * 3, [[1], [2], []], 52)
    assert (usd, late) == (pytest.approx(5.0), pytest.approx(0.0))


def test_it_buys_no_certainty() -> None:
    """Times that fit in on average and no better are too long in about half of the cases."""
    usd, late = paid([stage((100, 1.0), (50, 2.0), spread=0.1)] * 2, [[1], []], 201)
    assert 0.05 < late < 0.6 and usd < 4.0


def test_stages_on_several_kinds_of_devices_count_the_cheapest_that_is_in_time() -> None:
    mixed = StageOptions([*stage((10, 3.0), kind="fast").options, *stage((20, 1.0), kind="slow").options], {1: 0})
    usd, _ = paid([mixed] * 4, FORK, 200)
    assert usd == pytest.approx(4.0)
