"""How far profiled times scatter: the profile's word at first, then what is seen, and a replay says the same."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.predict import Estimate, Estimator
from dovetail.predict.scatter import CHANGE, PRIOR, WINDOW, Scatter
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.state import Config
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

READ = StageSpec("read", "onnx", (1, 2), model="abc")
WHOLE = Config(2, 4, 100)
POINTS = (Point(1, 4, 5 * MS, 0.05, 20), Point(2, 4, 8 * MS, 0.05, 20))
TABLE = ProfileTable([Entry("read", "cpu", points=POINTS, spread=0.05)])


def scattered(spread: float, count: int, *, profiled: float = 0.05, slower: float = 1.0) -> Scatter:
    rng = random.Random(7)
    found = Scatter(profiled)
    for _ in range(count):
        found.add(round(10 * MS * slower * max(0.01, rng.gauss(1.0, spread))), 10 * MS)
    return found


@pytest.mark.parametrize("spread", [0.2, 0.05, 0.0125])
def test_what_is_believed_becomes_what_is_seen(spread: float) -> None:
    assert scattered(spread, 8 * WINDOW, profiled=0.05).said == pytest.approx(spread, abs=0.2 * spread + 0.006)


def test_the_profile_weighs_as_much_as_so_many_times() -> None:
    found = Scatter(0.1)
    for i in range(PRIOR):
        found.add(10 * MS + (1 if i % 2 else -1) * 3 * MS, 10 * MS)
    # Two like variances, 0.1² and 0.3², the latter over one time less than there are.
    assert found.spread() == pytest.approx(((0.01 + 0.09 * PRIOR / (PRIOR - 1)) / 2) ** 0.5, rel=1e-3)


def test_a_machine_that_is_slower_than_its_profile_does_not_scatter_more() -> None:
    assert scattered(0.05, 4 * WINDOW, slower=2.0).said == pytest.approx(0.05, rel=CHANGE)


def test_what_is_said_changes_by_a_fifth_or_not_at_all() -> None:
    found = Scatter(0.05)
    rng = random.Random(3)
    said = found.said
    for _ in range(2000):
        changed = found.add(round(10 * MS * rng.gauss(1.0, 0.2)), 10 * MS)
        assert changed == (found.said != said)
        if changed:
            assert abs(found.said - said) > CHANGE * said
        said = found.said


def test_all_configurations_of_a_stage_teach_the_same_figure_and_all_answers_have_it() -> None:
    estimator = Estimator(TABLE)
    assert estimator.run(READ, "cpu", 2, WHOLE) == Estimate(8 * MS, 0.05, "profile")
    rng = random.Random(5)
    for i in range(512):
        mean_ns = 5 * MS if i % 2 else 8 * MS
        estimator.observe_run(READ, "cpu", 1 if i % 2 else 2, WHOLE, round(mean_ns * rng.gauss(1.0, 0.2)))
    one, both = estimator.run(READ, "cpu", 1, WHOLE), estimator.run(READ, "cpu", 2, WHOLE)
    assert (one.mean_ns, both.mean_ns) == (5 * MS, 8 * MS), "the means stand"
    assert one.spread == both.spread == pytest.approx(0.19, abs=0.03)
    assert estimator.run(READ, "host", 1, WHOLE).source == "guess"


@given(st.lists(st.integers(1 * MS, 20 * MS), max_size=80), st.integers(0, 80))
def test_a_restored_estimator_says_the_same_and_goes_on_the_same(times_ns: list[int], at: int) -> None:
    whole, first = Estimator(TABLE), Estimator(TABLE)
    for time_ns in times_ns:
        whole.observe_run(READ, "cpu", 1, WHOLE, time_ns)
    for time_ns in times_ns[:at]:
        first.observe_run(READ, "cpu", 1, WHOLE, time_ns)
    second = Estimator(TABLE, first.state())
    for time_ns in times_ns[at:]:
        second.observe_run(READ, "cpu", 1, WHOLE, time_ns)
    assert second.run(READ, "cpu", 1, WHOLE) == whole.run(READ, "cpu", 1, WHOLE)
    assert second.state().scatters == whole.state().scatters


def test_what_was_learned_of_a_stage_that_has_no_profile_any_more_is_let_go() -> None:
    estimator = Estimator(TABLE)
    estimator.observe_run(READ, "cpu", 1, WHOLE, 5 * MS)
    assert estimator.state().scatters and estimator.state()
    assert Estimator(ProfileTable(), estimator.state()).state().scatters == ()
