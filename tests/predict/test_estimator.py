"""What the estimator says of what was profiled, of what was seen, and of what nobody has seen yet."""

from __future__ import annotations

import msgspec
import pytest

from dovetail.errors import ProfileError
from dovetail.predict import Estimate, Estimator, EstimatorState
from dovetail.predict.estimate import GUESSED_RUN_NS, GUESSED_SPREAD, GUESSED_TURNAROUND_NS
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.state import Config
from dovetail.units import MS, US
from dovetail.workflow.graph import StageSpec

READ = StageSpec("read", "onnx", (1, 4, 8), model="abc", weights_bytes=10_000_000)
CROP = StageSpec("crop", "python", (1, 4, 8))
WHOLE = Config(8, 4, 100)
HALF = Config(8, 2, 50)
TABLE = ProfileTable(
    [Entry("read", "cpu", points=(Point(1, 4, 5 * MS, 0.1, 20),), load_ns=70 * MS, memory_bytes=1, spread=0.1)]
)


def learned(*times: tuple[int, int], config: Config = WHOLE) -> Estimator:
    """An estimator that has seen these (items, time) of `crop`."""
    estimator = Estimator(ProfileTable())
    for items, ns in times:
        estimator.observe_run(CROP, "host", items, config, ns)
    return estimator


def test_a_profile_stands_whatever_is_seen_and_what_is_seen_is_kept_beside_it() -> None:
    estimator = Estimator(TABLE)
    assert estimator.run(READ, "cpu", 1, WHOLE) == Estimate(5 * MS, 0.1, "profile")
    assert estimator.observed_ratio("read", "cpu") is None
    for _ in range(100):
        estimator.observe_run(READ, "cpu", 1, WHOLE, 10 * MS)
    estimate = estimator.run(READ, "cpu", 1, WHOLE)
    assert (estimate.mean_ns, estimate.source) == (5 * MS, "profile")
    assert estimator.observed_ratio("read", "cpu") == 2.0
    assert [(row.count, row.mean_ns) for row in estimator.state().runs] == [(100, 10 * MS)]
    assert estimator.run(READ, "host", 1, WHOLE).source == "guess", "of another kind of device nothing is known"


def test_against_the_profile_sizes_count_as_often_as_they_were_seen() -> None:
    points = (Point(1, 4, 5 * MS, 0.1, 20), Point(2, 4, 10 * MS, 0.1, 20))
    estimator = Estimator(ProfileTable([Entry("read", "cpu", points=points)]))
    for _ in range(3):
        estimator.observe_run(READ, "cpu", 1, WHOLE, 10 * MS)
    estimator.observe_run(READ, "cpu", 2, WHOLE, 10 * MS)
    assert estimator.observed_ratio("read", "cpu") == (3 * 10 + 10) / (3 * 5 + 10)


def test_what_was_never_seen_is_a_guess_with_a_wide_spread() -> None:
    estimator = Estimator(ProfileTable())
    assert estimator.run(CROP, "host", 1, WHOLE) == Estimate(GUESSED_RUN_NS, GUESSED_SPREAD, "guess")
    assert estimator.run(CROP, "host", 1, HALF).mean_ns == 1.9 * GUESSED_RUN_NS
    assert estimator.turnaround() == Estimate(GUESSED_TURNAROUND_NS, GUESSED_SPREAD, "guess")


def test_the_first_batch_replaces_the_guess_and_doubt_falls_with_every_other() -> None:
    estimator = learned((4, 8 * MS))
    first = estimator.run(CROP, "host", 4, WHOLE)
    assert first == Estimate(8 * MS, GUESSED_SPREAD, "learned")
    estimator.observe_run(CROP, "host", 4, WHOLE, 8 * MS)
    assert estimator.run(CROP, "host", 4, WHOLE) == Estimate(8 * MS, GUESSED_SPREAD / 2, "learned")
    for _ in range(400):
        estimator.observe_run(CROP, "host", 4, WHOLE, 8 * MS)
    assert estimator.run(CROP, "host", 4, WHOLE).spread < 0.01


def test_old_batches_fade() -> None:
    estimator = learned(*[(1, 20 * MS)] * 64, *[(1, 10 * MS)] * 500)
    estimate = estimator.run(CROP, "host", 1, WHOLE)
    assert estimate.mean_ns == pytest.approx(10 * MS, rel=0.001)
    assert estimate.spread < 0.05


def test_the_spread_is_that_of_single_times() -> None:
    estimator = learned(*[(1, 8 * MS), (1, 12 * MS)] * 200)
    estimate = estimator.run(CROP, "host", 1, WHOLE)
    assert estimate.mean_ns == pytest.approx(10 * MS, rel=0.02)
    assert estimate.spread == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize(
    ("seen", "asked", "expected_ms"),
    [
        ([(1, 10), (5, 30)], 3, 20),  # between
        ([(1, 10), (5, 30)], 9, 50),  # with the last slope
        ([(4, 10), (5, 30)], 10, 60),  # but not faster than in proportion
        ([(4, 30), (5, 10)], 10, 10),  # and not below the largest
        ([(2, 10)], 4, 19),  # a tenth does not depend on the items
        ([(8, 80)], 1, 17),
        ([(4, 10), (8, 30)], 2, 5.5),
    ],
)
def test_sizes_that_were_not_seen_follow_from_those_that_were(
    seen: list[tuple[int, int]], asked: int, expected_ms: float
) -> None:
    estimate = learned(*[(items, ms * MS) for items, ms in seen]).run(CROP, "host", asked, WHOLE)
    assert (estimate.mean_ns, estimate.source) == (round(expected_ms * MS), "learned")
    doubt = GUESSED_SPREAD / len(seen)
    assert doubt < estimate.spread < GUESSED_SPREAD + 0.1, "less sure than what was seen so often, of whatever size"


def test_of_a_share_that_was_not_seen_the_time_follows_from_the_nearest_that_was() -> None:
    estimator = learned((1, 10 * MS), config=Config(8, 1, 20))
    estimator.observe_run(CROP, "host", 1, Config(8, 1, 80), 4 * MS)
    assert estimator.run(CROP, "host", 1, Config(8, 1, 10)).mean_ns == 19 * MS
    assert estimator.run(CROP, "host", 1, Config(8, 1, 100)).mean_ns == 3_280_000
    assert estimator.run(CROP, "host", 1, Config(8, 1, 20)).mean_ns == 10 * MS
    assert estimator.run(CROP, "host", 1, Config(8, 4, 80)).mean_ns == 4 * MS, "cores alone change nothing"


def test_loads_come_from_the_profile_then_from_what_was_seen_then_from_the_prior() -> None:
    estimator = Estimator(TABLE, stages=[READ], load_ns=lambda nbytes: nbytes)
    assert estimator.load("abc", 10, "cpu") == Estimate(70 * MS, 0.1, "profile")
    estimator.observe_load("abc", "cpu", 1)
    assert estimator.load("abc", 10, "cpu").mean_ns == 70 * MS
    assert estimator.load("abc", 1234, "t4") == Estimate(1234, GUESSED_SPREAD, "guess")
    for ms in (100, 200):
        estimator.observe_load("abc", "t4", ms * MS)
    assert estimator.load("abc", 1234, "t4").mean_ns == 150 * MS
    assert estimator.load("abc", 1234, "t4").source == "learned"
    for _ in range(40):
        estimator.observe_load("abc", "t4", 40 * MS)
    assert estimator.load("abc", 1234, "t4").mean_ns == pytest.approx(40 * MS, rel=0.001), "loads of late count"
    assert Estimator(TABLE).load("abc", 0, "cpu").mean_ns == 0, "nobody said that this is the model of `read`"


def test_turnarounds_are_learned_from_the_guess_on_by_kind() -> None:
    estimator = Estimator(ProfileTable())
    estimator.observe_turnaround(1_200 * US, "cpu")
    assert estimator.turnaround("cpu").mean_ns == 500 * US
    assert estimator.turnaround().source == "guess"
    for _ in range(200):
        estimator.observe_turnaround(1_200 * US, "cpu")
    assert estimator.turnaround("cpu").mean_ns == pytest.approx(1_200 * US, rel=0.001)
    assert estimator.turnaround("cpu").spread < 0.02


def test_the_state_is_plain_data_and_a_state_of_another_version_is_refused() -> None:
    estimator = learned((1, 10 * MS), (4, 30 * MS))
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(estimator.state()), type=EstimatorState)
    assert state == estimator.state()
    assert [(row.items, row.mean_ns, row.count) for row in state.runs] == [(1, 10 * MS, 1), (4, 30 * MS, 1)]
    later = msgspec.msgpack.encode({"version": 7})
    with pytest.raises(ProfileError, match="version 7"):
        msgspec.msgpack.decode(later, type=EstimatorState)


def test_a_restored_estimator_forgets_what_it_knew_before() -> None:
    estimator = learned((1, 10 * MS))
    estimator.run(CROP, "host", 1, WHOLE)
    estimator.restore(EstimatorState())
    assert estimator.run(CROP, "host", 1, WHOLE).source == "guess"


def test_a_first_run_counts_until_there_is_another_one_and_the_shortest_of_them():
    predictor = Estimator(ProfileTable())
    one, four = Config(1, 1, 100), Config(4, 1, 100)
    predictor.observe_first(READ, "gpu", 1, one, 500 * MS)
    predictor.observe_first(READ, "gpu", 1, one, 300 * MS)
    predictor.observe_first(READ, "gpu", 1, one, 900 * MS)
    first = predictor.run(READ, "gpu", 1, one)
    assert (first.mean_ns, first.source) == (300 * MS, "learned") and first.spread >= GUESSED_SPREAD
    again = Estimator(ProfileTable(), predictor.state())
    for learns in (predictor, again):
        learns.observe_run(READ, "gpu", 1, one, 20 * MS)
        assert learns.run(READ, "gpu", 1, one).mean_ns == 20 * MS
        before = learns.run(READ, "gpu", 4, four)
        learns.observe_first(READ, "gpu", 4, four, 900 * MS)
        assert learns.run(READ, "gpu", 4, four) == before, "other sizes say more than a first run"


def test_a_first_run_does_not_change_what_a_profile_says():
    predictor = Estimator(ProfileTable([Entry("s", "gpu", points=(Point(1, 1, 10 * MS, 0.0, 1),))]))
    stage = StageSpec("s", "model", (1,), model="s")
    predictor.observe_first(stage, "gpu", 1, Config(1, 1, 100), 900 * MS)
    assert predictor.run(stage, "gpu", 1, Config(1, 1, 100)).mean_ns == 10 * MS
    assert predictor.observed_ratio("s", "gpu") is None


def test_what_is_in_doubt_counts_for_a_few_batches():
    sure, unsure = Estimator(ProfileTable()), Estimator(ProfileTable())
    config = Config(1, 1, 100)
    for predictor in (sure, unsure):
        for _ in range(100):
            predictor.observe_run(READ, "gpu", 1, config, 400 * MS)
    unsure.doubt(READ)
    assert unsure.run(READ, "gpu", 1, config).mean_ns == 400 * MS
    for predictor in (sure, unsure):
        for _ in range(4):
            predictor.observe_run(READ, "gpu", 1, config, 40 * MS)
    assert sure.run(READ, "gpu", 1, config).mean_ns > 370 * MS
    assert unsure.run(READ, "gpu", 1, config).mean_ns == pytest.approx(220 * MS)
