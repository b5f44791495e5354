"""The worker contract: classes and kernels, with memory and shares at the same time.

Where a batch is several kernels, a higher class waits for one of them; where it is one, for the whole batch. What was
stopped goes on, on the model that it began with, and nothing of it is lost.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.contract.observed import TRIES, Key, Observed
from tests.contract.stages import WIDTH
from tests.contract.worlds import SETUPS, params

from dovetail.control import BatchFailed, BatchFinished, ModelLoaded
from dovetail.units import MS

by_kernel = pytest.mark.parametrize("setup", params(s for s in SETUPS if s.kernels), indirect=True)
whole = pytest.mark.parametrize("setup", params(s for s in SETUPS if not s.kernels), indirect=True)


def meet(worker: Observed, stage: str, low_pct: int, high_pct: int) -> tuple[Key, Key]:
    """A batch of a low class that has begun when one of a high class comes, which could not run beside it."""
    later_ns = 20 * MS
    for _ in range(TRIES):
        sent_ns = worker.world.now_ns()
        low = worker.run("long", items=4, priority=3, share_pct=low_pct)
        # It may start some time later, so that the other one has begun.
        high = worker.run(stage, priority=1, share_pct=high_pct, earliest_ns=sent_ns + later_ns)
        worker.until_answered(low, high)
        begun, ended = worker.answers[low].begin_ns, worker.answers[low].end_ns
        if begun <= sent_ns + later_ns < ended:
            return low, high
        # The low one had ended, or both were read late: the law says nothing.
        later_ns = max(MS, later_ns // 2) if ended <= sent_ns + later_ns else 2 * later_ns
    raise AssertionError("they never met")


@by_kernel
@pytest.mark.parametrize(("low_pct", "high_pct"), [(100, 100), (60, 60), (100, 10)])
def test_a_higher_class_takes_the_device_from_a_batch_that_has_begun(
    worker: Observed, low_pct: int, high_pct: int
) -> None:
    for stage in ("long", "quick"):
        worker.answer(stage)
    low, high = meet(worker, "quick", low_pct, high_pct)
    assert worker.order([low, high]) == [high, low]
    assert worker.answers[high].end_ns <= worker.answers[low].end_ns
    stopped = worker.answers[low]
    assert 0 < stopped.busy_ns <= stopped.end_ns - stopped.begin_ns
    if worker.setup.kind == "live":
        np.testing.assert_array_equal(worker.world.results[low], [[i + 1] * WIDTH for i in range(4)])


@by_kernel
def test_so_it_does_if_its_model_has_to_come_first_and_others_have_to_go_for_it(worker: Observed) -> None:
    """The model of the batch that was stopped stays: it is in use."""
    worker.load("long")
    worker.until_told(ModelLoaded, "long")
    for stage in ("a", "b"):
        worker.answer(stage)
    worker.mine.evictions.clear()
    low, high = meet(worker, "c", 100, 60)
    worker.evict("long")
    assert isinstance(worker.answers[high], BatchFinished) and isinstance(worker.answers[low], BatchFinished)
    gone = {e.weights for e in worker.mine.evictions}
    assert not gone & worker.weights("long")
    assert not worker.setup.scarce or gone & worker.weights("a", "b", "c")


@whole
def test_a_batch_that_is_one_kernel_is_not_stopped(worker: Observed) -> None:
    for stage in ("long", "quick"):
        worker.answer(stage)
    low, high = meet(worker, "quick", 100, 100)
    assert worker.order([low, high]) == [low, high]
    assert worker.answers[high].begin_ns >= worker.answers[low].end_ns


def test_higher_classes_go_first(worker: Observed) -> None:
    worker.answer("quick")
    first, asked = worker.while_busy(lambda: [worker.run("quick", priority=p) for p in (4, 3, 2, 3, 2)])
    assert worker.order([*first, *asked]) == [*first, *(asked[i] for i in (2, 4, 1, 3, 0))]


def test_a_batch_whose_window_closes_while_a_higher_class_has_the_device_is_refused(worker: Observed) -> None:
    worker.answer("quick")
    closes_ns = worker.world.now_ns() + 1 * MS
    first = [worker.run("long") for _ in range(2)]
    late = worker.run("quick", latest_ns=closes_ns, priority=2)
    worker.until_answered()
    assert all(isinstance(worker.answers[key], BatchFinished) for key in first)
    assert worker.answers[late].reason == "too_late"


def test_of_many_batches_of_all_classes_each_is_answered_and_what_fails_touches_no_other(worker: Observed) -> None:
    chance = random.Random(3)
    worker.answer("fragile")
    # An emulated device has held the result by now, and a simulated one has none.
    fails = worker.setup.kind == "live"
    asked: dict[Key, str] = {}
    for _ in range(60):
        stage = chance.choice(["quick", "quick", "slow", "fragile", "unknown"])
        options: dict[str, Any] = {
            "items": chance.randint(1, 8),
            "priority": chance.randint(1, 4),
            "share_pct": chance.choice((100, 50)),
        }
        if stage == "fragile" and fails:
            options["value"] = np.zeros((2, 2), np.float32)
        if chance.random() < 0.1:
            options["latest_ns"] = worker.world.now_ns() - 1
        if chance.random() < 0.2:
            options["earliest_ns"] = worker.world.now_ns() + chance.randint(0, 20) * MS
        asked[worker.run(stage, **options)] = "late" if "latest_ns" in options else stage
    worker.evict("slow")
    worker.until_answered()
    wanted = {"quick": "finished", "slow": "finished", "fragile": "error" if fails else "finished"}
    for key, kind in asked.items():
        answer = worker.answers[key]
        why = answer.reason if isinstance(answer, BatchFailed) else "finished"
        if kind == "late":  # whichever is found first
            assert why in ("too_late", "not_loaded")
        else:
            assert why == wanted.get(kind, "not_loaded"), answer
