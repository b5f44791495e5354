"""When a worker expects to start what waits, by hand."""

from __future__ import annotations

from dovetail.device import Rules
from dovetail.device.forecast import forecast
from dovetail.device.task import Task
from dovetail.state import NEVER_NS, RunBatch
from dovetail.units import MS

from .shop import LOAD_NS, Shop


def waiting(batch: int, model: str, expected_ns: int = 5 * MS) -> Task:
    run = RunBatch(0, batch, 0, model, (), 1, 100, 0, NEVER_NS, expected_ns)
    return Task(batch, run, model, 1, (0, 0, 0, batch), 0)


def test_a_load_begins_when_one_of_the_slots_is_free_and_slots_in_use_count() -> None:
    load_ends = {"a": 30 * MS}
    line = [waiting(1, "b"), waiting(2, "c")]
    for slots, expected in (
        (1, {1: 40 * MS, 2: 50 * MS}),
        (2, {1: 10 * MS, 2: 20 * MS}),
        (3, {1: 10 * MS, 2: 15 * MS}),
    ):
        starts, done_ns = forecast([], line, lambda weights, now_ns: 10 * MS, load_ends, Rules(loads=slots), 0)
        assert starts == expected, slots
        assert done_ns == expected[2] + 5 * MS


def test_a_model_that_is_on_its_way_needs_no_slot() -> None:
    starts, _ = forecast([], [waiting(1, "a")], lambda weights, now_ns: 7 * MS, {"a": 7 * MS}, Rules(loads=1), 0)
    assert starts == {1: 7 * MS}


def test_a_worker_expects_to_be_done_sooner_once_a_load_has_ended_early() -> None:
    shop = Shop()
    shop.take("a")
    assert shop.device.row(0).free_at_ns == 3 * LOAD_NS + 5 * MS, "read from disk, which takes three times as long"
    shop.now_ns = MS
    shop.loaded("a")
    assert shop.device.row(MS).free_at_ns == MS + 5 * MS
