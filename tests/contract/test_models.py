"""The worker contract: models. A worker brings what its batches need, within its bytes, and says what comes and goes.

That a batch runs on a model that is there, that bytes are within the budget, and that every eviction has a reason, is
checked of each event of every test (`Observed`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from tests.contract.observed import Observed
from tests.contract.stages import HEAVY_BYTES
from tests.contract.worlds import SETUPS, Setup, make_world, params

from dovetail.control import BatchFinished, LoadFailed, ModelEvicted, ModelLoaded
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

scarce = pytest.mark.parametrize("setup", params(s for s in SETUPS if s.scarce), indirect=True)


@pytest.fixture
def bare(worker: Observed) -> Iterator[Observed]:
    """The worker without models, before and after."""
    worker.empty()
    yield worker
    worker.empty()


def test_it_brings_the_model_itself_and_says_so_before_the_answer(bare: Observed) -> None:
    assert isinstance(bare.answer("a"), BatchFinished)
    assert bare.mine.loads == dict.fromkeys(bare.weights("a"), 1)


def test_bytes_are_at_least_those_of_the_weights(bare: Observed) -> None:
    bare.answer("a")
    (weights,) = bare.weights("a")
    assert HEAVY_BYTES * 99 // 100 <= bare.mine.resident[weights] <= 2 * HEAVY_BYTES


def test_a_model_is_loaded_once_however_many_batches_want_it(bare: Observed) -> None:
    asked = [bare.run("a") for _ in range(6)]
    bare.until_answered()
    assert all(isinstance(bare.answers[key], BatchFinished) for key in asked)
    assert bare.mine.loads == dict.fromkeys(bare.weights("a"), 1)


def test_stages_with_the_same_weights_share_one_model(bare: Observed) -> None:
    asked = [bare.run("a"), bare.run("again"), bare.run("a")]
    bare.until_answered()
    assert bare.mine.loads == dict.fromkeys(bare.weights("a"), 1)
    if bare.setup.kind != "simulated":
        np.testing.assert_array_equal(bare.world.results[asked[0]], bare.world.results[asked[1]])


def test_an_order_is_answered_when_the_model_is_there(bare: Observed) -> None:
    bare.load("a")
    event = bare.until_told(ModelLoaded, "a")
    assert event.stage == "a" and event.nbytes > 0
    bare.load("again")
    assert bare.until_told(ModelLoaded, "again").stage == "again", "that it is here is said, too"
    assert bare.mine.loads == dict.fromkeys(bare.weights("a"), 1)


def test_an_order_is_answered_even_if_it_is_in_vain(bare: Observed) -> None:
    bare.load("slow")
    bare.evict("slow")
    bare.until_told(ModelLoaded | LoadFailed, "slow")
    bare.load("slow")
    bare.until_told(ModelLoaded, "slow")
    assert isinstance(bare.answer("slow"), BatchFinished)


def test_a_hint_loads_the_model(bare: Observed) -> None:
    bare.load("b", keep=False)
    bare.until_told(ModelLoaded, "b")
    assert isinstance(bare.answer("b"), BatchFinished)
    assert bare.mine.loads == dict.fromkeys(bare.weights("b"), 1)


def test_a_model_in_use_goes_when_its_last_batch_has_ended(bare: Observed) -> None:
    bare.answer("slow")
    asked = [bare.run("slow"), bare.run("slow")]  # one runs, one waits
    bare.evict("slow")
    asked.append(bare.run("slow"))
    bare.until_answered()
    assert all(isinstance(bare.answers[key], BatchFinished) for key in asked)
    # Word of it may have come with the last answer.
    evicted = bare.mine.evictions[0] if bare.mine.evictions else bare.until_told(ModelEvicted, "slow")
    assert evicted.reason
    # The third may have come when the others were done: then it has brought the model again.
    assert evicted.at_ns >= max(bare.answers[key].end_ns for key in asked[:2]), "it was in use until then"
    assert isinstance(bare.answer("slow"), BatchFinished), "the next one brings it again"


def test_a_batch_that_cannot_have_its_model_in_time_is_refused_at_once(bare: Observed) -> None:
    bare.answer("a")  # from now on it knows how long such a load takes
    key = bare.run("b", latest_ns=bare.world.now_ns() + MS // 2)
    bare.hear()
    assert bare.answers[key].reason == "too_late"


@scarce
def test_what_does_not_fit_beside_others_makes_room_and_says_why(bare: Observed) -> None:
    for stage in ("a", "b", "c"):
        bare.answer(stage)
    heavy = [e for e in bare.mine.evictions if e.weights in bare.weights("a", "b", "c")]
    assert [e.weights for e in heavy] == list(bare.weights("a"))
    assert heavy[0].reason.startswith("room for ")
    bare.answer("a")
    assert bare.mine.loads[heavy[0].weights] == 2


@scarce
def test_a_model_that_waits_for_room_lets_others_go_first_but_gets_its_turn(bare: Observed) -> None:
    for stage in ("a", "b"):
        bare.run(stage)
    bare.until_answered()
    asked = [bare.run("c"), *(bare.run(stage) for stage in "abab"), bare.run("c")]
    bare.until_answered()
    assert all(isinstance(bare.answers[key], BatchFinished) for key in asked)


@scarce
def test_a_model_that_was_ordered_makes_no_room_for_others(bare: Observed) -> None:
    bare.load("a")
    bare.until_told(ModelLoaded, "a")
    for stage in "bcbc":
        bare.run(stage)
    bare.until_answered()
    assert bare.weights("a") <= bare.mine.resident.keys()
    assert {e.weights for e in bare.mine.evictions} <= bare.weights("b", "c", "quick")


@scarce
def test_every_batch_of_a_long_random_run_is_answered_and_laws_hold_all_the_time(bare: Observed) -> None:
    chance = random.Random(11)
    for _ in range(60):
        window = chance.choice((0, 0, 0, -1, 2 * MS, 10_000 * MS))
        options = {"latest_ns": bare.world.now_ns() + window} if window else {}
        bare.run(chance.choice(("a", "b", "c", "again", "quick")), order=chance.randrange(3), **options)
        if chance.random() < 0.3:
            bare.hear()
        if chance.random() < 0.1:
            bare.evict(chance.choice(("a", "b", "c")))
    bare.until_answered()
    why = {getattr(answer, "reason", "finished") for answer in bare.answers.values()}
    assert why == {"finished", "too_late"}
    assert bare.mine.evictions, "memory was scarce"


@pytest.mark.parametrize("setup", params(s for s in SETUPS if s.scarce and not s.kernels))
def test_a_model_larger_than_the_budget_is_refused_with_the_reason(
    setup: Setup, stages: dict[str, StageSpec]
) -> None:
    live = setup.kind == "live"
    small = Setup(setup.kind, 12_000_000 if live else 4_000_000, setup.kernels)
    worker = Observed(small, make_world(small, stages), stages)
    try:
        if live:  # it measures its models, and says before anything else which are too large
            for _ in "abc":
                worker.hear()
            assert {e.stage for e in worker.mine.failures} == {"a", "b", "c"}
            assert all("--memory" in e.detail for e in worker.mine.failures)
        worker.load("a")
        assert "more than" in worker.until_told(LoadFailed, "a").detail
        assert worker.answer("a").reason == "no_memory"
        assert isinstance(worker.answer("quick"), BatchFinished)
    finally:
        worker.world.close()
