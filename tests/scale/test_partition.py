"""Slices that models share in time: rule by rule, and ParvaGPU's scenarios."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from dovetail.lab.experiments.parva_data import PUBLISHED_GPUS, demands, deployed_devices, present
from dovetail.scale.partition import A100_CUTS, WINDOW_NS, Demand, Measured, Plan, lower_bound, plan_devices
from dovetail.units import MS

DATA = Path(os.environ.get("DOVETAIL_DATA", Path(__file__).parents[3] / "shared" / "data"))
absent = pytest.mark.skipif(
    not present(DATA), reason="needs parvagpu_* of the public measurements; set DOVETAIL_DATA"
)


def measured(size: int, per_s: float, batch_ms: float, batch: int = 1) -> Measured:
    return Measured(size, batch, 1, per_s, round(batch_ms * MS))


def demand(name: str, per_s: float, objective_ms: float, *found: Measured) -> Demand:
    return Demand(name, per_s, round(objective_ms * MS), found)


def holds(plan: Plan, asked: list[Demand]) -> None:
    """No slice has more than its time, every cut is one, all that was asked for is served, and in time."""
    used: Counter[tuple[int, int]] = Counter()
    served: Counter[str] = Counter()
    for part in plan.parts:
        used[part.device, part.slice] += part.quota  # type: ignore[assignment]
        served[part.model] += part.per_s  # type: ignore[assignment]
        assert plan.cuts[part.device][part.slice] == part.config.size
        assert part.per_s <= part.quota * part.config.per_s * (1 + 1e-6)
        goal = next(d for d in asked if d.model == part.model)
        assert part.config in goal.measured
        assert part.answer_ns() <= goal.objective_ns, f"{part.model} is late"
    assert all(quota <= 1 + 1e-6 for quota in used.values()), "more than its time"
    assert all(served[d.model] >= d.per_s * (1 - 1e-6) for d in asked), "something is not served"
    assert all(cut in A100_CUTS for cut in plan.cuts)


def test_two_models_share_a_slice_in_time() -> None:
    asked = [demand(name, 40, 1000, measured(7, 100, 10)) for name in "ab"]
    plan = plan_devices(asked)
    assert plan is not None and len(plan.cuts) == 1 == lower_bound(asked)
    holds(plan, asked)
    alone = plan_devices(asked, shared=False)
    assert alone is not None and len(alone.cuts) == 2


def test_a_batch_takes_its_time_divided_by_the_quota_and_a_window_more() -> None:
    """50 ms at a quota of 40 % is 125 ms and the window: more than half of 300 ms with a window of 40 ms."""
    for objective_ms, quota in ((340, 0.4), (250, 50 / 85)):
        asked = [demand("a", 40, objective_ms, measured(7, 100, 50))]
        plan = plan_devices(asked)
        assert plan is not None and plan.parts[0].quota == pytest.approx(quota, rel=1e-6)
        batch_ms = 50 / quota + 40
        assert plan.parts[0].answer_ns() == pytest.approx((25 + batch_ms) * MS, rel=1e-6), "25 ms to gather"
        holds(plan, asked)


def test_requests_have_to_gather_in_time() -> None:
    """A batch of 64 at 40 a second takes 1.6 s to gather."""
    large, small = measured(7, 400, 20, 64), measured(7, 100, 5, 4)
    plan = plan_devices([demand("a", 40, 1000, large, small)])
    assert plan is not None and plan.parts[0].config == small
    plan = plan_devices([demand("a", 40, 4000, large, small)])
    assert plan is not None and plan.parts[0].config == large


def test_a_model_may_be_on_several_slices() -> None:
    asked = [demand("a", 250, 400, measured(7, 100, 10))]
    plan = plan_devices(asked)
    assert plan is not None and len(plan.cuts) == 3 == lower_bound(asked)
    holds(plan, asked)


def test_the_lower_bound_of_whole_slices_counts_the_fewest_sevenths_of_each_model() -> None:
    sizes = (measured(1, 10, 10), measured(3, 45, 10), measured(4, 10, 600))  # the last is too slow
    assert lower_bound([demand("a", 60, 1000, *sizes)], 1, shared=False) == 5, "three and two"
    assert lower_bound([demand("a", 5, 1000, *sizes)] * 8, shared=False) == 2, "a seventh each"
    assert lower_bound([demand("a", 5, 1000, *sizes)] * 8) == 1
    assert lower_bound([demand("a", 1, 1000, measured(3, 45, 10))], 1, shared=False) == 3


def test_what_takes_too_many_devices_is_no_plan() -> None:
    assert plan_devices([demand("a", 250, 400, measured(7, 100, 10))], most=2) is None


@pytest.mark.data
@absent
@pytest.mark.parametrize("scenario", [1, 2, 3, 4])
def test_parvagpus_scenarios_take_fewer_devices_and_no_objective_is_violated(scenario: int) -> None:
    asked = demands(DATA, scenario)
    assert deployed_devices(DATA, scenario) == PUBLISHED_GPUS[scenario - 1]
    plan = plan_devices(asked, most=PUBLISHED_GPUS[scenario - 1])
    assert plan is not None
    holds(plan, asked)
    assert len(plan.cuts) == (1, 2, 4, 6)[scenario - 1]
    assert lower_bound(asked) == (1, 2, 4, 5)[scenario - 1]
    assert lower_bound(asked, shared=False) == PUBLISHED_GPUS[scenario - 1], "whole slices: no fewer than ParvaGPU"
    assert WINDOW_NS == 40 * MS
