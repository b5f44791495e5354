from __future__ import annotations

import pytest
from tests.rivals.support import curve, market, workflow

from dovetail.errors import ProfileError
from dovetail.lab.rivals.common import longest_path, slo_shares
from dovetail.state import Config
from dovetail.units import MS


def test_a_chain_splits_its_objective_by_minimum_times() -> None:
    # At 10 % of a device: 100, 300 and 100 ms.
    m = market({"a": curve({1: 10}), "b": curve({1: 30}), "c": curve({1: 10})})
    graph = workflow("w", 400, {"a": (1,), "b": (1,), "c": (1,)})
    assert slo_shares(graph, m) == {"a": 80 * MS, "b": 240 * MS, "c": 80 * MS}


def test_no_path_through_a_graph_gets_more_than_the_objective() -> None:
    # a, then b (300 ms) beside c (100 ms), then d: the longest path takes 500 ms.
    m = market({"a": curve({1: 10}), "b": curve({1: 30}), "c": curve({1: 10}), "d": curve({1: 10})})
    stages = {"a": (1,), "b": (1,), "c": (1,), "d": (1,)}
    graph = workflow("w", 1000, stages, {"b": ["a"], "c": ["a"], "d": ["b", "c"]})
    shares = slo_shares(graph, m)
    assert shares == {"a": 200 * MS, "b": 600 * MS, "c": 200 * MS, "d": 200 * MS}
    assert longest_path(graph, [shares[n.stage] for n in graph.nodes]) == 1000 * MS


def test_the_minimum_configuration_is_the_smallest_of_everything() -> None:
    m = market({"a": curve({1: 10, 2: 15})}, cpus=(2, 1), shares_pct=(30, 20))
    stage = workflow("w", 100, {"a": (2, 1)}).stages[0]
    assert m.least(stage) == Config(1, 1, 20)


def test_a_configuration_pays_for_its_share_and_its_cores() -> None:
    m = market({"a": curve({1: 10})})
    stage = workflow("w", 100, {"a": (1,)}).stages[0]
    assert m.usd_per_ns(stage, Config(1, 2, 50)) * 3600e9 == pytest.approx(0.5 * 2.0 + 2 * 0.1)


def test_a_stage_without_a_profile_is_named() -> None:
    m = market({"a": curve({1: 10})})
    stage = workflow("w", 100, {"other": (1,)}).stages[0]
    with pytest.raises(ProfileError, match="'other' has no profile on 'gpu'"):
        m.time_ns(stage, Config(1, 1, 10))
