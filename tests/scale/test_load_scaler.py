"""The scaler in the simulator: nothing is lost, nothing flaps, and nothing is below what latency asks for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scale.scaled import CURVE, STAGE, Scaled, every, poisson

from dovetail.control import SetSlice, StartWorker, StopWorker
from dovetail.profile.table import Entry, ProfileTable
from dovetail.scale import ScaleSettings
from dovetail.scale.points import ScalePoint
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec, chain

TWO = ScaleSettings(least=1, most=3, start_ns=500 * MS, zero_ns=20 * SECOND, device_settle_ns=5 * SECOND)
DEVICES = ScaleSettings(least=1, most=3, slices=False, start_ns=500 * MS, device_settle_ns=5 * SECOND)
rates = st.sampled_from([0.0, 3.0, 40.0, 150.0, 400.0])
loads = st.lists(st.tuples(st.integers(1, 4), rates), min_size=2, max_size=3)


@settings(max_examples=6, deadline=None)
@given(loads, st.integers(0, 99), st.booleans())
def test_a_slice_that_is_resized_moved_or_removed_loses_no_request(
    load: list[tuple[int, float]], seed: int, lost: bool
) -> None:
    """Whatever the load does, and if a device is lost in the middle: promises are checked after every step."""
    arrivals = poisson(load, seed)
    s = Scaled(TWO).run(iter(arrivals), [(1, 3 * SECOND)] if lost else ())
    assert sum(s.outcomes.values()) == len(arrivals), "each has one outcome"
    assert not s.controller.requests and s.outcomes.get("failed", 0) == 0
    if arrivals and not lost:
        assert any(isinstance(action, SetSlice) for _, action in s.told)


@settings(max_examples=5, deadline=None)
@given(loads, st.integers(0, 99))
def test_no_slice_is_below_what_the_latency_filter_asks_for(load: list[tuple[int, float]], seed: int) -> None:
    s = Scaled(TWO).run(iter(poisson(load, seed)))
    for _, action in s.slices:
        if action.quota_pct:
            point = s.point(action)
            assert action.quota_pct >= point.least_quota_pct
            assert point.latency_ns(action.quota_pct) <= 0.8 * 300 * MS
    sizes = {action.slice: (action.share_pct, action.quota_pct) for _, action in s.slices if action.quota_pct}
    for run in s.runs:
        assert int(run.client.removeprefix("look#")) in sizes, "batches run in slices and nowhere else"


@pytest.mark.parametrize("gap_ns", [9 * MS, 33 * MS, 250 * MS])
def test_nothing_changes_on_a_constant_load(gap_ns: int) -> None:
    seconds = 25
    s = Scaled(TWO).run(every(gap_ns, seconds * SECOND // gap_ns))
    late = [(at_ns, action) for at_ns, action in s.told if 15 * SECOND < at_ns < (seconds - 1) * SECOND]
    assert late == [], "once it has settled, it stays"
    assert s.outcomes["ok"] >= 0.98 * sum(s.outcomes.values()), "a few wait for its first look"


def test_a_little_less_changes_nothing() -> None:
    s = Scaled(TWO).run(iter([*every(10 * MS, 1200), *every(10_600_000, 1200, 12 * SECOND)]))
    assert [at_ns for at_ns, _ in s.told if 8 * SECOND < at_ns < 24 * SECOND] == [], "94/s after 100/s"


def test_the_quota_comes_first_then_the_share_then_replicas_and_devices() -> None:
    load = poisson([(10, 5), (10, 40), (10, 100), (10, 500)], 1)
    s = Scaled(TWO).run(iter(load))
    opened = {action.slice: at_ns for at_ns, action in reversed(s.slices) if action.quota_pct}
    before = [action for at_ns, action in s.slices if at_ns < 10 * SECOND]
    assert {action.slice for action in before} == {1}, "a low rate has one slice"
    first = [a for at, a in s.slices if at < 30 * SECOND]
    assert {a.slice for a in first} == {1} and len({a.quota_pct for a in first}) > 2, "which is resized"
    assert len(opened) > 1 and min(at for i, at in opened.items() if i > 1) > 30 * SECOND, "replicas come last"
    starts = [at_ns for at_ns, action in s.told if isinstance(action, StartWorker)]
    assert starts and min(starts) > 30 * SECOND, "and then devices"
    stops = [at_ns for at_ns, action in s.told if isinstance(action, StopWorker)]
    assert len(stops) == len(starts) and min(stops) > 40 * SECOND, "which go when they are not needed any more"
    assert all(action.reason for _, action in s.told), "every decision has its reason"


def test_a_stage_that_nothing_comes_for_has_no_slice_and_wakes_with_its_next_request() -> None:
    s = Scaled(TWO).run(iter([*every(100 * MS, 20), *every(100 * MS, 5, 60 * SECOND)]))
    closed = [at_ns for at_ns, action in s.slices if not action.quota_pct]
    assert len(closed) == 2 and 21 * SECOND < closed[0] < 25 * SECOND, "twenty seconds after the last one"
    woken = [action for at_ns, action in s.slices if at_ns == 60 * SECOND]
    assert len(woken) == 1 and woken[0].quota_pct, "in the very step in which the next one comes"
    assert s.outcomes == {"ok": 25}


def test_without_a_device_requests_are_held_and_one_is_started() -> None:
    zero = ScaleSettings(least=0, most=1, start_ns=500 * MS, zero_ns=5 * SECOND, device_settle_ns=2 * SECOND)
    s = Scaled(zero, devices=0).run(every(300 * MS, 5))
    (_, started), *rest = s.told
    assert isinstance(started, StartWorker) and "no device" in started.reason
    assert sum(s.outcomes.values()) == 5 and s.outcomes.get("ok", 0) >= 3, "those who can still be in time are"
    assert isinstance(rest[-1][1], StopWorker), "and nothing is left in the end"
    assert not s.controller.workers


def test_without_slices_the_last_device_goes_when_nothing_has_come_for_long_and_comes_back() -> None:
    zero = ScaleSettings(least=0, most=1, slices=False, start_ns=500 * MS, zero_ns=20 * SECOND)
    s = Scaled(zero, start_ms=100).run(iter([*every(100 * MS, 20), *every(100 * MS, 5, 60 * SECOND)]))
    went = [at_ns for at_ns, action in s.told if isinstance(action, StopWorker)]
    assert 36 * SECOND < went[0] < 41 * SECOND, "twenty seconds after the last one, and fifteen more without need"
    came = [at_ns for at_ns, action in s.told if isinstance(action, StartWorker)]
    assert came == [60 * SECOND] and s.outcomes == {"ok": 25}, "those that come meanwhile are held"


@pytest.mark.parametrize("learns", [True, False])
def test_where_times_are_learned_what_slices_yield_is_worked_out_anew(learns: bool) -> None:
    def points(requests: int) -> list[ScalePoint]:
        s = Scaled(ScaleSettings(learns=learns), table=ProfileTable([])).run(every(4 * MS, requests))
        return s.scaler._stages["look"].points

    assert (points(5) != points(1000)) == learns


def test_what_is_only_said_is_not_done() -> None:
    load = poisson([(5, 20), (10, 900)], 2)
    dry = Scaled(ScaleSettings(least=1, most=3, dry=True)).run(iter(load))
    assert dry.told and all(action.dry for _, action in dry.told)  # type: ignore[union-attr]
    assert any(isinstance(action, StartWorker) for _, action in dry.told)
    assert list(dry.controller.workers) == [1] and all(not run.client for run in dry.runs)


def test_only_devices_come_and_go_without_slices_decision_by_decision() -> None:
    """A golden list: 50 requests a second for five seconds, 625 for five, and then 50 again."""
    load = [*every(20 * MS, 250), *every(1_600_000, 3125, 5 * SECOND), *every(20 * MS, 500, 10 * SECOND)]
    s = Scaled(DEVICES).run(iter(load))
    enough = "1 device has been enough for 5 s"
    assert [(at_ns // MS, type(a), getattr(a, "worker", 0), a.reason) for at_ns, a in s.told] == [  # type: ignore[union-attr]
        (6000, StartWorker, 0, "look: 625.0/s come"),
        (6000, StartWorker, 0, "look: 625.0/s come"),
        (16000, StopWorker, 3, enough),
        (22000, StopWorker, 2, enough),
    ]
    assert sum(s.outcomes.values()) == len(load) and "failed" not in s.outcomes
    assert all(not run.client for run in s.runs), "batches have what is free"


def test_what_is_late_on_any_device_has_no_more_of_them() -> None:
    s = Scaled(DEVICES, graph=chain("flow", 15 * MS, [STAGE])).run(every(100 * MS, 50))
    assert s.told == []


def test_without_slices_what_a_device_yields_is_learned() -> None:
    def four_ns(s: Scaled) -> int:
        return next(p.batch_ns for p in s.scaler._stages["look"].points if (p.share_pct, p.batch) == (100, 4))

    guessed = four_ns(Scaled(DEVICES, table=ProfileTable([])).run(every(20 * MS, 5)))
    learned = four_ns(Scaled(DEVICES, table=ProfileTable([])).run(every(4 * MS, 1000)))
    assert guessed > 25 * MS and 14 * MS <= learned <= 18 * MS, "it takes 16 ms"


def test_a_surge_decision_by_decision() -> None:
    """A golden list: 10 requests a second for five seconds, 200 for five, and then none."""
    load = [*every(100 * MS, 50), *every(5 * MS, 1000, 5 * SECOND)]
    s = Scaled(TWO).run(iter(load))
    said = [(at_ns // MS, a.slice, a.share_pct, a.quota_pct, a.batch) for at_ns, a in s.slices]
    assert said == GOLDEN
    assert s.outcomes == {"ok": 1050}


#: (ms, slice, share, quota, batch). It wakes for the first request; 10/s are known after a second; 200/s are seen
#: 200 ms after they begin; after the last request it shrinks, and goes 20 s later.
GOLDEN = [
    (0, 1, 30, 13, 1), (1000, 1, 60, 13, 2), (5200, 1, 100, 83, 4), (10600, 1, 100, 35, 4), (11600, 1, 40, 7, 1),
    (30600, 1, 0, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("load_s", "stays_s"), [(0, 5), (20, 20.5)])
def test_a_device_that_is_not_needed_stays_for_as_long_as_another_would_take(load_s: int, stays_s: float) -> None:
    """The scaler is told that a model takes so long to load; in the world that is run it takes no time."""
    table = ProfileTable([Entry("look", "gpu", curve=CURVE, load_ns=load_s * SECOND)])
    s = Scaled(TWO, table=table).run(iter([*poisson([(10, 400)], 1), *every(100 * MS, 400, 10 * SECOND)]))
    started = [at_ns for at_ns, action in s.told if isinstance(action, StartWorker)]
    stopped = [(at_ns, action) for at_ns, action in s.told if isinstance(action, StopWorker)]
    assert started and len(stopped) == len(started)
    at_ns, first = stopped[0]
    assert 10 + stays_s <= at_ns / SECOND < 10 + stays_s + 5, "the load falls after ten seconds"
    assert f"has been enough for {round(stays_s)} s" in first.reason or "have been enough" in first.reason


def test_a_stage_with_a_slice_of_its_own_keeps_a_device_while_it_is_asked_for_and_brings_it_back() -> None:
    """The scaler sets no slice of it, so that none of its slices says that the device is needed."""
    own = StageSpec(
        "look", "model", (1, 2, 4), model="look", weights_bytes=1 << 20, share_pct=100, quota_pct=60, client="flow"
    )
    zero = ScaleSettings(least=0, most=2, start_ns=500 * MS, zero_ns=5 * SECOND, device_settle_ns=2 * SECOND)
    s = Scaled(zero, graph=chain("flow", 2 * SECOND, [own])).run(
        iter([*every(100 * MS, 100), *every(100 * MS, 50, 40 * SECOND)])
    )
    told = [(at_ns, type(action)) for at_ns, action in s.told]
    (stopped, _), (started, _) = told[0], told[1]
    assert [kind for _, kind in told[:2]] == [StopWorker, StartWorker]
    assert 15 * SECOND <= stopped < 25 * SECOND, "not while it is asked for"
    assert 40 * SECOND <= started < 42 * SECOND
    assert s.outcomes == {"ok": 150}
