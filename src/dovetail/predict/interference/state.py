"""What a model of interference has learned, as plain data: to be saved, shown and restored.

Rules of this file: field order is the format. Append, never reorder, and raise `VERSION` when a meaning changes.
"""

from __future__ import annotations

import math

import msgspec

from ...errors import ProfileError
from .features import NAMES
from .records import Effect, MarginState, PresenceState, StretchState

__all__ = ["VERSION", "ClassState", "InterferenceState", "KindState", "NoiseState", "trouble_of"]

VERSION = 1


class NoiseState(msgspec.Struct, frozen=True, array_like=True):
    """How far single batches of a victim are from their prediction, as a variance of logarithms."""

    victim: str
    count: int
    variance: float


class ClassState(msgspec.Struct, frozen=True, array_like=True):
    """Errors in one class of situation."""

    name: str
    margin: MarginState


class KindState(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one kind of device."""

    kind: str
    seen: int
    #: Weights by feature, and their covariance row by row.
    weights: tuple[float, ...]
    covariance: tuple[float, ...]
    #: How neighbours add up, and its variance.
    power: float
    power_variance: float
    variance: float
    drift_total: float
    haste: float
    alarms: int
    #: Variance of forecasts beyond what the model knows of itself, and how many forecasts there were.
    churn: float
    said: int
    noise: tuple[NoiseState, ...]
    classes: tuple[ClassState, ...]
    #: Whether neighbours are felt at all, and what usual company costs.
    presence: PresenceState = PresenceState()
    stretches: tuple[StretchState, ...] = ()


class InterferenceState(msgspec.Struct, frozen=True):
    """All that was learned."""

    version: int = VERSION
    features: tuple[str, ...] = NAMES
    kinds: tuple[KindState, ...] = ()
    effects: tuple[Effect, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.kinds)


def trouble_of(state: InterferenceState) -> str:
    """What is wrong with a state that comes from elsewhere; empty if nothing is."""
    if state.version != VERSION:
        return f"it is of version {state.version}, and this Dovetail reads version {VERSION}"
    if state.features != NAMES:
        return "it was learned with other features"
    for kind in state.kinds:
        numbers = (*kind.weights, *kind.covariance, kind.power, kind.power_variance, kind.variance)
        numbers += (kind.presence.mean, kind.presence.variance, kind.presence.alone_mean)
        numbers += tuple(n for row in kind.stretches for n in (row.mean, row.variance))
        if len(kind.weights) != len(NAMES) or len(kind.covariance) != len(NAMES) ** 2:
            return f"{len(kind.weights)} weights for {len(NAMES)} features"
        if not all(math.isfinite(number) for number in numbers) or kind.power <= 0 or kind.variance <= 0:
            return f"numbers of {kind.kind or 'all kinds'} are not sound"
    if not all(math.isfinite(effect.mean) and 0 <= effect.variance < math.inf for effect in state.effects):
        return "effects are not sound"
    return ""


def checked(state: InterferenceState) -> InterferenceState:
    """The state, if it is sound."""
    trouble = trouble_of(state)
    if trouble:
        raise ProfileError(f"what was learned of interference cannot be used: {trouble}; let it be learned anew")
    return state
