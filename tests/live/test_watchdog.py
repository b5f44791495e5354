"""Which workers hang: told from times alone, without a process or a clock."""

from __future__ import annotations

from typing import Any

from dovetail.control import RunBatch
from dovetail.live.front.batches import Running
from dovetail.live.front.watchdog import HANG_FACTOR, Watchdog
from dovetail.units import MS, SECOND

HANG_NS = 2 * SECOND


def batch(worker: int = 1, *, since_ns: int = 0, **changed: Any) -> Running:
    options = {"earliest_ns": 0, "latest_ns": SECOND, "expected_ns": MS} | changed
    return Running(RunBatch(0, 7, worker, "read", ((1, 0, 0),), 1, 100, **options), since_ns)


def named(dog: Watchdog, now_ns: int, *running: Running) -> list[int]:
    return [worker for worker, _ in dog.hung(running, now_ns)]


def test_a_batch_has_the_floor_and_then_it_hangs() -> None:
    dog = Watchdog(HANG_NS)
    sent = batch(since_ns=SECOND)
    assert named(dog, SECOND + HANG_NS, sent) == []
    ((worker, why),) = dog.hung([sent], SECOND + HANG_NS + 1)
    assert worker == 1
    assert why == "stage 'read' did not answer within 2 s, so its worker was killed"


def test_what_is_expected_to_take_long_is_given_many_times_that() -> None:
    dog = Watchdog(HANG_NS)
    sent = batch(expected_ns=SECOND)
    assert named(dog, HANG_FACTOR * SECOND, sent) == []
    assert named(dog, HANG_FACTOR * SECOND + 1, sent) == [1]


def test_the_time_before_a_batch_may_begin_does_not_count() -> None:
    dog = Watchdog(HANG_NS)
    sent = batch(earliest_ns=SECOND)
    assert named(dog, SECOND + HANG_NS, sent) == []
    assert named(dog, SECOND + HANG_NS + 1, sent) == [1]


def test_a_batch_may_wait_as_long_as_others_get_done_there() -> None:
    """Every worker keeps a queue: the front does not know what has begun, so any end of that worker counts."""
    dog = Watchdog(HANG_NS)
    sent = batch()
    dog.answered(1, 2 * SECOND)
    assert named(dog, 4 * SECOND, sent) == []
    assert named(dog, 4 * SECOND + 1, sent) == [1]


def test_what_another_worker_gets_done_does_not_count() -> None:
    dog = Watchdog(HANG_NS)
    dog.answered(2, 2 * SECOND)
    dog.load_ended(2, "read", 2 * SECOND)
    assert named(dog, HANG_NS + 1, batch()) == [1]


def test_a_model_that_comes_has_a_limit_of_its_own() -> None:
    dog = Watchdog(HANG_NS)
    sent = batch()
    dog.load_began(1, "read", SECOND)
    assert named(dog, 3 * SECOND, sent) == [], "the batch waits for its model, and that has time left"
    ((worker, why),) = dog.hung([sent], 3 * SECOND + 1)
    assert worker == 1
    assert why == "the model of stage 'read' was not loaded within 2 s, so its worker was killed"
    dog.load_ended(1, "read", 4 * SECOND)
    assert named(dog, 6 * SECOND, sent) == []
    assert named(dog, 6 * SECOND + 1, sent) == [1]


def test_who_is_lost_owes_nothing() -> None:
    dog = Watchdog(HANG_NS)
    dog.answered(1, 0)
    dog.load_began(1, "read", 0)
    dog.load_began(2, "read", 0)
    dog.lost(1)
    assert list(dog.loading) == [(2, "read")]
    assert named(dog, HANG_NS + 1) == [2]
