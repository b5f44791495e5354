"""The contract of workers whose memory is scarce: what routers and the controller rely on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
from tests.contract.sim_world import HEAVY_BYTES, WIDTH, SimWorld, World, make_heavy_stages
from tests.contract.worlds import CPU, EMULATED, KEPT_BYTES, SIMULATED, make_world

from dovetail.control import BatchFailed, BatchFinished, Event, LoadFailed, ModelEvicted, ModelLoaded
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

WORLDS = [*SIMULATED, CPU, EMULATED]


@pytest.fixture(scope="module")
def heavy_stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StageSpec]:
    return make_heavy_stages(tmp_path_factory.mktemp("heavy"))


class Kept:
    """A worker, what it was asked and what it said; the laws that can be read off are checked as it speaks."""

    def __init__(self, name: str, stages: dict[str, StageSpec]) -> None:
        self.world: World = make_world(name, stages, KEPT_BYTES[name])
        self.stages = stages
        self.budget_bytes = KEPT_BYTES[name]
        self.open: dict[int, str] = {}
        self.windows: dict[int, tuple[int, int]] = {}
        self.answers: dict[int, BatchFinished | BatchFailed] = {}
        #: Model -> bytes, as far as the worker has said.
        self.resident: dict[str, int] = {}
        self.loads: Counter[str] = Counter()
        self.evictions: list[ModelEvicted] = []
        self._numbers = count(1)

    def run(self, stage: str, **options: int) -> int:
        batch = next(self._numbers)
        self.open[batch] = stage
        self.windows[batch] = options.get("earliest_ns", 0), options.get("latest_ns", 1 << 62)
        self.world.run(batch, stage, **options)
        return batch

    def hear(self) -> Event:
        event = self.world.next_event()
        if isinstance(event, ModelLoaded):
            weights = self.stages[event.stage].weights
            assert weights not in self.resident, "loaded while it was here"
            self.resident[weights] = event.nbytes
            self.loads[weights] += 1
            assert sum(self.resident.values()) <= self.budget_bytes
        elif isinstance(event, ModelEvicted):
            assert self.resident.pop(event.weights) == event.nbytes
            assert event.reason
            self.evictions.append(event)
        elif isinstance(event, BatchFinished | BatchFailed):
            stage = self.open.pop(event.batch)  # KeyError: answered twice, or never asked for
            self.answers[event.batch] = event
            if isinstance(event, BatchFinished):
                earliest_ns, latest_ns = self.windows[event.batch]
                assert earliest_ns <= event.begin_ns <= latest_ns
                assert self.stages[stage].weights in self.resident, "ran on a model that was not here"
        return event

    def until_answered(self) -> None:
        while self.open:
            self.hear()

    def forget(self) -> None:
        """Leave the worker with nothing to do and none but `quick`, so that tests do not depend on each other."""
        self.until_answered()
        for stage in self.stages:
            weights = self.stages[stage].weights
            if stage != "quick" and weights in self.resident:
                self.world.evict(stage)
                while weights in self.resident:
                    self.hear()
        self.loads.clear()
        self.evictions.clear()


@pytest.fixture(scope="module", params=WORLDS)
def shared_kept(request: pytest.FixtureRequest, heavy_stages: dict[str, StageSpec]) -> Iterator[Kept]:
    kept = Kept(request.param, heavy_stages)
    yield kept
    kept.world.close()


@pytest.fixture
def kept(shared_kept: Kept) -> Iterator[Kept]:
    yield shared_kept
    shared_kept.forget()


def test_it_brings_the_model_itself_and_says_so_before_the_answer(kept):
    batch = kept.run("a")
    kept.until_answered()
    assert isinstance(kept.answers[batch], BatchFinished)
    assert kept.loads == {kept.stages["a"].weights: 1}
    assert kept.answers[batch].counts == (WIDTH,)


def test_bytes_are_at_least_those_of_the_weights(kept):
    kept.run("a")
    kept.until_answered()
    nbytes = kept.resident[kept.stages["a"].weights]
    assert HEAVY_BYTES * 99 // 100 <= nbytes <= 2 * HEAVY_BYTES


def test_a_model_is_loaded_once_however_many_batches_want_it(kept):
    asked = [kept.run("a") for _ in range(6)]
    kept.until_answered()
    assert all(isinstance(kept.answers[b], BatchFinished) for b in asked)
    assert kept.loads == {kept.stages["a"].weights: 1}


def test_stages_with_the_same_weights_share_one_model(kept):
    asked = [kept.run("a"), kept.run("again"), kept.run("a")]
    kept.until_answered()
    assert all(isinstance(kept.answers[b], BatchFinished) for b in asked)
    assert kept.loads == {kept.stages["a"].weights: 1}
    if not isinstance(kept.world, SimWorld):
        np.testing.assert_array_equal(kept.world.results[asked[0]], kept.world.results[asked[1]])


def test_what_does_not_fit_beside_others_makes_room_and_says_why(kept):
    for stage in ("a", "b", "c"):
        kept.run(stage)
        kept.until_answered()
    heavy = [e for e in kept.evictions if e.weights != kept.stages["quick"].weights]
    assert [e.weights for e in heavy] == [kept.stages["a"].weights]
    assert heavy[0].reason.startswith("room for ")
    kept.run("a")
    kept.until_answered()
    assert kept.loads[kept.stages["a"].weights] == 2


def test_every_batch_of_a_long_random_run_is_answered_once_and_laws_hold_all_the_time(kept):
    rng = random.Random(11)
    refused = finished = 0
    for _ in range(60):
        window = rng.choice((0, 0, 0, -1, 2 * MS, 10_000 * MS))
        options = {"latest_ns": kept.world.now_ns() + window} if window else {}
        kept.run(rng.choice(("a", "b", "c", "again", "quick")), order=rng.randrange(3), **options)
        if rng.random() < 0.3:
            kept.hear()
        if rng.random() < 0.1:
            kept.world.evict(rng.choice(("a", "b", "c")))
    kept.until_answered()
    for answer in kept.answers.values():
        finished += isinstance(answer, BatchFinished)
        if isinstance(answer, BatchFailed) and answer.reason == "too_late":
            refused += 1
            assert answer.begin_ns == answer.end_ns
    assert finished and refused
    assert kept.evictions, "memory was scarce"


def test_a_batch_whose_window_has_closed_is_refused(kept):
    batch = kept.run("a", latest_ns=kept.world.now_ns() - 1)
    kept.until_answered()
    assert kept.answers[batch].reason == "too_late"


def test_a_batch_that_cannot_have_its_model_in_time_is_refused_at_once(kept):
    kept.run("a")
    kept.until_answered()  # from now on it knows how long such a load takes
    batch = kept.run("b", latest_ns=kept.world.now_ns() + MS // 2)
    event = kept.hear()
    assert event is kept.answers[batch]
    assert event.reason == "too_late"


def test_a_batch_does_not_start_before_its_window(kept):
    earliest_ns = kept.world.now_ns() + 30 * MS
    batch = kept.run("a", earliest_ns=earliest_ns)
    kept.until_answered()
    assert kept.answers[batch].begin_ns >= earliest_ns


def test_smaller_orders_start_first(kept):
    kept.run("slow")
    while not isinstance(kept.hear(), ModelLoaded):
        pass
    last, first = kept.run("slow", order=9), kept.run("slow", order=1)
    kept.until_answered()
    assert kept.answers[first].end_ns <= kept.answers[last].begin_ns


def test_a_model_that_waits_for_room_lets_others_go_first_but_gets_its_turn(kept):
    for stage in ("a", "b"):
        kept.run(stage)
    kept.until_answered()
    asked = [kept.run("c"), *(kept.run(stage) for stage in "abab"), kept.run("c")]
    kept.until_answered()
    assert all(isinstance(kept.answers[b], BatchFinished) for b in asked)


def test_a_hint_loads_the_model(kept):
    kept.world.load("b", keep=False)
    assert isinstance(kept.hear(), ModelLoaded)
    kept.run("b")
    kept.until_answered()
    assert kept.loads == {kept.stages["b"].weights: 1}


def test_a_model_in_use_is_not_evicted_before_its_last_batch_has_ended(kept):
    batch = kept.run("slow")
    while not isinstance(kept.hear(), ModelLoaded):
        pass
    kept.world.evict("slow")  # it runs
    kept.until_answered()
    assert isinstance(kept.answers[batch], BatchFinished)
    assert not kept.evictions
    assert isinstance(kept.hear(), ModelEvicted)


def test_a_model_that_was_ordered_makes_no_room_for_others(kept):
    kept.world.load("a")
    kept.hear()
    for stage in "bcbc":
        kept.run(stage)
    kept.until_answered()
    assert kept.stages["a"].weights in kept.resident
    assert {e.weights for e in kept.evictions} <= {kept.stages[s].weights for s in ("b", "c", "quick")}


def test_shares_never_add_up_to_more_than_the_device(kept):
    shares = [60, 60, 30, 40, 100, 10, 10, 90, 50, 50]
    asked = [kept.run("slow" if i % 3 else "quick", share_pct=share) for i, share in enumerate(shares)]
    kept.until_answered()
    runs = [(kept.answers[b].begin_ns, kept.answers[b].end_ns, s) for b, s in zip(asked, shares, strict=True)]
    for begin, _, _ in runs:
        assert sum(share for other, end, share in runs if other <= begin < end) <= 100


def test_a_stage_that_nobody_knows_is_refused(kept):
    batch = kept.run("unknown")
    kept.until_answered()
    assert kept.answers[batch].reason == "not_loaded"


@pytest.mark.parametrize("name", WORLDS)
def test_a_model_larger_than_the_budget_is_refused_with_the_reason(name, heavy_stages, monkeypatch):
    monkeypatch.setitem(KEPT_BYTES, name, 12_000_000 if name == "cpu" else 4_000_000)
    kept = Kept(name, heavy_stages)
    try:
        if name == "cpu":  # it measures its models, and says before anything else which are too large
            said = [kept.hear() for _ in "abc"]
            assert all(isinstance(e, LoadFailed) and "--memory" in e.detail for e in said)
        kept.world.load("a")
        event = kept.hear()
        assert isinstance(event, LoadFailed) and "more than" in event.detail
        batch = kept.run("a")
        kept.until_answered()
        assert kept.answers[batch].reason == "no_memory"
        kept.run("quick")
        kept.until_answered()
    finally:
        kept.world.close()
