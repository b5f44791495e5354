"""Loads and observations to test with."""

from __future__ import annotations

from hypothesis import strategies as st

from dovetail.predict.interference import Beside, Interference, Load

MODELS = tuple("abcd")
loads = st.builds(
    Load,
    st.sampled_from(MODELS),
    st.sampled_from((1, 2, 8)),
    st.sampled_from((10, 25, 50, 100)),
    st.sampled_from((20, 53, 80)),
    st.sampled_from(("", "f")),
    st.sampled_from((-1.0, 0.9)),
    st.sampled_from((-1.0, 0.2)),
    st.sampled_from((-1.0, 0.0, 0.7)),
)
neighbourhoods = st.lists(loads, min_size=1, max_size=4)
spans = st.tuples(st.integers(-5, 100), st.integers(1, 120)).map(lambda s: (s[0], s[0] + s[1]))
besides = st.lists(
    st.builds(lambda load, span: Beside(load, span[0] * 100_000, span[1] * 100_000), loads, spans),
    min_size=1,
    max_size=4,
)
#: (kind, victim, duration over time alone, beside).
observations = st.lists(st.tuples(st.sampled_from(("k", "x:y")), loads, st.floats(0.5, 20), besides), max_size=12)
SOLO_NS = 10_000_000


def taught(seen: list[tuple[str, Load, float, list[Beside]]]) -> Interference:
    """A model that has seen these."""
    model = Interference()
    teach(model, seen)
    return model


def teach(model: Interference, seen: list[tuple[str, Load, float, list[Beside]]]) -> None:
    """Let it see these."""
    for kind, victim, slow, beside in seen:
        model.observe(kind, victim, SOLO_NS, round(SOLO_NS * slow), beside)
