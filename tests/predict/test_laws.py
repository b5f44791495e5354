"""Laws of the estimator: whatever is observed, in whatever order."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dovetail.predict import Estimator, EstimatorState
from dovetail.predict.sizes import WINDOW
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.state import Config
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec

STAGES = tuple(StageSpec(name, "onnx", (1, 8), model=f"m-{name}", weights_bytes=7) for name in ("a", "b", "c"))
KINDS = ("cpu", "v100")
CONFIGS = (Config(8, 1, 25), Config(8, 2, 50), Config(8, 4, 100))
#: The first stage has a profile on one of the kinds.
TABLE = ProfileTable([Entry("a", "cpu", points=(Point(1, 1, 5 * MS, 0.2, 9),), load_ns=3 * MS, spread=0.2)])
SIZES = (1, 2, 3, 5, 8, 13, 40)

times = st.integers(0, 100 * SECOND)
runs = st.tuples(st.sampled_from(STAGES), st.sampled_from(KINDS), st.integers(1, 12), st.sampled_from(CONFIGS), times)
loads = st.tuples(st.sampled_from(STAGES), st.sampled_from(KINDS), times)
turnarounds = st.tuples(st.sampled_from(KINDS), times)
kernels = st.tuples(st.sampled_from("xyz"), st.integers(1, 3), times)
observations = st.lists(st.one_of(runs, loads, turnarounds, kernels), max_size=60)


def told(observed: list[tuple[object, ...]]) -> Estimator:
    estimator = Estimator(TABLE, stages=STAGES)
    for one in observed:
        tell(estimator, one)
    return estimator


def tell(estimator: Estimator, one: tuple[object, ...]) -> None:
    match one:
        case (StageSpec() as stage, str(kind), int(items), Config() as config, int(ns)):
            estimator.observe_run(stage, kind, items, config, ns)
        case (StageSpec() as stage, str(kind), int(ns)):
            estimator.observe_load(stage.weights, kind, ns)
        case (str(kind), int(ns)):
            estimator.observe_turnaround(ns, kind)
        case (str(name), int(count), int(ns)):
            stats = estimator.sequence(name, [f"{name}{i}" for i in range(count)])
            assert stats is not None
            stats.observe(0, ns)


def answers(estimator: Estimator) -> list[object]:
    """Everything that can be asked."""
    found: list[object] = [
        estimator.run(stage, kind, items, config)
        for stage in STAGES
        for kind in KINDS
        for items in SIZES
        for config in (*CONFIGS, Config(8, 3, 75))
    ]
    found += [estimator.load(stage.weights, 1000, kind) for stage in STAGES for kind in KINDS]
    found += [estimator.turnaround(kind) for kind in ("", *KINDS)]
    found += [estimator.observed_ratio(stage.name, kind) for stage in STAGES for kind in KINDS]
    found += [msgspec.json.encode(estimator.kernels.get(name)) for name in "xyz"]
    return found


@given(observations, observations)
def test_a_restored_estimator_answers_the_same_and_goes_on_the_same(
    first: list[tuple[object, ...]], then: list[tuple[object, ...]]
) -> None:
    one = told(first)
    one.news(10_000)  # what was told to others is no part of what is known
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(one.state()), type=EstimatorState)
    other = Estimator(TABLE, state, stages=STAGES)
    assert answers(other) == answers(one)
    for observed in then:
        tell(one, observed)
        tell(other, observed)
    assert answers(other) == answers(one)
    assert other.state() == one.state()


@given(observations, st.randoms(use_true_random=False))
def test_the_order_of_what_has_nothing_to_do_with_each_other_does_not_matter(
    observed: list[tuple[object, ...]], random: object
) -> None:
    """Observations of one thing keep their order; all others are mixed.

    All sizes of a profiled stage on one kind of device are one thing: together they teach how far it scatters.
    """
    piles: dict[object, list[tuple[object, ...]]] = {}
    for one in observed:
        thing: object = one[:-1] if len(one) != 3 or isinstance(one[0], StageSpec) else one[0]
        if len(one) == 5 and isinstance(one[0], StageSpec) and (one[0].name, one[1]) in TABLE.entries:
            thing = one[:2]
        piles.setdefault(thing, []).append(one)
    mixed: list[tuple[object, ...]] = []
    left = [pile[:] for pile in piles.values()]
    while left:
        pile = random.choice(left)  # type: ignore[attr-defined]
        mixed.append(pile.pop(0))
        left = [p for p in left if p]
    assert answers(told(mixed)) == answers(told(observed))


@given(observations)
def test_means_are_positive_and_spreads_never_negative(observed: list[tuple[object, ...]]) -> None:
    estimator = told(observed)
    for stage in STAGES:
        for kind in KINDS:
            for items in SIZES:
                for config in CONFIGS:
                    estimate = estimator.run(stage, kind, items, config)
                    assert estimate.mean_ns > 0 and estimate.spread >= 0
            assert estimator.load(stage.weights, 1000, kind).spread >= 0
    assert all(estimator.turnaround(kind).spread >= 0 for kind in KINDS)


@given(st.lists(times, max_size=100), st.integers(0, SECOND))
def test_the_mean_of_constant_times_converges_to_the_constant(before: list[int], constant: int) -> None:
    stage, config = STAGES[1], CONFIGS[2]
    estimator = Estimator(ProfileTable())
    for ns in before:
        estimator.observe_run(stage, "cpu", 4, config, ns)
    for _ in range(2500):
        estimator.observe_run(stage, "cpu", 4, config, constant)
    estimate = estimator.run(stage, "cpu", 4, config)
    assert abs(estimate.mean_ns - constant) <= WINDOW, "integers: a step below one of the window is none"
    if not before:
        assert estimate.mean_ns == max(1, constant)


@given(st.dictionaries(st.integers(1, 64), st.integers(1, SECOND), min_size=1, max_size=6))
def test_unseen_sizes_lie_between_seen_ones_and_rise_with_the_items(seen: dict[int, int]) -> None:
    """If the times that were seen rise with the items, as they do."""
    sizes, ns = sorted(seen), sorted(seen.values())
    estimator = Estimator(ProfileTable())
    for items, duration_ns in zip(sizes, ns, strict=True):
        estimator.observe_run(STAGES[1], "cpu", items, CONFIGS[2], duration_ns)
    means = [estimator.run(STAGES[1], "cpu", items, CONFIGS[2]).mean_ns for items in range(1, 130)]
    assert all(before <= after for before, after in pairwise(means))
    for items, duration_ns in zip(sizes, ns, strict=True):
        assert means[items - 1] == duration_ns
    largest = sizes[-1]
    for items in range(largest, 130):
        assert means[items - 1] * largest <= ns[-1] * items + largest, "not worse than in proportion"


@given(times, st.integers(1, 12))
def test_a_profile_does_not_drift(duration_ns: int, items: int) -> None:
    estimator = Estimator(TABLE)
    before = estimator.run(STAGES[0], "cpu", items, CONFIGS[0])
    for _ in range(3):
        estimator.observe_run(STAGES[0], "cpu", items, CONFIGS[0], duration_ns)
    after = estimator.run(STAGES[0], "cpu", items, CONFIGS[0])
    assert (after.mean_ns, after.source) == (before.mean_ns, before.source)
