"""The rules of the policy like Ray Serve's: two choices, ongoing requests, batches with a wait, full routers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rivals.support import arrival, controller_of, curve, market, workflow

from dovetail.control import Action, BatchFinished, Controller, Reject, RunBatch, SetTimer, TimerFired, WorkerLost
from dovetail.control.validate import validate
from dovetail.lab.rivals.ray_serve import RayServePlanner, RayServeSettings, two_of
from dovetail.units import MS

READ = curve({1: 10, 4: 16})
GRAPH = workflow("w", 1000, {"read": (1, 4)})


@given(st.integers(0, 9), st.integers(0, 999), st.integers(2, 9))
def test_two_different_ones_are_picked(seed: int, draw: int, count: int) -> None:
    first, second = two_of(seed, draw, count)
    assert first != second
    assert 0 <= min(first, second) <= max(first, second) < count


def test_all_are_picked_in_the_end_and_one_alone_is_picked_twice() -> None:
    assert {worker for draw in range(50) for worker in two_of(0, draw, 5)} == set(range(5))
    assert two_of(0, 7, 1) == (0, 0)


def play(workers: int = 1, *, max_ongoing: int = 5, max_queued: int = 0, **settings: int) -> Controller:
    told = RayServeSettings(max_ongoing=max_ongoing, max_queued=max_queued, **settings)
    planner = RayServePlanner(market({"read": READ}), told)
    return controller_of(planner, [GRAPH], workers)


def runs(actions: list[Action]) -> list[RunBatch]:
    return [action for action in actions if isinstance(action, RunBatch)]


def test_a_batch_waits_for_its_time_and_then_goes_with_what_there_is() -> None:
    controller = play(wait_ns=10 * MS, share_pct=50)
    (timer,) = [a for a in controller.step(arrival(3, 1)) if isinstance(a, SetTimer)]
    assert timer.at_ns == 13 * MS
    assert not runs(controller.step(arrival(5, 2)))
    (run,) = runs(controller.step(TimerFired(13 * MS, 0, timer.timer)))
    assert (len(run.items), run.share_pct) == (2, 50)


def test_a_full_batch_does_not_wait() -> None:
    controller = play(wait_ns=10 * MS)
    started = [run for i in range(4) for run in runs(controller.step(arrival(i, i + 1)))]
    assert [len(run.items) for run in started] == [4]


def test_a_replica_runs_one_batch_at_a_time() -> None:
    controller = play(wait_ns=0, share_pct=25)
    (first,) = runs(controller.step(arrival(0, 1)))
    assert not runs(controller.step(arrival(1, 2)))
    (second,) = runs(controller.step(BatchFinished(9 * MS, 0, first.batch, 0, 9 * MS)))
    assert second.items[0][0] == 2


def test_the_shorter_of_two_queues_wins() -> None:
    """With two replicas both are always picked: work alternates between them."""
    controller = play(2, wait_ns=0)
    started = [run for i in range(2) for run in runs(controller.step(arrival(i, i + 1)))]
    assert sorted(run.worker for run in started) == [1, 2]


def test_a_replica_takes_no_more_than_its_ongoing_requests() -> None:
    controller = play(wait_ns=0, max_ongoing=2)
    (first,) = runs(controller.step(arrival(0, 1)))
    for i in range(2, 5):
        controller.step(arrival(i, i))
    # One runs and one waits in the replica; two wait at the router, though the batch had room for all three.
    (second,) = runs(controller.step(BatchFinished(9 * MS, 0, first.batch, 0, 9 * MS)))
    assert len(second.items) == 2, "the one that waited there, and one that the end of the first has let in"


@pytest.mark.parametrize(("max_queued", "refused"), [(0, []), (1, [3, 4, 5]), (2, [4, 5])])
def test_a_full_router_refuses(max_queued: int, refused: list[int]) -> None:
    controller = play(wait_ns=0, max_ongoing=1, max_queued=max_queued)
    done = [action for i in range(1, 6) for action in controller.step(arrival(i, i)) if isinstance(action, Reject)]
    assert [action.request for action in done] == refused


def test_what_waits_in_a_lost_replica_is_served_by_another() -> None:
    controller = play(2, wait_ns=50 * MS)
    for i in range(1, 4):
        controller.step(arrival(i, i))
    controller.step(WorkerLost(10 * MS, 0, 1, "gone"))
    validate(controller)
    started = runs(controller.step(arrival(90, 9)))
    assert [(run.worker, len(run.items)) for run in started] == [(2, 4)]


def test_who_finds_two_full_replicas_picks_again() -> None:
    for seed in range(10):
        told = RayServeSettings(max_ongoing=2, max_queued=0)
        planner = RayServePlanner(market({"read": READ}), told, seed=seed)
        queue = controller_of(planner, [GRAPH], 3).queues["read"]
        deployment = planner._deployment(queue)
        deployment.waiting[1].extend([0, 0])
        deployment.waiting[2].extend([0, 0])
        deployment.router.append(0)
        planner._route(queue, deployment)
        assert [len(row) for row in deployment.waiting.values()] == [2, 2, 1]
