"""The worker contract: answers. The controller relies on every line of it, and on nothing else that a worker does.

That every batch is answered exactly once, inside its window, is checked of each batch of every test (`Observed`).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.contract.observed import Key, Observed
from tests.contract.stages import TIMES_NS, WIDTH
from tests.contract.worlds import SETUPS, params

from dovetail.control import BatchFailed, BatchFinished
from dovetail.units import MS

#: A simulated device has no values.
with_values = pytest.mark.parametrize("setup", params(s for s in SETUPS if s.kind != "simulated"), indirect=True)
live = pytest.mark.parametrize("setup", params(s for s in SETUPS if s.kind == "live"), indirect=True)
emulated = pytest.mark.parametrize("setup", params(s for s in SETUPS if s.kind == "emulated"), indirect=True)
#: A real one has no profile.
profiled = pytest.mark.parametrize("setup", params(s for s in SETUPS if s.kind != "live"), indirect=True)


def test_every_batch_is_answered_exactly_once(worker: Observed) -> None:
    past = worker.world.now_ns() - 1
    asked = [worker.run("quick", items=1 + i % 4, share_pct=(100, 30, 50)[i % 3]) for i in range(12)]
    late, unknown = worker.run("quick", latest_ns=past), worker.run("unknown")
    asked.append(worker.run("slow", share_pct=10))
    worker.until_answered()
    assert all(isinstance(worker.answers[key], BatchFinished) for key in asked)
    assert worker.answers[late].reason == "too_late"
    assert worker.answers[unknown].reason == "not_loaded" and "'unknown'" in worker.answers[unknown].detail


def test_a_share_that_no_device_has_is_refused(worker: Observed) -> None:
    for share_pct in (0, 101):
        assert worker.answer("quick", share_pct=share_pct).reason == "no_share"


def test_a_batch_begins_inside_its_window(worker: Observed) -> None:
    earliest_ns = worker.world.now_ns() + 20 * MS
    event = worker.answer(earliest_ns=earliest_ns, latest_ns=earliest_ns + 10_000 * MS)
    assert isinstance(event, BatchFinished) and event.begin_ns >= earliest_ns


def test_a_batch_whose_window_has_closed_is_refused_without_running(worker: Observed) -> None:
    event = worker.answer(latest_ns=worker.world.now_ns() - 1)
    assert isinstance(event, BatchFailed) and event.reason == "too_late"


def test_a_batch_that_waits_until_its_window_has_closed_is_refused(worker: Observed) -> None:
    # The window is counted from before the first was sent: however late the second comes, it is no longer than that.
    closes_ns = worker.world.now_ns() + 1 * MS
    first, second = worker.run("slow"), worker.run("quick", latest_ns=closes_ns)
    worker.until_answered()
    assert isinstance(worker.answers[first], BatchFinished)
    assert worker.answers[second].reason == "too_late"


def test_whole_batches_run_one_after_the_other_as_they_came(worker: Observed) -> None:
    worker.answer("quick")
    asked = [worker.run("quick") for _ in range(6)]
    worker.until_answered()
    assert worker.order(asked) == asked
    for before, after in pairwise(asked):
        assert worker.answers[after].begin_ns >= worker.answers[before].end_ns


def test_what_does_not_fit_beside_others_lets_nobody_pass(worker: Observed) -> None:
    # The third would fit beside the first, but it comes after the second, which does not.
    worker.answer("slow")
    first, second, third = (worker.run("slow", share_pct=share) for share in (60, 60, 30))
    worker.until_answered()
    assert worker.answers[second].begin_ns >= worker.answers[first].end_ns
    assert worker.answers[third].begin_ns >= worker.answers[first].end_ns


def test_of_one_class_smaller_orders_start_first_then_earlier_objectives_and_those_without_one_last(
    worker: Observed,
) -> None:
    wanted = [(3, 0), (1, 30_000), (0, 0), (1, 90_000), (1, 0), (2, 0), (1, 60_000)]

    def ask() -> list[Key]:
        now_ns = worker.world.now_ns()
        objectives_ns = [now_ns + ms * MS if ms else 0 for _, ms in wanted]
        return [
            worker.run("quick", priority=2, order=order, objective_ns=objective_ns)
            for (order, _), objective_ns in zip(wanted, objectives_ns, strict=True)
        ]

    worker.answer("quick")
    first, asked = worker.while_busy(ask)
    assert worker.order([*first, *asked]) == [*first, *(asked[i] for i in (2, 1, 6, 3, 4, 5, 0))]


@pytest.mark.parametrize("items", [1, 2, 8])
def test_counts_are_reported_for_each_item(worker: Observed, items: int) -> None:
    assert worker.answer("quick", items=items).counts == (WIDTH,) * items


# -- values --------------------------------------------------------------------------------------------------------


@with_values
@pytest.mark.parametrize("items", [1, 3, 8])
def test_every_item_has_a_result(worker: Observed, items: int) -> None:
    key = worker.run("slow", items=items)
    worker.until_answered()
    results = worker.world.results[key]
    assert [r.shape for r in results] == [(WIDTH,)] * items


@with_values
def test_a_stage_that_raises_is_named_and_the_worker_goes_on(worker: Observed) -> None:
    # An emulated device looks at the first input of a stage, and then never again.
    bad = np.zeros((2, 2), np.float32)
    event = worker.answer("fragile", items=2, value=bad)
    if worker.setup.kind == "live" or not isinstance(event, BatchFinished):
        assert isinstance(event, BatchFailed)
        assert event.reason == "error" and "'fragile'" in event.detail
    assert isinstance(worker.answer("quick"), BatchFinished)
    assert isinstance(worker.answer("fragile"), BatchFinished)


@live
def test_results_are_those_of_the_model(worker: Observed) -> None:
    quick, slow = worker.run("quick", items=4), worker.run("slow", items=4)
    worker.until_answered()
    np.testing.assert_array_equal(worker.world.results[quick], [[2 * (i + 1)] * WIDTH for i in range(4)])
    np.testing.assert_array_equal(worker.world.results[slow], [[i + 1] * WIDTH for i in range(4)])


@emulated
def test_results_of_an_emulated_device_are_those_of_its_first_input(worker: Observed) -> None:
    first, again = worker.run("quick", items=2), worker.run("quick", value=np.float32([7, 7, 7]))
    worker.until_answered()
    np.testing.assert_array_equal(worker.world.results[first][1], worker.world.results[again][0])


@profiled
def test_a_profiled_device_takes_the_time_of_its_profile(worker: Observed) -> None:
    exact = worker.setup.kind == "simulated"
    least: dict[str, int] = {}
    for stage in ("quick", "slow"):
        for items, expected_ns in TIMES_NS[stage].items():
            events = [worker.answer(stage, items=items) for _ in range(3)]
            took = [e.end_ns - e.begin_ns for e in events]
            # Later than the profile is the machine's fault; earlier would be ours.
            assert set(took) == {expected_ns} if exact else min(took) >= expected_ns
            least[f"{stage} {items}"] = min(took)
    assert least["quick 1"] < least["slow 1"] < least["slow 8"]
