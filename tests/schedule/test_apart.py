"""Who begins beside whom, and who waits: where neighbours cost something, and never a higher class for a lower."""

from __future__ import annotations

import pytest
from tests.predict.together import estimator

from dovetail.predict.progress import look_again
from dovetail.schedule.apart import Apart, Verdict
from dovetail.schedule.protocol import Hold
from dovetail.state import Batch, Config, Item, Queue, Request, Worker, WorkerSpec, compile_graphs
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec, chain

A, B = (StageSpec(name, name, (1,), model=name) for name in "ab")
HALF = Config(1, 1, 50)
GRAPHS, QUEUES = compile_graphs([chain("flow", SECOND, [A, B])], lambda _graph, node: node.stage)
NOW_NS = 4 * MS


def judged(
    slow: float,
    *,
    runs: int = 1,
    comes: int = 2,
    latest_ms: float = 1000,
    end_by_ms: float = 1000,
    margin: float = 1.0,
) -> Verdict:
    """`b` of class `comes` comes at 4 ms beside `a` of class `runs`, which takes 10 ms alone and began at 0."""
    predictor = estimator({("a", "b"): slow, ("b", "a"): slow}, "a", "b", margin=margin)
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",)))
    item = Item(Request(1, GRAPHS[0], runs, 0, SECOND, 0), 0, 0, 0)
    running = Batch(1, QUEUES["a"], worker, HALF, [item], 0, 10 * MS)
    worker.enter(running)
    look_again(predictor, worker, 0)
    queue = Queue("b", B)
    queue.push(0, Item(Request(2, GRAPHS[0], comes, 0, SECOND, 0), 1, 0, 0))
    apart = Apart(predictor, lambda batch: round(latest_ms * MS))
    return apart.judge(queue, HALF, worker, round(end_by_ms * MS), comes, NOW_NS)


def test_who_hurts_nobody_begins() -> None:
    assert judged(1.0) is True
    assert judged(1.5) is True


def test_two_that_do_less_together_than_one_after_the_other_are_kept_apart() -> None:
    held = judged(3.0)
    assert isinstance(held, Hold)
    assert held.until_ns == 10 * MS, "until the other should end"
    assert "'a'" in held.reason
    assert judged(1.9) is True
    assert isinstance(judged(2.2), Hold)


@pytest.mark.parametrize(("latest_ms", "waits"), [(9.9, False), (10.0, True), (12.9, True), (13.0, False)])
def test_a_lower_class_waits_if_it_would_make_a_higher_one_late(latest_ms: float, waits: bool) -> None:
    """Beside it the one that runs ends at 13 ms instead of 10; what is late anyway is in nobody's way."""
    assert isinstance(judged(1.5, latest_ms=latest_ms, end_by_ms=20), Hold) is waits


def test_its_margin_counts() -> None:
    assert judged(1.5, latest_ms=13.5) is True
    assert isinstance(judged(1.5, latest_ms=13.5, margin=1.2), Hold)


def test_a_higher_class_never_waits_for_a_lower_one() -> None:
    assert judged(1.5, runs=2, comes=1, latest_ms=12) is True


def test_in_the_same_class_it_waits_only_if_it_has_the_time() -> None:
    assert isinstance(judged(1.5, runs=1, comes=1, latest_ms=12, end_by_ms=40), Hold)
    assert judged(1.5, runs=1, comes=1, latest_ms=12, end_by_ms=19) is True


def test_who_would_be_late_there_is_told_so() -> None:
    """Six milliseconds of work beside the other take nine; three are left of the ten, and then four alone: 17 ms."""
    assert judged(1.5, end_by_ms=17.1) is True
    assert judged(1.5, end_by_ms=16.9) is False


def test_to_end_a_little_later_is_no_reason_to_wait() -> None:
    """Alone after the other it ends at 20 ms; beside it at 20 ms and 6 ms for each further time that it is slower."""
    assert judged(2.0) is True
    assert judged(2.03) is True, "less than a fiftieth of its 10 ms is gained"
    assert isinstance(judged(2.04), Hold)


def test_who_ends_just_in_time_is_in_time() -> None:
    assert judged(1.5, end_by_ms=17) is True
