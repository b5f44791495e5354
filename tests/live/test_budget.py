"""What a strict budget is for: what batches do not need is for models."""

import pytest
from tests.live.test_working_memory import FakePeak, learn

from dovetail.live.worker.budget import Budget
from dovetail.live.worker.working_memory import WorkingMemory

MB = 1_000_000
WHOLE, SLACK = 100 * MB, (2 << 20) + 5 * MB


def budget(*models_mb: int, load_mb: int = 1, shared: bool = True) -> Budget:
    made = Budget(WHOLE, [size * MB for size in models_mb], load_mb * MB, shared=shared)
    first = made.room.reserve_bytes
    made.room = WorkingMemory(WHOLE, first, resident=lambda: 0, give_back=lambda: None, peak=FakePeak)
    return made


@pytest.fixture(autouse=True)
def nothing_measured():
    FakePeak.above = FakePeak.kept = 0


def test_half_is_set_aside_while_nothing_is_known_and_then_what_batches_take():
    made = budget(30, 30)
    assert made.usable_bytes == WHOLE - WHOLE // 2 - SLACK
    assert made.expect("a", 10) is None, "half is set aside already"
    learn(made.room, "a", 20 * MB)
    usable, reason = made.changed()
    assert usable == made.usable_bytes == WHOLE - made.room.reserve_bytes - SLACK and "take up to" in reason
    assert usable >= 60 * MB, "both models fit"
    assert made.changed() is None


def test_before_a_stage_runs_that_is_not_known_half_is_set_aside_again():
    made = budget(30, 30)
    made.expect("a", 10)
    learn(made.room, "a", 10 * MB)
    made.changed()
    usable, reason = made.expect("b", 10)
    assert usable == WHOLE - WHOLE // 2 - SLACK and "nothing is known" in reason
    assert made.expect("b", 10) is None, "half is set aside already"
    with made.room.load(1):
        assert made.changed() is None, "it has not run yet"
    learn(made.room, "b", 15 * MB)
    assert made.changed()[0] >= 60 * MB
    assert made.expect("b", 10) is None
    assert made.expect("b", 11)[0] == usable, "its inputs are larger"


def test_a_batch_that_takes_more_than_half_takes_it_from_models():
    made = budget(30, 10)
    made.expect("a", 10)
    learn(made.room, "a", 60 * MB)
    assert made.changed()[0] == WHOLE - made.room.known_bytes - SLACK
    assert made.room.reserve_bytes == made.room.known_bytes


def test_models_that_all_fit_take_nothing_from_batches_that_they_do_not_need():
    made = budget(5, 5, load_mb=4)
    before = made.usable_bytes
    made.expect("a", 10)
    learn(made.room, "a", 10 * MB)
    assert made.changed() is None and made.usable_bytes == before


def test_a_model_whose_kernels_would_push_others_out_stays_whole():
    made = budget(30, 30)
    for way in ("a", "b"):
        learn(made.room, way, 20 * MB)
    learn(made.room, "a in kernels", 80 * MB)
    learn(made.room, "b in kernels", 30 * MB)
    assert made.changed()[0] < 30 * MB + 1
    assert made.too_large("a", "a in kernels") and not made.too_large("a", "a in kernels"), "it is forgotten"
    assert not made.too_large("b", "b in kernels"), "it takes more than whole, and there is room for it"
    assert made.changed()[0] >= 60 * MB


def test_what_stopped_batches_have_is_set_aside_once_and_not_given_to_models_and_back():
    made = budget(40, 40)
    learn(made.room, "a", 10 * MB)
    learn(made.room, "low", 12 * MB)
    made.changed()
    FakePeak.kept = 12 * MB
    with made.room.run("low", 10) as low:
        low.stopped = True
    assert made.changed()[0] == WHOLE - made.room.known_bytes - SLACK
    with made.room.run("low", 10, low) as low:
        low.done = True
    assert made.room.known_bytes > 23 * MB and made.changed() is None


def test_with_weights_of_its_own_half_stays_set_aside_and_more_if_a_batch_takes_more():
    made = budget(30, 30, shared=False)
    before = made.usable_bytes
    learn(made.room, "a", 10 * MB)
    assert made.changed() is None and made.expect("b", 10) is None and made.usable_bytes == before
    learn(made.room, "a in kernels", 60 * MB)
    assert not made.too_large("a", "a in kernels")
    assert made.changed()[0] < before
    learn(made.room, "c", 10 * MB)
    assert made.changed() is None


def test_what_was_expected_and_did_not_run_takes_nothing_from_models_for_long():
    made = budget(30, 30)
    learn(made.room, "a", 10 * MB)
    usable, _ = made.changed()
    assert made.expect("b", 10)[0] < usable
    assert made.changed()[0] == usable, "its batch was refused, say"


def test_what_a_forgotten_way_had_when_it_was_stopped_is_given_back_when_it_has_ended():
    made = budget(40, 40)
    learn(made.room, "a", 10 * MB)
    learn(made.room, "a in kernels", 80 * MB)
    FakePeak.kept = 60 * MB
    with made.room.run("a in kernels", 10) as low:
        low.stopped = True
    assert made.too_large("a", "a in kernels")
    assert made.room.known_bytes > 80 * MB, "it still has it"
    with made.room.run("a", 10, low) as low:
        low.done = True
    assert made.room.known_bytes < 12 * MB
