"""Laws of the predictor of interference, whatever it has seen."""

from __future__ import annotations

import math
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.predict.interference.hands import SOLO_NS, loads, neighbourhoods, observations, taught, teach

from dovetail.predict.interference import Beside, Interference, InterferenceState, Load
from dovetail.predict.interference.features import PRIOR_DEVIATION, PRIOR_MEAN
from dovetail.predict.interference.records import Forecast

Seen = list[tuple[str, Load, float, list[Beside]]]


@settings(max_examples=80, deadline=None)
@given(observations, loads, neighbourhoods, loads)
def test_nobody_is_faster_beside_others_and_one_more_never_helps(
    seen: Seen, victim: Load, others: list[Load], more: Load
) -> None:
    model = taught(seen)
    few = model.slowdown("k", victim, others)
    assert few >= 1
    assert model.slowdown("k", victim, [*others, more]) >= few * (1 - 1e-12)
    assert model.predict("k", victim, SOLO_NS, others).median_ns >= SOLO_NS


@settings(max_examples=40, deadline=None)
@given(observations, loads, st.integers(0, 10**12))
def test_alone_a_batch_takes_its_time_alone(seen: Seen, victim: Load, solo_ns: int) -> None:
    model = taught(seen)
    assert model.slowdown("k", victim, []) == 1
    assert model.predict("k", victim, solo_ns, []).median_ns == solo_ns
    assert model.predict("k", victim, solo_ns, [], []).median_ns == solo_ns


@settings(max_examples=80, deadline=None)
@given(observations, loads, neighbourhoods, st.data())
def test_who_leaves_earlier_costs_less_and_who_stays_costs_all(
    seen: Seen, victim: Load, others: list[Load], data: st.DataObject
) -> None:
    model = taught(seen)
    ends = data.draw(st.lists(st.integers(0, 3 * SOLO_NS), min_size=len(others), max_size=len(others)))
    some = model.predict("k", victim, SOLO_NS, others, ends).median_ns
    later = model.predict("k", victim, SOLO_NS, others, [end + SOLO_NS for end in ends]).median_ns
    all_of_it = model.predict("k", victim, SOLO_NS, others).median_ns
    assert SOLO_NS <= some <= later + 1
    assert later <= all_of_it + 1
    stay = model.predict("k", victim, SOLO_NS, others, [1 << 60] * len(others)).median_ns
    assert stay == pytest.approx(all_of_it, abs=2)


@settings(max_examples=40, deadline=None)
@given(observations, observations, loads, neighbourhoods)
def test_a_restored_model_is_the_same_and_goes_on_the_same(
    before: Seen, after: Seen, victim: Load, others: list[Load]
) -> None:
    model = taught(before)
    model.predict("new", victim, SOLO_NS, others)  # to be asked leaves no trace in what was learned
    data = msgspec.msgpack.encode(model.state())
    again = Interference(msgspec.msgpack.decode(data, type=InterferenceState))
    assert msgspec.msgpack.encode(again.state()) == data
    teach(model, after)
    teach(again, after)
    assert again.state() == model.state()
    assert again.predict("k", victim, SOLO_NS, others) == model.predict("k", victim, SOLO_NS, others)


@settings(max_examples=30, deadline=None)
@given(observations)
def test_the_same_observations_give_the_same_state(seen: Seen) -> None:
    assert msgspec.msgpack.encode(taught(seen).state()) == msgspec.msgpack.encode(taught(seen).state())


@settings(max_examples=30, deadline=None)
@given(observations, loads, neighbourhoods)
def test_bounds_rise_with_their_level(seen: Seen, victim: Load, others: list[Load]) -> None:
    model = taught(seen)
    forecast = model.predict("k", victim, SOLO_NS, others)
    bounds = [model.bound_ns("k", forecast, level) for level in (0.5, 0.9, 0.95, 0.99)]
    assert bounds == sorted(bounds)
    assert all(math.isfinite(bound) for bound in bounds)


def test_a_bound_is_finite_however_unsure_the_model_is() -> None:
    """Neighbours that were there for a moment of a batch that took twice as long left such a deviation."""
    forecast = Forecast(SOLO_NS, SOLO_NS, 107.2, "1 new", caution=2.0)
    bounds = [Interference().bound_ns("k", forecast, level) for level in (0.5, 0.9, 0.95, 0.99)]
    assert bounds == sorted(bounds) and bounds[-1] < 1e9 * SOLO_NS


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.2, 2.0))
def test_scatter_makes_nothing_less_certain_than_at_first(seed: int, scatter: float) -> None:
    """However widely times scatter; and weights do not wander."""
    rng = random.Random(seed)
    models = [Load(f"m{n}", items, 50, 40 + 3 * n) for n in range(4) for items in (1, 4)]
    model = Interference()
    for _ in range(300):
        others = [Beside(other) for other in rng.sample(models, rng.randint(1, 3))]
        took_ns = round(SOLO_NS * 1.3 * math.exp(rng.gauss(0.0, scatter)))
        model.observe("k", rng.choice(models), SOLO_NS, max(1, took_ns), others)
    kind = model.kind("k")
    assert all(kind.weights.covariance.diagonal() <= np.square(PRIOR_DEVIATION) * (1 + 1e-9))
    assert all(row.variance <= 0.085**2 * (1 + 1e-9) for row in model.state().effects)
    assert all(abs(weight - mean) < 2.5 for weight, mean in zip(kind.weights.mean, PRIOR_MEAN, strict=True))
