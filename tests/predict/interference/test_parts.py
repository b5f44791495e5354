"""The parts of the predictor of interference: how neighbours add up, weights, margins, drift, the work integral."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.predict.interference import Load, Piece, Work, ends_ns
from dovetail.predict.interference.crowd import forward_ns, over_time, together
from dovetail.predict.interference.drift import Drift
from dovetail.predict.interference.features import NAMES, PRIOR_DEVIATION, PRIOR_MEAN, row
from dovetail.predict.interference.load import quarter_octaves
from dovetail.predict.interference.margin import ENOUGH, LEVELS, WINDOW, Margin
from dovetail.predict.interference.presence import Presence
from dovetail.predict.interference.records import PresenceState
from dovetail.predict.interference.weights import Weights
from dovetail.sim.contention import PairContention, slowdown
from dovetail.sim.fluid import Flow, Fluid

costs = st.lists(st.floats(-0.3, 1.5), min_size=1, max_size=5)


def test_costs_are_added_multiplied_or_the_worst_counts() -> None:
    two = [math.log(2.0), math.log(3.0)]
    assert math.exp(together(two, 0.0, 1.0)[0]) == pytest.approx(4.0)
    assert math.exp(together(two, 0.0, 1e-6)[0]) == pytest.approx(6.0, rel=1e-3)
    assert math.exp(together(two, 0.0, 30.0)[0]) == pytest.approx(3.0, rel=1e-3)
    assert together([-0.5], 0.0, 1.0)[0] == 0.0


@settings(max_examples=60, deadline=None)
@given(costs, st.floats(0.3, 3), st.floats(0.01, 0.8))
def test_derivatives_are_those_of_the_slow_down(costs: list[float], power: float, crowd: float) -> None:
    costs = [cost if abs(cost) > 1e-3 else 0.01 for cost in costs]
    value, by_cost, by_crowd, by_power = together(costs, crowd, power)
    step = 1e-6
    for j, cost in enumerate(costs):
        if cost > 0:
            moved = together([*costs[:j], cost + step, *costs[j + 1 :]], crowd, power)[0]
            assert (moved - value) / step == pytest.approx(by_cost[j], abs=1e-3)
    assert (together(costs, crowd + step, power)[0] - value) / step == pytest.approx(by_crowd, abs=1e-3)
    assert (together(costs, crowd, power + step)[0] - value) / step == pytest.approx(by_power, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(-0.2, 0.9), st.floats(0.05, 1.2)), max_size=4), st.data())
def test_over_time_is_harmonic_and_its_derivatives_are_right(
    drawn: list[tuple[float, float, float]], data: st.DataObject
) -> None:
    costs = [cost for cost, _, _ in drawn]
    spans = [(begin, begin + length) for _, begin, length in drawn]
    shares, power, weight = [60] * len(drawn), data.draw(st.floats(0.5, 2)), 0.4
    value, by_cost, by_crowd, by_power = over_time(costs, spans, shares, 60, weight, power)
    # By hand: a thousand thin slices.
    rate = 0.0
    for slice_ in range(2000):
        at = (slice_ + 0.5) / 2000
        there = [cost for cost, (begin, end) in zip(costs, spans, strict=True) if begin <= at < end]
        crowd = weight * math.log(0.6 * (len(there) + 1)) if len(there) > 1 else 0.0
        rate += math.exp(-together(there, crowd, power)[0]) / 2000
    assert value == pytest.approx(-math.log(rate), abs=5e-3)
    step = 1e-6
    for j in range(len(costs)):
        moved = over_time([*costs[:j], costs[j] + step, *costs[j + 1 :]], spans, shares, 60, weight, power)[0]
        assert (moved - value) / step == pytest.approx(by_cost[j], abs=1e-3)
    assert (over_time(costs, spans, shares, 60, weight + step, power)[0] - value) / step == pytest.approx(
        by_crowd, abs=1e-3
    )
    assert (over_time(costs, spans, shares, 60, weight, power + step)[0] - value) / step == pytest.approx(
        by_power, abs=1e-3
    )


def test_work_falls_at_the_rate_of_those_who_are_still_there() -> None:
    three, two = math.log(3.0), math.log(2.0)
    assert forward_ns(10, [three], [0] * 1, [15], [50], 50, 0.0, 1.0) == pytest.approx(20)
    assert forward_ns(10, [three], [0] * 1, [1000], [50], 50, 0.0, 1.0) == pytest.approx(30)
    assert forward_ns(10, [three], [0] * 1, [0], [50], 50, 0.0, 1.0) == pytest.approx(10)
    # At 4 for 8 (2 done), at 2 for 6 (3 done), then 5 alone.
    assert forward_ns(10, [three, two], [0] * 2, [8, 14], [0, 0], 50, 0.0, 1.0) == pytest.approx(19)
    # Alone for 4, then at 3.
    assert forward_ns(10, [three], [4], [1000], [50], 50, 0.0, 1.0) == pytest.approx(22)
    assert forward_ns(10, [three], [4], [7], [50], 50, 0.0, 1.0) == pytest.approx(12)
    # Two others who ask for twice the device together with the victim: a weight of one is a device that is divided
    # evenly, so all take twice as long while both are there.
    assert forward_ns(10, [0.0, 0.0], [0] * 2, [1000, 1000], [50, 100], 50, 1.0, 1.0) == pytest.approx(20)
    assert forward_ns(10, [0.0, 0.0], [0] * 2, [6, 1000], [50, 100], 50, 1.0, 1.0) == pytest.approx(13)


def test_what_a_crowd_costs_is_learned_from_nothing() -> None:
    """Its derivative is there where its weight is nought: else it would stay nought for ever."""
    assert together([0.0, 0.0], 0.0, 1.0)[2] == pytest.approx(1.0)
    by_crowd = over_time([0.0, 0.0], [(0.0, 1.0)] * 2, [50, 50], 50, 0.0, 1.0)[2]
    assert by_crowd == pytest.approx(math.log(1.5))


def test_a_direction_that_is_not_seen_stays_as_certain_as_it_was() -> None:
    weights = Weights([0.0, 0.0], [1.0, 1.0])
    first, second = np.array([1.0, 0.0]), np.array([0.0, 1.0])

    def see(direction: np.ndarray, value: float, memory: float) -> None:
        along, variance = weights.doubt(direction)
        error = value - float(weights.mean.dot(direction))
        weights.learn(direction, along, variance, error, variance + 0.01, 0.01 / memory)

    for _ in range(50):
        see(first, 2.0, 100)
    certain = weights.doubt(first)[1]
    for _ in range(5000):
        see(second, 1.0, 100)
    assert weights.doubt(first)[1] == pytest.approx(certain)
    assert float(weights.mean[0]) == pytest.approx(2.0, abs=0.01)
    assert weights.doubt(second)[1] == pytest.approx(0.01 / 100), "no surer than its memory allows"
    see(second, 1.0, 4)
    assert weights.doubt(second)[1] == pytest.approx(0.01 / 4), "a shorter memory takes effect at once"


def test_a_margin_is_wide_before_enough_was_seen_then_as_seen_then_corrected() -> None:
    margin = Margin()
    assert margin.bound(0.95) == pytest.approx(1.5 * 1.645, abs=0.01)
    for count in range(ENOUGH):
        margin.add(count / 10)
    assert margin.bound(0.5) < margin.bound(0.9) <= margin.bound(0.99)
    assert margin.bound(0.93) == margin.bound(0.95), "the next level above"
    for _ in range(3 * WINDOW):
        margin.add(1.0)
    assert margin.bound(0.95) == 1.0
    high = margin.bound(0.95)
    for _ in range(30):
        margin.add(2.0)
    assert margin.bound(0.95) > high, "misses raise the bound"
    assert len(margin.state().errors) == WINDOW
    assert margin.state() == Margin(margin.state()).state()


def test_coverage_is_counted() -> None:
    margin = Margin()
    for error in (0.0, 0.0, 100.0, 0.0):
        margin.add(error)
    assert margin.coverage(0.95) == 0.75
    assert margin.asked == 4 and len(margin.hits) == len(LEVELS)


def test_one_outlier_is_no_change_and_many_in_a_row_are() -> None:
    drift = Drift()
    drift.seen(50.0)
    assert drift.haste == 0.0
    for _ in range(20):
        drift.seen(0.8)
    assert drift.total == 0.0
    for _ in range(4):
        drift.seen(-4.0)
    assert (drift.haste, drift.alarms) == (1.0, 1)
    for _ in range(200):
        drift.seen(0.5)
    assert drift.haste < 0.01 and drift.alarms == 1


def test_a_row_has_a_number_for_each_feature() -> None:
    assert len(row(Load("a"), Load("b"))) == len(NAMES) == len(PRIOR_MEAN) == len(PRIOR_DEVIATION)
    unknown = dict(zip(NAMES, row(Load("a"), Load("b", memory=0.5)), strict=True))
    assert unknown["other's memory"] == 0.0, "half a pair says nothing"
    over = dict(zip(NAMES, row(Load("a", share_pct=80), Load("b", share_pct=70)), strict=True))
    assert over["over"] == 0.5
    assert quarter_octaves(2_000_000) - quarter_octaves(1_000_000) == 4


def test_the_integral_ends_when_the_simulated_device_does() -> None:
    """With the device's own slow-downs, the integral forward in time is what happens there."""
    plan = [(0, 30, "compute", 40_000), (0, 50, "memory", 90_000), (25_000, 60, "memory", 50_000),
            (400_000, 10, "compute", 10_000)]  # fmt: skip
    heap: list[tuple[int, int, Flow]] = []
    fluid = Fluid(lambda at, _owner, flow: heap.append((at, len(heap), flow)), None, PairContention())
    done: dict[int, int] = {}
    flows = [Flow() for _ in plan]
    for flow, (_, share, kind, _) in zip(flows, plan, strict=True):
        flow.share_pct, flow.kind = share, kind
    waiting = list(range(len(plan)))
    while len(done) < len(plan):
        begin = min((plan[j][0] for j in waiting), default=1 << 60)
        live = [(at, order, flow) for at, order, flow in heap if flow.end_ns == at and flow in fluid.running]
        if live and min(live)[0] <= begin:
            at, _, flow = min(live, key=lambda entry: entry[:2])
            done[flows.index(flow)] = at
            fluid.end(flow, at)
        else:
            j = next(j for j in waiting if plan[j][0] == begin)
            waiting.remove(j)
            fluid.begin(flows[j], plan[j][3], begin)

    def slow(victim: Load, others: Sequence[Load]) -> float:
        return 1 + sum(slowdown(victim.model, victim.share_pct, o.model, o.share_pct) - 1 for o in others)

    works = [Work((Piece(Load(kind, 1, share), ns),), at) for at, share, kind, ns in plan]
    assert ends_ns(works, slow) == pytest.approx([done[j] for j in range(len(plan))], abs=3)


def test_pieces_of_a_batch_meet_their_neighbours_one_after_the_other() -> None:
    def slow(victim: Load, others: Sequence[Load]) -> float:
        return 2.0 if any(other.model == victim.model for other in others) else 1.0

    long = Work((Piece(Load("memory"), 100.0),))
    mixed = Work((Piece(Load("memory"), 10.0), Piece(Load("compute"), 10.0)))
    # Both slow while both use the memory: 20; then the mixed one computes for 10 alone.
    assert ends_ns([long, mixed], slow) == pytest.approx([110.0, 30.0])
    assert ends_ns([Work(()), Work((Piece(Load("x"), 5.0),), 7.0)], slow) == [0.0, 12.0]


def test_who_waits_begins_when_somebody_ends() -> None:
    def slow(_victim: Load, others: Sequence[Load]) -> float:
        return 1.0 + len(others)

    works = [Work((Piece(Load(name), ns),)) for name, ns in (("a", 10.0), ("b", 4.0), ("c", 2.0))]
    # a and b share until 8; then a, which has 6 left, and c until 12; a goes on alone with 4.
    assert ends_ns(works, slow, 2) == pytest.approx([16.0, 8.0, 12.0])
    assert ends_ns(works, slow, 1) == pytest.approx([10.0, 14.0, 16.0])


def test_a_bound_beyond_all_that_was_seen_is_a_little_above_the_largest() -> None:
    margin = Margin()
    for count in range(ENOUGH):
        margin.add(1 + count / ENOUGH)
    assert 2.0 <= margin.bound(0.99) < 3.0, "errors up to two were seen, and too few of them for one in a hundred"


def test_before_anything_was_seen_a_step_of_a_feature_hardly_ever_doubles_a_time() -> None:
    known = ("always", "over")  # these are about how much it is
    unknown = [deviation for name, deviation in zip(NAMES, PRIOR_DEVIATION, strict=True) if name not in known]
    assert all(0 < 2 * deviation < math.log(2) for deviation in unknown), "twice the deviation is rarely exceeded"


def test_whoever_has_seen_nothing_feels_nothing_and_begins_at_nought() -> None:
    assert Presence().state() == Presence(PresenceState()).state() == PresenceState(0, 0.0, 0.0, 0, 0.0, False)
