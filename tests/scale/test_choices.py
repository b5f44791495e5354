"""Points and their latency filter, and which slices are chosen of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.scale.scaled import STAGE, TABLE

from dovetail.predict import Estimator
from dovetail.scale.choose import choose, headroom_per_s
from dovetail.scale.fitting import Wanted, fit
from dovetail.scale.points import SHARES_PCT, ScalePoint, limits_ns, points_of
from dovetail.state.slice import QUOTA_WINDOW_NS
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec, chain

limits = st.integers(5, 2000).map(lambda ms: ms * MS)


def points(limit_ns: int) -> list[ScalePoint]:
    return points_of(STAGE, "gpu", 0, Estimator(TABLE), limit_ns, SHARES_PCT)


@given(limits)
def test_a_point_is_in_time_with_its_least_quota_and_not_with_less(limit_ns: int) -> None:
    found = points(limit_ns)
    for point in found:
        if len(found) > 1:
            assert point.latency_ns(point.least_quota_pct) <= limit_ns + 1
        if 1 < point.least_quota_pct <= 100 and len(found) > 1:
            assert point.latency_ns(point.least_quota_pct - 1) > limit_ns - MS
    for sooner, later in pairwise(found):
        assert sooner.rpr >= later.rpr, "the most efficient first"


def test_without_a_filter_the_slowest_point_would_be_taken() -> None:
    """By FaST-GShare's throughput per resource alone a batch of 320 ms on a twentieth is as good as any."""
    every = points(100 * SECOND)
    assert max(point.batch_ns for point in every if point.rpr > 0.999 * every[0].rpr) == 320 * MS
    assert all(2 * point.batch_ns <= 60 * MS for point in points(60 * MS))


def test_if_nothing_is_in_time_the_fastest_is_what_there_is() -> None:
    (only,) = points(5 * MS)
    assert (only.batch_ns, only.batch, only.least_quota_pct) == (10 * MS, 1, 100)


def test_a_stage_s_part_of_the_objective_is_its_part_of_the_time() -> None:
    stages = [StageSpec(name, "model", (1,)) for name in "abc"]
    graph = chain("flow", 100 * MS, stages, {"a": [], "b": [], "c": ["a", "b"]})
    parts = limits_ns([graph], {"a": 3 * MS, "b": 1 * MS, "c": 1 * MS}, 1.0)
    assert parts == {"a": 75 * MS, "b": 25 * MS, "c": 25 * MS}
    tight = chain("tight", 50 * MS, [stages[0]])
    assert limits_ns([graph, tight], {"a": 3 * MS, "b": MS, "c": MS}, 0.5)["a"] == 25 * MS


@given(limits, st.floats(0.1, 2000))
def test_what_is_chosen_is_enough_in_time_and_whole(limit_ns: int, per_s: float) -> None:
    choice = choose(points(limit_ns), per_s)
    assert choice.per_s >= per_s * 0.999
    assert choice.point.least_quota_pct <= choice.quota_pct <= 100
    for other in points(limit_ns):
        alone = max(1, -(-per_s // other.per_s))
        assert choice.area <= alone * other.share_pct * 100 * 1.05, "whole slices of any point are no cheaper"


@given(st.floats(1, 500), st.floats(1.01, 3))
def test_more_is_asked_for_more(per_s: float, times: float) -> None:
    less, more = choose(points(300 * MS), per_s), choose(points(300 * MS), per_s * times)
    assert more.area >= less.area * 0.95


def test_shares_stay_as_they_are_if_another_is_hardly_better() -> None:
    found = points(240 * MS)
    for share in {p.share_pct for p in found if p.rpr > 0.96 * found[0].rpr}:
        assert choose(found, 30.0, share).count == 1


def test_headroom_depends_on_the_time_that_there_is_and_not_on_the_rate() -> None:
    assert headroom_per_s(SECOND, 0.05) < headroom_per_s(SECOND // 10, 0.05)
    assert headroom_per_s(SECOND, 0.01) > headroom_per_s(SECOND, 0.05)
    bare, safe = choose(points(240 * MS), 50.0), choose(points(240 * MS), 50.0, limit_ns=240 * MS, late=0.01)
    assert safe.per_s > bare.per_s + 5


pieces = st.builds(Wanted, st.just("s"), st.sampled_from([10, 25, 50, 60, 100]), st.integers(1, 100))


@given(st.lists(pieces, max_size=6), st.integers(0, 3))
def test_slices_fit_beside_each_other_and_what_does_not_fit_is_said(wanted: list[Wanted], devices: int) -> None:
    found = fit(wanted, range(1, devices + 1))
    assert len(found.placed) + len(found.homeless) == len(wanted)
    for worker in range(1, devices + 1):
        here = [w for w, at in found.placed if at == worker]
        assert sum(w.share_pct * w.quota_pct for w in here) <= 100 * 100
    assert (found.more > 0) == bool(found.homeless)


def test_who_is_there_stays_and_who_grows_too_large_moves() -> None:
    still = Wanted("s", 50, 100, 1, 1, (50, 100))
    grown = Wanted("s", 60, 100, 2, 1, (50, 100))
    found = fit([grown, still], [1, 2])
    assert {w.slice: at for w, at in found.placed} == {1: 1, 2: 2}
    assert fit([still], [1, 2], avoid=1).placed == ((still, 2),)
    assert fit([grown, still], [1]).homeless == (grown,)


def test_the_window_of_quotas_is_the_one_that_devices_keep() -> None:
    from dovetail.device import TokenSettings

    assert TokenSettings().window_ns == QUOTA_WINDOW_NS
