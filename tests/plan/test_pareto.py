"""Fronts: what stays, what is thinned, and how they are put together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dovetail.plan import pareto as front_module
from dovetail.plan.pareto import NOTHING, Limits, ParetoFront, beside, followed_by, sieve

candidates = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=60)
EXACT = Limits(10**9, 10**9, 1)


def as_front(pairs: list[tuple[int, int]]) -> ParetoFront:
    time_ns, cost = np.array([t for t, _ in pairs]), np.array([float(c) for _, c in pairs])
    kept = sieve(time_ns, cost, [len(pairs)], EXACT.horizon_ns)[0]
    return ParetoFront(time_ns, cost, time_ns.astype(float), np.zeros(len(pairs))).take(kept)


def points(front: ParetoFront) -> list[tuple[int, float]]:
    return list(zip(front.time_ns.tolist(), front.cost_usd.tolist(), strict=True))


def unbeaten(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return sorted({p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs)})


@given(candidates, st.data(), st.integers(0, 70), st.sampled_from([0, 2048]))
def test_what_stays_is_what_nothing_beats(pairs, data, horizon_ns, few):
    ends = sorted({data.draw(st.integers(1, len(pairs))) for _ in range(3)})
    time_ns, cost = np.array([t for t, _ in pairs]), np.array([float(c) for _, c in pairs])
    usual, front_module._FEW = front_module._FEW, few  # both ways of sieving
    try:
        fronts = sieve(time_ns, cost, ends, horizon_ns)
    finally:
        front_module._FEW = usual
    for end, kept in zip(ends, fronts, strict=True):
        within = [(t, float(c)) for t, c in pairs[:end] if t <= horizon_ns]
        expected = unbeaten(within) if within else [min((t, float(c)) for t, c in pairs[:end])]
        assert [(int(time_ns[i]), float(cost[i])) for i in kept] == expected


@given(candidates, st.integers(1, 20))
def test_thinning_loses_less_than_a_step_and_keeps_the_fastest(pairs, step_ns):
    whole = as_front(pairs)
    thin = whole.thinned(Limits(EXACT.horizon_ns, 0, step_ns))
    assert set(points(thin)) <= set(points(whole))
    assert points(thin)[0] == points(whole)[0]
    assert thin.loss_ns == step_ns - 1
    for time_ns, cost in points(whole):
        assert any(t <= time_ns + thin.loss_ns and c <= cost for t, c in points(thin))


def test_short_fronts_are_not_thinned():
    whole = as_front([(1, 5), (2, 4), (3, 3)])
    assert whole.thinned(Limits(100, 3, 50)) is whole


@given(candidates, candidates)
def test_one_after_the_other_adds_and_side_by_side_takes_the_slower(left, right):
    a, b = as_front(left), as_front(right)
    one = followed_by(a, np.arange(len(a.time_ns)), b, [len(a.time_ns)], EXACT)[0]
    assert points(one) == unbeaten([(s + t, c + d) for s, c in points(a) for t, d in points(b)])
    assert all(one.time_ns == a.time_ns[one.first] + b.time_ns[one.rest])
    both = beside([a, b], EXACT)
    assert points(both) == unbeaten([(max(s, t), c + d) for s, c in points(a) for t, d in points(b)])
    assert all(both.time_ns >= a.time_ns[both.picks[0]])
    assert all(both.cost_usd == a.cost_usd[both.picks[0]] + b.cost_usd[both.picks[1]])


@given(candidates)
def test_nothing_follows_the_last_part(pairs):
    front = as_front(pairs)
    assert points(
        followed_by(front, np.arange(len(front.time_ns)), NOTHING, [len(front.time_ns)], EXACT)[0]
    ) == points(front)
