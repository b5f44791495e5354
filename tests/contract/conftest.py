"""Every test of this folder runs in each set-up that it has a meaning in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.observed import Observed
from tests.contract.stages import make_stages
from tests.contract.worlds import SETUPS, Setup, make_world, params

from dovetail.workflow.graph import StageSpec


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StageSpec]:
    return make_stages(tmp_path_factory.mktemp("models"))


class Workers:
    """One worker of a set-up serves all tests: laws must hold whatever it did before, and starting one takes time."""

    def __init__(self, stages: dict[str, StageSpec]) -> None:
        self._stages = stages
        self._made: dict[Setup, Observed] = {}

    def of(self, setup: Setup) -> Observed:
        if setup not in self._made:
            self._made[setup] = Observed(setup, make_world(setup, self._stages), self._stages)
        return self._made[setup]

    def settle(self, observed: Observed) -> None:
        """Between two tests. One that cannot be settled is not used again."""
        try:
            observed.settle()
        except BaseException:
            self._made.pop(observed.setup).world.close()
            raise

    def close(self) -> None:
        for observed in self._made.values():
            observed.world.close()


@pytest.fixture(scope="session")
def workers(stages: dict[str, StageSpec]) -> Iterator[Workers]:
    made = Workers(stages)
    yield made
    made.close()


@pytest.fixture(params=params(SETUPS))
def setup(request: pytest.FixtureRequest) -> Setup:
    found: Setup = request.param
    return found


@pytest.fixture(params=[0, 1], ids=["only ingress", "second ingress"])
def worker(request: pytest.FixtureRequest, setup: Setup, workers: Workers) -> Iterator[Observed]:
    """A worker that is asked by the ingress that has started it, and is alone; or by another one that has joined."""
    observed = workers.of(setup)
    if request.param:
        observed.join(1)
    else:
        observed.leave(1)
    observed.ingress = request.param
    yield observed
    workers.settle(observed)


@pytest.fixture
def shared(setup: Setup, workers: Workers) -> Iterator[Observed]:
    """A worker with two ingresses, both of which ask."""
    observed = workers.of(setup)
    observed.ingress = 0
    observed.join(1)
    yield observed
    workers.settle(observed)
