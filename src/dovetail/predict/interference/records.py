"""Plain records of the predictor of interference: what is said of a batch, and parts of what is kept.

Rules of this file: records only. Whoever decodes them needs the types of their fields, which compiled modules lose.
"""

from __future__ import annotations

import msgspec

__all__ = ["Effect", "Forecast", "MarginState", "PresenceState", "StretchState"]


class Effect(msgspec.Struct, frozen=True, array_like=True):
    """One effect as data. An empty name stands for all."""

    scope: str
    victim: str
    other: str
    mean: float
    variance: float


class MarginState(msgspec.Struct, frozen=True, array_like=True):
    """A margin as data."""

    errors: tuple[float, ...]
    missing: tuple[float, ...]
    asked: int
    hits: tuple[int, ...]


class PresenceState(msgspec.Struct, frozen=True, array_like=True):
    """Whether neighbours are felt, as data: batches beside others and alone, and how far they are off."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0
    alone: int = 0
    alone_mean: float = 0.0
    felt: bool = False


class StretchState(msgspec.Struct, frozen=True, array_like=True):
    """What the usual company of a model costs it, as a logarithm: batches that were seen, mean and variance."""

    model: str
    count: int
    mean: float
    variance: float


class Forecast(msgspec.Struct, frozen=True, array_like=True):
    """What is said of a batch before it runs."""

    #: Its time alone over which the rest is said, and the time expected beside the others (a median).
    solo_ns: int
    median_ns: int
    #: Expected deviation of the logarithm of the time.
    deviation: float
    #: The class of situation whose errors count.
    situation: str
    #: Above 1 after a change of the world: bounds are wider by it.
    caution: float = 1.0

    @property
    def slowdown(self) -> float:
        """How many times as long it takes as alone."""
        return self.median_ns / self.solo_ns if self.solo_ns else 1.0
