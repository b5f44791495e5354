"""Every test of this folder runs in each world."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.sim_world import World, make_long_stage, make_stages
from tests.contract.worlds import CPU, EMULATED, KERNELLED, SIMULATED, make_world

from dovetail.workflow.graph import StageSpec


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StageSpec]:
    directory = tmp_path_factory.mktemp("models")
    return make_stages(directory) | make_long_stage(directory)


# One worker serves all tests of a module: laws must hold whatever it did before, and starting one takes a second.
@pytest.fixture(scope="module", params=[*SIMULATED, CPU, KERNELLED, EMULATED])
def shared_world(request: pytest.FixtureRequest, stages: dict[str, StageSpec]) -> Iterator[World]:
    world = make_world(request.param, stages)
    yield world
    world.close()


@pytest.fixture
def world(shared_world: World) -> World:
    """A worker that holds both models and has nothing to do."""
    for stage in ("quick", "slow"):
        shared_world.load(stage)
        shared_world.next_event()
    return shared_world
