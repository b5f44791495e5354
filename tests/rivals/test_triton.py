"""The rules of the policy like Triton's: batches, instances, slots, priorities, timeouts."""

from __future__ import annotations

import pytest
from tests.rivals.support import arrival, controller_of, curve, market, workflow

from dovetail.control import (
    Action,
    BatchFinished,
    Controller,
    ModelLoaded,
    Reject,
    RequestArrived,
    RunBatch,
    SetTimer,
    TimerFired,
    WorkerJoined,
)
from dovetail.lab.rivals.common import rival_policy
from dovetail.lab.rivals.triton import TritonPlanner, TritonSettings, batch_size
from dovetail.units import MS

READ = curve({1: 10, 4: 16})
GRAPH = workflow("w", 1000, {"read": (1, 4)})


@pytest.mark.parametrize(
    ("waiting", "oldest_ms", "sent"),
    [
        (1, 0, 0),  # no preferred size, and the delay is not over
        (1, 20, 1),  # it is
        (2, 0, 2),  # preferred
        (3, 0, 2),  # the largest preferred that can be formed, and not all
        (4, 0, 4),
        (9, 99, 4),  # no more than the model takes
    ],
)
def test_the_largest_preferred_batch_or_after_the_delay_all(waiting: int, oldest_ms: int, sent: int) -> None:
    assert batch_size(waiting, oldest_ms * MS, (1, 4), (2, 4), 20 * MS) == sent


def test_without_preferred_sizes_within_reach_all_goes_after_the_delay_up_to_the_largest() -> None:
    assert batch_size(3, 20 * MS, (1, 4), (4,), 20 * MS) == 3
    assert batch_size(3, 19 * MS, (1, 4), (4,), 20 * MS) == 0


def play(settings: TritonSettings, workers: int = 1, curves: tuple[str, ...] = ("read",)) -> Controller:
    graphs = [workflow(f"w{name}", 1000, {name: (1, 4)}) for name in curves]
    return controller_of(TritonPlanner(market(dict.fromkeys(curves, READ)), settings), graphs, workers)


def runs(actions: list[Action]) -> list[RunBatch]:
    return [action for action in actions if isinstance(action, RunBatch)]


def test_an_instance_runs_one_batch_at_a_time_and_the_next_takes_all_that_waits() -> None:
    controller = play(TritonSettings(slots=2))
    first = runs(controller.step(arrival(0, 1)))
    assert [(run.share_pct, len(run.items)) for run in first] == [(50, 1)]
    assert not runs(controller.step(arrival(1, 2))) + runs(controller.step(arrival(2, 3)))
    after = runs(controller.step(BatchFinished(20 * MS, 0, first[0].batch, 0, 20 * MS)))
    assert [len(run.items) for run in after] == [2]


def test_two_instances_run_two_batches() -> None:
    controller = play(TritonSettings(slots=2, instances=2))
    assert len(runs(controller.step(arrival(0, 1)))) == len(runs(controller.step(arrival(1, 2)))) == 1
    assert not runs(controller.step(arrival(2, 3)))


def test_models_run_beside_each_other_as_far_as_there_are_slots() -> None:
    controller = play(TritonSettings(slots=2), curves=("read", "tell", "look"))
    started = [run for i in range(3) for run in runs(controller.step(arrival(i, i + 1, i)))]
    assert [run.stage for run in started] == ["read", "tell"]


def test_a_batch_goes_to_the_device_with_most_room() -> None:
    controller = play(TritonSettings(slots=2, instances=2), workers=2)
    started = [run for i in range(4) for run in runs(controller.step(arrival(i, i + 1)))]
    assert [run.worker for run in started] == [1, 2, 1, 2]


def test_the_delay_is_declared_and_over_in_time() -> None:
    controller = play(TritonSettings(slots=2, delay_ns=30 * MS))
    (timer,) = [a for a in controller.step(arrival(5, 1)) if isinstance(a, SetTimer)]
    assert timer.at_ns == 35 * MS
    assert len(runs(controller.step(TimerFired(35 * MS, 0, timer.timer)))) == 1


@pytest.mark.parametrize(("priorities", "first"), [(True, 3), (False, 2)])
def test_priorities_order_the_queue_of_a_model(priorities: bool, first: int) -> None:
    controller = play(TritonSettings(slots=1, priorities=priorities))
    (busy,) = runs(controller.step(arrival(0, 1)))
    controller.step(RequestArrived(1 * MS, 0, 2, 0, 2))
    controller.step(RequestArrived(2 * MS, 0, 3, 0, 1))
    (after,) = runs(controller.step(BatchFinished(9 * MS, 0, busy.batch, 0, 9 * MS)))
    assert after.items[0][0] == first


def test_who_was_in_a_queue_for_too_long_is_rejected() -> None:
    planner = TritonPlanner(market({"read": READ}), TritonSettings(slots=1, timeout=0.5))
    controller = Controller([GRAPH], rival_policy(planner))
    controller.step(WorkerJoined(0, 0, 1, planner.market.worker(GRAPH.stages[0])))
    controller.step(ModelLoaded(0, 0, 1, "read", 0))
    (busy,) = runs(controller.step(arrival(0, 1)))
    controller.step(arrival(10, 2))
    controller.step(arrival(11, 3))
    rejected = [a for a in controller.step(arrival(510, 4)) if isinstance(a, Reject)]
    assert [a.request for a in rejected] == [2], "its half second is over, that of the third is not"
    assert busy.items[0][0] == 1, "what runs is not given up"


def test_without_a_timeout_nobody_is_rejected() -> None:
    controller = controller_of(TritonPlanner(market({"read": READ}), TritonSettings(timeout=0)), [GRAPH], 1)
    for i in range(1, 9):
        controller.step(arrival(0, i))
    assert controller.policy.scheduler.hopeless(10**12) == []
    assert not [a for a in controller.step(arrival(5000, 99)) if isinstance(a, Reject)]
