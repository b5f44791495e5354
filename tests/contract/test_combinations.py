"""Memory, shares, kernels, classes and several ingresses at once: every combination keeps the contract."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from tests.contract.sim_world import World, make_heavy_stages
from tests.contract.worlds import KEPT_BYTES, SIMULATED, make_world

from dovetail.control import BatchFailed, BatchFinished, Event, ModelEvicted, ModelLoaded
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

#: Batches of each ingress.
BATCHES = 40


@pytest.fixture(scope="module")
def heavy_stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StageSpec]:
    return make_heavy_stages(tmp_path_factory.mktemp("heavy"))


class Worker:
    """A world, and the laws about memory and answers, which are checked as it speaks."""

    def __init__(self, name: str, stages: dict[str, StageSpec], budget_bytes: int) -> None:
        self.world: World = make_world(name, stages, budget_bytes)
        self._stages = stages
        self._budget_bytes = budget_bytes or 1 << 62
        self._resident: dict[str, int] = {}

    def run(self, batch: int, stage: str, **options: int) -> None:
        self.world.run(batch, stage, **options)  # type: ignore[arg-type]

    def hear_all(self, asked: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Any]:
        """The answer to every batch, by ingress and number."""
        missing, found = set(asked), {}
        while missing:
            event: Event = self.world.next_event()
            if isinstance(event, ModelLoaded):
                self._resident[self._stages[event.stage].weights] = event.nbytes
                assert sum(self._resident.values()) <= self._budget_bytes
            elif isinstance(event, ModelEvicted):
                del self._resident[event.weights]
            else:
                assert isinstance(event, BatchFinished | BatchFailed)
                missing.remove((event.ingress, event.batch))  # KeyError: answered twice, or never asked for
                found[event.ingress, event.batch] = event
        return found


@pytest.fixture(params=[False, True], ids=["ample memory", "scarce memory"])
def scarce(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=SIMULATED)
def worker(request: pytest.FixtureRequest, heavy_stages: dict[str, StageSpec], scarce: bool) -> Iterator[Worker]:
    made = Worker(request.param, heavy_stages, KEPT_BYTES[request.param] if scarce else 0)
    yield made
    made.world.close()


@pytest.mark.parametrize("shares", [(100,), (100, 50, 30)], ids=["whole", "shares"])
@pytest.mark.parametrize("ingresses", [1, 2])
@pytest.mark.parametrize("classes", [1, 3])
def test_every_batch_of_every_ingress_is_answered_once_and_to_whom_it_belongs(
    worker: Worker, shares: tuple[int, ...], ingresses: int, classes: int
) -> None:
    chance = random.Random(7)
    asked: dict[tuple[int, int], str] = {}
    for batch in range(1, BATCHES + 1):
        for ingress in range(ingresses):
            stage = chance.choice(["quick", "slow", "a", "b", "c"])
            asked[ingress, batch] = stage
            options = {"share_pct": chance.choice(shares), "priority": chance.randint(1, classes)}
            worker.run(batch, stage, ingress=ingress, items=chance.randint(1, 4), **options)
    found = worker.hear_all(asked)
    assert set(found) == set(asked)
    assert all(isinstance(event, BatchFinished) for event in found.values())


@pytest.mark.parametrize("ingresses", [1, 2])
def test_what_runs_at_a_time_never_asks_for_more_than_the_device(worker: Worker, ingresses: int) -> None:
    """Of one class, so that none is stopped in between and begin and end say when it ran."""
    chance = random.Random(11)
    shares: dict[tuple[int, int], int] = {}
    for batch in range(1, BATCHES + 1):
        for ingress in range(ingresses):
            shares[ingress, batch] = chance.choice((100, 60, 50, 30, 10))
            worker.run(batch, chance.choice(["quick", "a", "b"]), ingress=ingress, share_pct=shares[ingress, batch])
    found = worker.hear_all(shares)
    runs = [(e.begin_ns, e.end_ns, shares[key]) for key, e in found.items()]
    for begin, _, _ in runs:
        assert sum(share for other, end, share in runs if other <= begin < end) <= 100


def test_a_higher_class_of_one_ingress_goes_before_a_lower_one_of_another(worker: Worker) -> None:
    worker.run(1, "slow", ingress=1, priority=3)
    asked: dict[tuple[int, int], None] = {(1, 1): None}
    for batch in range(2, 8):
        asked[1, batch] = asked[0, batch] = None
        worker.run(batch, "slow", ingress=1, priority=3)
        worker.run(batch, "slow", ingress=0, priority=1)
    found = worker.hear_all(asked)
    high_end = max(e.end_ns for (ingress, _), e in found.items() if ingress == 0)
    low_begin = min(e.begin_ns for (ingress, batch), e in found.items() if ingress == 1 and batch > 1)
    assert high_end <= low_begin


def test_a_window_is_kept_whatever_else_there_is(worker: Worker) -> None:
    late = {(0, 1): 1 * MS, (1, 1): 2 * MS}
    worker.run(9, "slow", priority=1)
    for (ingress, batch), latest_ns in late.items():
        worker.run(batch, "quick", ingress=ingress, priority=2, latest_ns=worker.world.now_ns() + latest_ns)
    found = worker.hear_all({(0, 9): None, **late})
    assert isinstance(found[0, 9], BatchFinished)
    assert {found[key].reason for key in late} == {"too_late"}
