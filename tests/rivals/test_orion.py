from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from tests.rivals.support import curve, market, workflow

from dovetail.lab.rivals.orion import Latency, OrionPlanner, next_sizes
from dovetail.state import Config

#: In tenths of a device: 100, 50, 33 ms and 60, 30, 20 ms.
CURVES = {"a": curve({1: 10, 2: 19}), "b": curve({1: 6, 2: 11})}
STAGES = {"a": (1, 2), "b": (1, 2)}


def planned(slo_ms: float, spread: float = 0.0) -> dict[str, int]:
    planner = OrionPlanner(market(CURVES, spread=spread))
    return {stage: c.share_pct for stage, c in planner.plan(workflow("w", slo_ms, STAGES)).items()}


def test_the_minimum_is_kept_if_it_is_enough() -> None:
    assert planned(160) == {"a": 10, "b": 10}


def test_each_step_grows_the_stage_that_gains_most() -> None:
    # From 160 ms: a to 20 % gives 110, b to 20 % gives 130.
    assert planned(110) == {"a": 20, "b": 10}
    # From 110 ms: a to 30 % gives 93, b to 20 % gives 80.
    assert planned(109) == {"a": 20, "b": 20}
    # From 80 ms: a to 30 % gives 63, b to 30 % gives 70.
    assert planned(79) == {"a": 30, "b": 20}


def test_batches_and_cores_that_gain_nothing_stay_at_their_minimum() -> None:
    plan = OrionPlanner(market(CURVES)).plan(workflow("w", 50, STAGES))
    assert {(c.batch, c.cpus) for c in plan.values()} == {(1, 1)}


def test_a_scatter_asks_for_larger_sizes() -> None:
    # 110 ms in the mean, but 6 ms more at the 95th percentile.
    assert planned(110, spread=0.05) == {"a": 20, "b": 20}


def test_a_target_out_of_reach_is_missed_by_as_little_as_can_be() -> None:
    planner = OrionPlanner(market({"a": curve({1: 10}, floor_ms=25), "b": curve({1: 6}, floor_ms=20)}))
    plan = planner.plan(workflow("w", 10, {"a": (1,), "b": (1,)}))
    assert {s: c.share_pct for s, c in plan.items()} == {"a": 40, "b": 30}, "more share would buy nothing"


def test_the_next_sizes_are_one_step_away() -> None:
    configs = [Config(b, c, s) for b in (1, 2) for c in (1, 2, 4) for s in (10, 20, 30)]
    assert next_sizes(Config(1, 1, 10), configs) == [Config(1, 1, 20), Config(1, 2, 10)]
    assert next_sizes(Config(1, 4, 30), configs) == []
    # Where a share is a number of cores, both grow together.
    assert next_sizes(Config(1, 1, 25), [Config(1, c, 25 * c) for c in (1, 2, 4)]) == [Config(1, 2, 50)]


def test_percentile_of_one_stage() -> None:
    sigma = math.sqrt(math.log1p(0.2**2))
    exact = 500 * math.exp(NormalDist(-sigma * sigma / 2, sigma).inv_cdf(0.95))
    assert Latency.log_normal(500, 0.2, 1).percentile(0.95) == pytest.approx(exact, abs=1)


def test_percentile_of_stages_behind_one_another() -> None:
    rng = np.random.default_rng(1)
    sigma = math.sqrt(math.log1p(0.2**2))
    runs = sum(mean * np.exp(rng.normal(-sigma * sigma / 2, sigma, 200_000)) for mean in (300, 500, 200))
    chained = (
        Latency.log_normal(300, 0.2, 1).then(Latency.log_normal(500, 0.2, 1)).then(Latency.log_normal(200, 0.2, 1))
    )
    assert chained.percentile(0.95) == pytest.approx(float(np.quantile(runs, 0.95)), rel=0.005)
    assert chained.mass.sum() == pytest.approx(1)


def test_percentile_of_branches_that_join() -> None:
    one = Latency.log_normal(500, 0.2, 1)
    # Both are done by then if each is, so each has to be with the square root of the probability.
    assert one.joined(one).percentile(0.95) == pytest.approx(one.percentile(math.sqrt(0.95)), abs=1)
    late = Latency.log_normal(5000, 0.0, 1)
    assert one.joined(late).percentile(0.5) == 5000


def test_the_shorter_branch_of_a_graph_is_left_alone() -> None:
    m = market({"a": curve({1: 1}), "b": curve({1: 10}), "c": curve({1: 2}), "d": curve({1: 1})})
    after = {"b": ["a"], "c": ["a"], "d": ["b", "c"]}
    plan = OrionPlanner(m).plan(workflow("w", 80, dict.fromkeys("abcd", (1,)), after))
    # 10 + 100 + 10 ms along b; c needs 20 of its 100 ms.
    assert {s: c.share_pct for s, c in plan.items()} == {"a": 10, "b": 20, "c": 10, "d": 10}
