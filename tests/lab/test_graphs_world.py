"""Random graphs: what their number says, and that devices scatter otherwise than policies believe."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.lab.experiments.esg_world import KIND, SLICE_PCT
from dovetail.lab.experiments.graphs import HEAD_ROOM, Job, make_policy, simulate
from dovetail.lab.experiments.graphs_world import (
    FACTORS,
    ROOM,
    SCATTERS,
    GraphWorld,
    random_edges,
    recipe_of,
    usable_models,
)
from dovetail.plan.dominators import successors_of
from dovetail.plan.series_parallel import Tangle, decompose


@given(st.integers(0, 10_000), st.integers(4, 8), st.booleans())
def test_edges_lead_forward_every_graph_forks_and_nobody_works_for_nothing(
    seed: int, stages: int, series_parallel: bool
) -> None:
    before = random_edges(random.Random(seed), stages, series_parallel)
    assert len(before) == stages
    assert all(0 <= j < i for i, row in enumerate(before) for j in row)
    followed = [sum(j in row for row in before) for j in range(stages)]
    assert max(followed) > 1 or sum(not row for row in before) > 1
    if series_parallel:
        after = [[i for i, row in enumerate(before) if j in row] for j in range(stages)]
        assert not any(isinstance(part, Tangle) for part in decompose(after).parts)


def test_a_number_is_a_graph() -> None:
    assert recipe_of(1003) == recipe_of(1003)
    assert recipe_of(1003) != recipe_of(1004)
    recipes = [recipe_of(n) for n in range(20)]
    assert {r.factor for r in recipes} == set(FACTORS) and (min(FACTORS), max(FACTORS)) == (0.7, 2.0)
    assert {(r.believed, r.true) for r in recipes} == set(SCATTERS)
    assert sum(r.series_parallel for r in recipes) == 10


def test_objectives_are_multiples_of_the_minimum_configuration_and_can_be_met() -> None:
    for number in range(1000, 1006):
        recipe = recipe_of(number)
        world = GraphWorld(recipe)
        assert world.graph.slo_ns == round(recipe.factor * world.length_ns(1, SLICE_PCT))
        assert world.length_ns(1, 7 * SLICE_PCT) <= ROOM * world.graph.slo_ns
        assert set(recipe.models.values()) <= set(usable_models())
        assert sum(map(len, successors_of(world.graph))) >= len(recipe.after) - 2


def test_policies_believe_one_scatter_and_devices_have_another() -> None:
    world = GraphWorld(recipe_of(1004))
    stage = next(iter(world.recipe.models))
    assert (world.table.entries[stage, KIND].spread, world.true_table.entries[stage, KIND].spread) == (0.05, 0.20)
    assert make_policy(world, "dovetail").predictor.table is world.table  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["dovetail", HEAD_ROOM, "orion"])
def test_a_run_is_the_same_again(policy: str) -> None:
    job = Job(1000, policy, (101, 102), 40)
    first, second = simulate(job)
    assert [first, second] == simulate(job)
    assert first != second
    assert 0.0 <= first.hit_rate <= 1.0 and first.requests > 0
