"""The guess of a stage that was neither profiled nor run: from its own work, and from what similar ones took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.predict import Estimate, Estimator, EstimatorState
from dovetail.predict.estimate import GUESSED_RUN_NS, GUESSED_SPREAD, SIMILAR_SPREAD
from dovetail.predict.similar import CALL_NS, PS_PER_MAC, work_ns
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.state import Config
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

MILLION = 1_000_000
ONE = Config(1, 1, 100)


def model(name: str, millions: int) -> StageSpec:
    return StageSpec(name, "onnx", (1, 4), model=name, macs=millions * MILLION)


SMALL, LARGE, NEW = model("small", 100), model("large", 1000), model("new", 300)
PYTHON = StageSpec("step", "python", (1,))
ALL = (SMALL, LARGE, NEW, PYTHON)


def profiled(stage: StageSpec, factor: float, kind: str = "cpu") -> Entry:
    """It takes so many times its work: in proportion to its items, and half as long on two cores."""
    each = factor * work_ns(stage)
    points = tuple(Point(b, c, round(each * b / c), 0.0, 9) for b in (1, 4) for c in (1, 2))
    return Entry(stage.name, kind, points=points)


def guess(*entries: Entry, items: int = 1, cpus: int = 1, kind: str = "cpu", stage: StageSpec = NEW) -> Estimate:
    estimator = Estimator(ProfileTable(entries), stages=ALL)
    return estimator.run(stage, kind, items, Config(items, cpus, 100))


def test_alone_it_is_a_processor_like_the_one_the_constant_was_measured_on() -> None:
    assert work_ns(NEW) == CALL_NS + 300 * MILLION * PS_PER_MAC // 1000
    assert guess() == Estimate(work_ns(NEW), GUESSED_SPREAD, "guess")
    assert guess(items=4).mean_ns == pytest.approx(work_ns(NEW) * (0.1 + 0.9 * 4), rel=1e-6)
    assert guess(cpus=2).mean_ns == pytest.approx(work_ns(NEW) * (0.1 + 0.9 / 2), rel=1e-6)


def test_others_of_the_same_kind_of_device_say_how_fast_it_is() -> None:
    assert guess(profiled(SMALL, 3.0)) == Estimate(pytest.approx(3 * work_ns(NEW), rel=1e-5), SIMILAR_SPREAD, "guess")
    # How they take to batches and to cores is theirs, too.
    assert guess(profiled(SMALL, 3.0), items=4, cpus=2).mean_ns == pytest.approx(6 * work_ns(NEW), rel=1e-5)
    assert guess(profiled(SMALL, 3.0, "a100"), kind="a100").mean_ns == pytest.approx(3 * work_ns(NEW), rel=1e-5)
    assert guess(profiled(SMALL, 3.0, "a100")).mean_ns == work_ns(NEW), "another device says nothing of this one"


def test_of_two_the_middle_counts_and_of_three_the_one_in_the_middle() -> None:
    two = guess(profiled(SMALL, 1.0), profiled(LARGE, 4.0))
    assert two.mean_ns == pytest.approx(2 * work_ns(NEW), rel=1e-5)
    third = model("third", 50)
    estimator = Estimator(
        ProfileTable([profiled(SMALL, 1.0), profiled(LARGE, 4.0), profiled(third, 90.0)]), stages=(*ALL, third)
    )
    assert estimator.run(NEW, "cpu", 1, ONE).mean_ns == pytest.approx(4 * work_ns(NEW), rel=1e-5)
    assert estimator.similar(NEW, "cpu") == ["small", "large", "third"]


def test_without_work_it_is_the_constant_whatever_others_take() -> None:
    for stage, kind in ((PYTHON, "host"), (model("odd", 0), "cpu")):
        assert guess(profiled(SMALL, 3.0), stage=stage, kind=kind) == Estimate(
            GUESSED_RUN_NS, GUESSED_SPREAD, "guess"
        )
    assert guess(kind="a100").mean_ns == GUESSED_RUN_NS, "nothing is known of that device"


def test_what_was_learned_counts_like_a_profile_and_changes_guesses_at_once() -> None:
    estimator = Estimator(ProfileTable(), stages=ALL)
    assert estimator.run(NEW, "cpu", 1, ONE).mean_ns == work_ns(NEW)
    estimator.observe_run(SMALL, "cpu", 1, ONE, 5 * work_ns(SMALL))
    assert estimator.run(NEW, "cpu", 1, ONE).mean_ns == pytest.approx(5 * work_ns(NEW), rel=1e-5)
    estimator.observe_run(NEW, "cpu", 1, ONE, 7 * MS)
    assert estimator.run(NEW, "cpu", 1, ONE).source == "learned"
    assert estimator.run(NEW, "cpu", 1, ONE).mean_ns == 7 * MS


def test_a_stage_that_is_declared_later_joins_in() -> None:
    estimator = Estimator(ProfileTable([profiled(SMALL, 3.0)]))
    assert estimator.run(NEW, "cpu", 1, ONE).mean_ns == work_ns(NEW)
    estimator.declare(ALL)
    assert estimator.run(NEW, "cpu", 1, ONE).mean_ns == pytest.approx(3 * work_ns(NEW), rel=1e-5)


def test_a_restored_estimator_guesses_the_same() -> None:
    estimator = Estimator(ProfileTable(), stages=ALL)
    estimator.observe_run(SMALL, "cpu", 1, ONE, 5 * work_ns(SMALL))
    again = Estimator(ProfileTable(), estimator.state(), stages=ALL)
    assert again.run(NEW, "cpu", 1, ONE) == estimator.run(NEW, "cpu", 1, ONE)


def test_what_is_restored_takes_the_place_of_guesses_as_well() -> None:
    estimator = Estimator(ProfileTable(), stages=ALL)
    assert estimator.run(NEW, "cpu", 1, ONE).mean_ns == work_ns(NEW)
    estimator.restore(EstimatorState())
    estimator.observe_run(SMALL, "cpu", 1, ONE, 5 * work_ns(SMALL))
    assert estimator.run(NEW, "cpu", 1, ONE).mean_ns == pytest.approx(5 * work_ns(NEW), rel=1e-5)


@given(
    factors=st.lists(st.floats(0.1, 100), min_size=1, max_size=6),
    millions=st.integers(1, 5000),
    more=st.integers(1, 5000),
)
def test_a_guess_lies_between_what_the_others_suggest_and_grows_with_the_work(
    factors: list[float], millions: int, more: int
) -> None:
    others = [model(f"m{i}", 10 * (i + 1)) for i in range(len(factors))]
    entries = [profiled(o, f) for o, f in zip(others, factors, strict=True)]
    less, greater = model("less", millions), model("greater", millions + more)
    estimator = Estimator(ProfileTable(entries), stages=(*others, less, greater))
    said = estimator.run(less, "cpu", 1, ONE)
    assert min(factors) * 0.999 <= said.mean_ns / work_ns(less) <= max(factors) * 1.001
    assert said.mean_ns <= estimator.run(greater, "cpu", 1, ONE).mean_ns
    assert said.spread > 0.5, "a guess is never planned with as if it were known"
