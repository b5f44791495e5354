"""Best fit: the tightest worker; and where models do not all fit, one that holds the model, if that is sooner."""

from __future__ import annotations

import pytest

from dovetail.place import BestFitPlacer
from dovetail.predict import Estimator
from dovetail.profile.table import ProfileTable
from dovetail.state import Batch, Config, Queue, Worker, WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

READ = StageSpec("read", "model", (1,), model="read", weights_bytes=1000)
SORT = StageSpec("sort", "model", (1,), model="sort", weights_bytes=1000)
HALF = Config(1, 1, 50)
LOAD_NS = 40 * MS


def placer() -> BestFitPlacer:
    return BestFitPlacer(Estimator(ProfileTable([]), load_ns=lambda nbytes: LOAD_NS))


def workers(*free_pct: int, swaps: bool = True) -> dict[int, Worker]:
    made = {}
    for ident, free in enumerate(free_pct, 1):
        worker = made[ident] = Worker(ident, WorkerSpec(f"gpu{ident}", "gpu", ("model",)))
        worker.free_pct, worker.swaps = free, swaps
    return made


def runs(worker: Worker, stage: StageSpec, left_ns: int) -> None:
    """Something runs there that has so long to go."""
    worker.running[9] = Batch(9, Queue(stage.name, stage), worker, HALF, [], 0, left_ns)


def chosen(found: dict[int, Worker], stage: StageSpec = READ) -> int | None:
    worker = placer().choose(Queue(stage.name, stage), HALF, found, 0)
    return None if worker is None else worker.id


def test_the_tightest_that_has_room_the_first_of_equals() -> None:
    assert chosen(workers(100, 60, 60, 40, swaps=False)) == 2
    assert chosen(workers(40, 49, swaps=False)) is None


def test_one_that_holds_the_model_goes_before_a_tighter_one_that_does_not() -> None:
    found = workers(60, 100)
    assert chosen(found) == 1
    found[2].resident["read"] = 1000
    assert chosen(found) == 2


def test_who_is_fetching_the_model_counts_as_holding_it() -> None:
    found = workers(60, 100)
    runs(found[2], READ, 1 * MS)
    assert chosen(found) == 2
    assert chosen(found, SORT) == 1


@pytest.mark.parametrize(("left_ns", "expected"), [(LOAD_NS - 1, None), (LOAD_NS, 2)])
def test_a_batch_waits_for_a_busy_holder_only_if_that_is_sooner_than_a_fetch(left_ns, expected) -> None:
    found = workers(0, 100)
    found[1].resident["read"] = 1000
    runs(found[1], READ, left_ns)
    assert chosen(found) == expected


def test_what_needs_no_model_is_not_held_up_by_that() -> None:
    plain = StageSpec("plain", "model", (1,), model="plain")
    found = workers(0, 100)
    runs(found[1], plain, 1 * MS)
    assert chosen(found, plain) == 2


def test_of_several_busy_holders_the_first_to_be_free_counts() -> None:
    found = workers(0, 0, 100)
    for ident, left_ns in ((1, 9 * LOAD_NS), (2, LOAD_NS - 1)):
        found[ident].resident["read"] = 1000
        runs(found[ident], READ, left_ns)
    assert chosen(found) is None
