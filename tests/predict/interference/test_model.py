"""What the predictor of interference learns, and how fast."""

from __future__ import annotations

import itertools
import random

import pytest

from dovetail.errors import ProfileError
from dovetail.predict.interference import Beside, Forecast, Interference, InterferenceState, Load, effects
from dovetail.predict.interference.effects import Effects
from dovetail.predict.interference.kind import ALL, Kind
from dovetail.predict.interference.margin import ENOUGH
from dovetail.predict.interference.state import trouble_of

SOLO_NS = 10_000_000
A, B, C, D = (Load(name, share_pct=30) for name in "abcd")


def see(model: Interference, victim: Load, others: list[Load], slow: float, times: int = 1, kind: str = "k") -> None:
    for _ in range(times):
        model.observe(kind, victim, SOLO_NS, round(SOLO_NS * slow), [Beside(other) for other in others])


def test_a_pair_is_learned_and_the_other_way_round_is_another_pair() -> None:
    model = Interference()
    see(model, A, [B], 3.0, 60)
    see(model, B, [A], 1.1, 60)
    see(model, A, [B], 3.0, 20)
    assert model.slowdown("k", A, [B]) == pytest.approx(3.0, rel=0.05)
    assert model.slowdown("k", B, [A]) == pytest.approx(1.1, rel=0.05)


def test_a_pair_that_never_met_is_expected_from_what_its_models_did_to_others() -> None:
    model = Interference()
    for _ in range(40):
        see(model, A, [B], 2.0)
        see(model, B, [A], 1.2)
        see(model, C, [B], 2.0)
        see(model, B, [C], 1.2)
        see(model, A, [D], 1.2)
    # C suffers from B as A does; beside D, who is gentle, it should suffer less, as A does.
    assert model.slowdown("k", C, [D]) < model.slowdown("k", C, [B])
    assert model.slowdown("k", C, [D]) == pytest.approx(1.2, rel=0.15)


def test_a_new_model_starts_from_its_features() -> None:
    model = Interference()
    rng = random.Random(1)
    for _ in range(600):
        memory, other = rng.random(), rng.random()
        victim = Load(f"m{rng.randrange(40)}", share_pct=50, compute=0.5, cache=0.1, memory=memory)
        beside = Load(f"m{rng.randrange(40)}", share_pct=50, compute=0.5, cache=0.1, memory=other)
        see(model, victim, [beside], 1.05 + 0.8 * memory * other)
    hungry = Load("new", share_pct=50, compute=0.5, cache=0.1, memory=0.9)
    modest = Load("other new", share_pct=50, compute=0.5, cache=0.1, memory=0.1)
    assert model.slowdown("k", hungry, [hungry]) == pytest.approx(1.7, rel=0.1)
    assert model.slowdown("k", modest, [hungry]) == pytest.approx(1.12, rel=0.1)


@pytest.mark.parametrize("adds", [True, False])
def test_how_neighbours_add_up_is_learned(adds: bool) -> None:
    model = Interference()
    for _ in range(80):
        for other in (B, C, D):
            see(model, A, [other], 1.6)
        see(model, A, [B, C], 2.2 if adds else 1.6)
    power = model.kind("k").power
    assert 0.7 < power < 1.3 if adds else power > 1.5
    together = model.slowdown("k", A, [B, C, D])
    assert together == pytest.approx(2.8, rel=0.1) if adds else together < 2.2


def test_beyond_what_is_kept_pairs_have_no_effect_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "MOST", 5)
    model = Interference()
    for _ in range(40):
        see(model, A, [B], 2.0)
        see(model, C, [D, B], 1.2)
    assert len(model._effects.rows()) == 5
    assert (model._effects.means[effects.NOWHERE], model._effects.variances[effects.NOWHERE]) == (0.0, 0.0)
    assert model.slowdown("k", A, [B]) == pytest.approx(2.0, rel=0.1), "weights and what is kept say the rest"
    assert Interference(model.state()).state() == model.state()


def test_partial_overlap_is_weighed_by_work_not_by_time() -> None:
    """Beside B all of it, A takes 3 times as long. Beside it for the first 15 ms, it has done 5 of its 10 ms then."""
    model = Interference()
    for _ in range(100):
        model.observe("k", A, SOLO_NS, 20_000_000, [Beside(B, 0, 15_000_000)])
    assert model.slowdown("k", A, [B]) == pytest.approx(3.0, rel=0.05)
    assert model.predict("k", A, SOLO_NS, [B], [15_000_000]).median_ns == pytest.approx(20_000_000, rel=0.05)


def test_a_changed_world_is_noticed_widens_bounds_and_is_learned_soon() -> None:
    model = Interference()
    rng = random.Random(2)
    for _ in range(400):
        see(model, A, [B], 1.3 * rng.lognormvariate(0, 0.02))
    before = model.predict("k", A, SOLO_NS, [B])
    assert before.caution < 1.01
    learned_by = 0
    for count in range(50):
        see(model, A, [B], 2.0 * rng.lognormvariate(0, 0.02))
        if not learned_by and abs(model.slowdown("k", A, [B]) / 2.0 - 1) < 0.05:
            learned_by = count + 1
        if count == 6:
            after = model.predict("k", A, SOLO_NS, [B])
            assert after.caution > 1.4
    assert model.kind("k").drift.alarms >= 1
    assert 0 < learned_by <= 20


def test_a_rare_regime_is_not_forgotten_while_another_is_seen_all_the_time() -> None:
    model = Interference()
    see(model, A, [B, C, D], 4.0, 60)
    rare = model.slowdown("k", A, [B, C, D])
    small = Load("x", share_pct=10, solo_q=20)
    see(model, small, [Load("y", share_pct=10, solo_q=20)], 1.02, 3000)
    assert model.slowdown("k", A, [B, C, D]) == pytest.approx(rare, rel=0.1)


def test_bounds_hold_as_often_as_asked() -> None:
    model = Interference()
    rng = random.Random(3)
    inside = {0.5: 0, 0.9: 0, 0.95: 0}
    for step in range(3000):
        others = rng.choice(([B], [C], [B, C]))
        forecast = model.predict("k", A, SOLO_NS, others)
        # Errors are not normal, and they grow half-way.
        duration = SOLO_NS * 1.5 ** len(others) * (1 + rng.expovariate(20 if step < 1500 else 8))
        for level in inside:
            inside[level] += duration <= model.bound_ns("k", forecast, level)
        model.observe("k", A, SOLO_NS, round(duration), [Beside(other) for other in others], forecast)
    for level, count in inside.items():
        assert count / 3000 == pytest.approx(level, abs=0.015)


def test_a_forecast_that_did_not_know_who_would_come_is_corrected_by_its_errors() -> None:
    """Half of the time somebody comes whom nobody told of: the median of what is said becomes right."""
    model = Interference()
    rng = random.Random(4)
    see(model, A, [B], 1.5, 100)
    see(model, A, [C], 1.5, 100)
    above = 0
    for _ in range(800):
        forecast = model.predict("k", A, SOLO_NS, [B])
        duration = round(SOLO_NS * 2 * rng.lognormvariate(0, 0.02))
        above += duration > model.bound_ns("k", forecast, 0.5)
        model.observe("k", A, SOLO_NS, duration, [Beside(B), Beside(C)], forecast)
    assert above / 800 == pytest.approx(0.5, abs=0.1)


def test_another_kind_of_device_begins_with_what_the_first_has_learned_and_doubts_it() -> None:
    model = Interference()
    see(model, A, [B], 2.0, 100, kind="first")
    told = model.predict("second", A, SOLO_NS, [B])
    fresh = Interference().predict("second", A, SOLO_NS, [B])
    assert abs(told.slowdown - 2.0) < abs(fresh.slowdown - 2.0)
    assert told.deviation > model.predict("first", A, SOLO_NS, [B]).deviation
    assert told.situation == "1 new"


def test_a_batch_that_was_alone_teaches_nothing_of_neighbours() -> None:
    model = Interference()
    assert model.observe("k", A, SOLO_NS, 5 * SOLO_NS, []) == 0
    assert model.state() == InterferenceState()
    forecast = model.predict("k", A, SOLO_NS, [])
    model.observe("k", A, SOLO_NS, round(1.1 * SOLO_NS), [], forecast)
    assert model.state().effects == ()
    assert model.state().kinds[0].classes[-1].name == "alone", "but of how sure what is said of it can be"


def test_a_class_with_few_errors_uses_those_of_all() -> None:
    kind = Kind("k", Effects())
    assert kind.margin("5-8").asked == 0
    for _ in range(ENOUGH - 1):
        kind.missed("1", 0.3, 0.1, 1.0)
        kind.missed("5-8", 0.1, 0.1, 1.0)
    assert kind.margin("5-8") is kind.margins["all"]
    kind.missed("5-8", 0.1, 0.1, 1.0)
    assert kind.margin("5-8") is kind.margins["5-8"]
    assert kind.margin("1") is kind.margins["all"]


def test_another_kind_doubts_the_weights_that_it_begins_with() -> None:
    model = Interference()
    see(model, A, [B], 2.0, 100, kind="first")
    first, second = model.kind("first").weights, model.kind("second").weights
    assert second.mean.tolist() == first.mean.tolist()
    assert all(second.covariance.diagonal() > first.covariance.diagonal())


def test_to_be_asked_leaves_no_trace() -> None:
    model = Interference()
    see(model, A, [B], 2.0, 10)
    before = model.state()
    for kind in ("k", "other"):
        forecast = model.predict(kind, C, SOLO_NS, [D, B])
        model.bound_ns(kind, forecast, 0.95)
        model.slowdown(kind, D, [C])
        model.over(kind, D, SOLO_NS, [Beside(C)])
    assert model.state() == before


def test_what_comes_unannounced_widens_what_is_said_and_fades() -> None:
    model = Interference()
    see(model, A, [B], 1.5, 100)
    sure = model.predict("k", A, SOLO_NS, [B]).deviation
    for surprising in (True, False):
        for number in range(200):
            forecast = model.predict("k", A, SOLO_NS, [B])
            late = surprising and number % 2
            beside = [Beside(B), Beside(C)] if late else [Beside(B)]
            model.observe("k", A, SOLO_NS, round(SOLO_NS * (2.2 if late else 1.5)), beside, forecast)
        said = model.predict("k", A, SOLO_NS, [B]).deviation
        assert said > 0.15 if surprising else said < 0.1, surprising
    assert sure < 0.1


def test_a_neighbour_that_was_hardly_there_is_not_blamed_without_bounds() -> None:
    model = Interference()
    for _ in range(300):
        model.observe("k", A, SOLO_NS, 20 * SOLO_NS, [Beside(B, 0, 20_000)])
    assert model.slowdown("k", A, [B]) < 55


def test_an_outlier_counts_for_little() -> None:
    model = Interference()
    see(model, A, [B], 1.3, 100)
    see(model, A, [B], 100.0, 1)
    assert model.slowdown("k", A, [B]) < 1.4


def test_a_state_that_is_not_sound_is_refused() -> None:
    model = Interference()
    see(model, A, [B], 2.0, 3)
    state = model.state()
    assert trouble_of(state) == ""
    for bad in (
        InterferenceState(version=99),
        InterferenceState(features=("other",)),
        InterferenceState(kinds=tuple(type(k)(k.kind, k.seen, k.weights[1:], *_rest(k)) for k in state.kinds)),
    ):
        assert trouble_of(bad)
        with pytest.raises(ProfileError):
            Interference(bad)


def _rest(kind: object) -> list[object]:
    return [getattr(kind, name) for name in kind.__struct_fields__[3:]]  # type: ignore[attr-defined]


def test_forecasts_say_how_many_times_as_long() -> None:
    assert Forecast(10, 25, 0.1, "1").slowdown == 2.5


def test_before_anything_was_seen_neighbours_cost_a_tenth_whatever_they_use_and_no_more_than_seven_tenths_above() -> (
    None
):
    """Nothing is known of what cache, memory and arithmetic do; two that each want the whole device are known to."""
    model = Interference()
    for compute, cache, memory in itertools.product((-1.0, 0.0, 0.5, 1.0), repeat=3):
        for share_pct, most in ((50, 1.1), (100, 1.9)):
            one, other = (Load(name, 1, share_pct, 53, "", compute, cache, memory) for name in ("one", "other"))
            assert 1.0 < model.slowdown("k", one, [other]) < most


def test_every_batch_beside_others_is_counted_once_whether_or_not_something_was_said_before_it_ran() -> None:
    model = Interference()
    see(model, A, [B], 1.5, 7)
    said = model.predict("k", A, SOLO_NS, [B])
    model.observe("k", A, SOLO_NS, round(SOLO_NS * 1.5), [Beside(B)], said)
    model.observe("k", A, SOLO_NS, SOLO_NS, [])
    counted = {row.name: row.margin.asked for kind in model.state().kinds for row in kind.classes}
    assert counted[ALL] == 8, "who was alone has no neighbours to be wrong about"
