"""Memory beyond the models: who waits for whom, what is measured, and what weighing finds."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from dovetail.live.worker.footprint import anonymous_bytes, quick_bytes, weigh
from dovetail.live.worker.working_memory import MARGIN_PCT, OVERTAKES, WorkingMemory

PATIENCE_SECONDS = 30.0
MB = 1_000_000


class FakePeak:
    """What batches take in these tests."""

    above = 0

    kept = 0

    def above_bytes(self) -> int:
        return FakePeak.above

    def kept_bytes(self) -> int:
        return FakePeak.kept


@pytest.fixture
def room():
    FakePeak.above = FakePeak.kept = 0
    return WorkingMemory(100 * MB, 40 * MB, resident=lambda: 0, give_back=lambda: None, peak=FakePeak)


def learn(room, stage, nbytes, input_bytes=10):
    FakePeak.above = nbytes * 100 // (100 + MARGIN_PCT)
    with room.run(stage, input_bytes) as use:
        use.done = True


def waits(enter):
    """Whether it cannot enter now; enters (and leaves) later by itself."""
    entered = threading.Event()

    def go():
        with enter():
            entered.set()

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    return thread, entered


def test_loads_run_side_by_side_as_far_as_the_reserve_goes(room):
    with room.load(20 * MB), room.load(20 * MB):
        thread, entered = waits(lambda: room.load(1 * MB))
        assert not entered.wait(0.05)
    assert entered.wait(PATIENCE_SECONDS)
    thread.join(PATIENCE_SECONDS)


def test_a_load_larger_than_the_reserve_runs_alone(room):
    with room.load(60 * MB):
        thread, entered = waits(lambda: room.load(1 * MB))
        assert not entered.wait(0.05)
    thread.join(PATIENCE_SECONDS)
    assert entered.is_set()


def test_a_batch_of_a_stage_that_nobody_knows_runs_alone_and_is_measured(room):
    with room.load(1 * MB):
        thread, entered = waits(lambda: room.run("new", 10))
        assert not entered.wait(0.05)
    thread.join(PATIENCE_SECONDS)
    learn(room, "new", 9 * MB)
    with room.load(20 * MB), room.run("new", 10), room.run("new", 5):
        pass  # it is known now, and fits beside the load


def test_larger_inputs_are_measured_again_and_what_did_not_run_does_not_count(room):
    learn(room, "stage", 10 * MB, input_bytes=10)
    FakePeak.above = 50 * MB
    with room.run("stage", 20):
        pass  # refused
    assert room.reserve_bytes == 40 * MB
    learn(room, "stage", 50 * MB, input_bytes=20)
    assert 49 * MB <= room.reserve_bytes <= 50 * MB
    learn(room, "stage", 70 * MB, input_bytes=20)
    assert room.reserve_bytes <= 50 * MB, "as large as one before: not measured"


def test_batches_overtake_loads_but_not_for_ever(room):
    learn(room, "small", 5 * MB)
    with ExitStack() as stack:
        stack.enter_context(room.load(38 * MB))
        load, loaded = waits(lambda: room.load(39 * MB))
        assert not loaded.wait(0.05)
        batch, ran = waits(lambda: room.run("small", 10))
        assert not ran.wait(0.05), "it does not fit beside the load"
    for thread in (load, batch):
        thread.join(PATIENCE_SECONDS)
    assert loaded.is_set() and ran.is_set()
    assert OVERTAKES > 0


def test_nobody_waits_for_a_batch_that_was_stopped_and_what_it_has_counts(room):
    """It may itself wait for whoever would: so the reserve grows instead."""
    learn(room, "low", 30 * MB)
    learn(room, "high", 20 * MB)
    with room.run("low", 10) as low:
        low.stopped = True
    assert room.reserve_bytes == 40 * MB
    with room.run("high", 10) as high:
        high.done = True
        assert 49 * MB <= room.reserve_bytes <= 50 * MB
        thread, entered = waits(lambda: room.load(1 * MB))
        assert not entered.wait(0.05), "but for what is at work it waits"
    thread.join(PATIENCE_SECONDS)
    assert entered.is_set()
    with room.run("low", 10, low) as low:
        low.done = True
    with room.load(39 * MB):
        pass
    assert room.reserve_bytes <= 50 * MB, "it has ended, and has nothing any more"


def test_a_batch_that_is_measured_and_stopped_lets_others_run_and_is_measured_to_its_end(room):
    FakePeak.above, FakePeak.kept = 15 * MB, 11 * MB
    with room.run("new", 10) as use:
        use.stopped = True
    learn(room, "other", 5 * MB)
    FakePeak.above = 20 * MB
    with room.run("new", 10, use) as use:
        use.done = True
    with room.load(9 * MB):  # it takes 33 MB: what it had kept, and what it took beyond
        thread, entered = waits(lambda: room.run("new", 10))
        assert not entered.wait(0.05)
    thread.join(PATIENCE_SECONDS)


def test_the_heap_is_given_back_only_if_it_is_in_the_way():
    given: list[str] = []
    now = [10 * MB]
    room = WorkingMemory(
        100 * MB, 40 * MB, resident=lambda: now[0], give_back=lambda: given.append("back"), peak=FakePeak
    )
    learn(room, "stage", 20 * MB)
    given.clear()
    with room.run("stage", 10):
        assert not given
    now[0] = 90 * MB
    with room.run("stage", 10):
        assert given == ["back"]


def test_weighing_finds_what_is_kept_and_what_was_needed_on_the_way():
    def touched():
        passing, kept = bytearray(b"x") * (30 * MB), bytearray(b"x") * (20 * MB)
        del passing
        return kept

    nbytes, transient_bytes, load_ns = weigh(touched)
    assert 19 * MB <= nbytes <= 22 * MB
    assert 25 * MB <= transient_bytes <= 33 * MB
    assert load_ns > 0


def test_the_quick_figure_is_near_the_exact_one():
    exact, quick = anonymous_bytes(), quick_bytes()
    assert abs(exact - quick) <= exact // 4


def test_items_of_an_unknown_stage_run_one_by_one(room):
    assert room.at_once("read", 10) == 1


def test_as_many_items_run_together_as_the_reserve_was_made_for(room):
    learn(room, "read", 12 * MB, input_bytes=10)
    assert room.at_once("read", 10) == 2  # 28 of 40 MB
    assert room.at_once("read", 5) == 4
    assert room.at_once("read", 1000) == 1  # one has to run, whatever it takes
    learn(room, "read", 14 * MB, input_bytes=20)
    assert room.at_once("read", 10) == 4  # two took less than twice as much as one
    assert room.reserve_bytes == 40 * MB


def test_what_was_measured_together_may_run_together_though_the_reserve_had_to_grow(room):
    learn(room, "read", 80 * MB, input_bytes=10)
    assert room.reserve_bytes > 40 * MB
    assert room.at_once("read", 10) == 1
    assert room.at_once("read", 5) == 2
