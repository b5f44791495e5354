"""Do neighbours cost anything here? And what does the usual company of a model cost it?

Where nothing interferes, nobody should plan as if it did, and nobody should pay for asking. So what is predicted
counts only where batches beside others are seen to take longer than batches alone, by more than chance.

Rules of this file
- Off is the logarithm of a time over the time alone that was believed. Batches beside others are compared with
  batches alone: a profile that is wrong makes both wrong.
- It is felt when the difference is above `LEAST` and three times its error. It is gone when it is below half of
  `LEAST`.
- All means are of the last batches, in constant memory.
"""

from __future__ import annotations

import math
from typing import Final

from .records import PresenceState, StretchState

__all__ = ["ENOUGH", "LEAST", "Presence", "Stretches"]

#: Batches beside others before anything is felt. [our choice]
ENOUGH: Final = 16
#: A difference below this is none: profiles are not better than that. [our choice]
LEAST: Final = 0.02
_ERRORS: Final = 3.0
_WINDOW: Final = 256
#: Nothing is seen of batches alone: the profile counts as so many of them.
_PROFILE: Final = 4
#: One batch counts at most so much: e times as long.
_MOST: Final = 1.0
#: Batches of a model whose company counts.
_COMPANY: Final = 64


class Presence:
    """Whether neighbours are felt on one kind of device."""

    __slots__ = ("alone", "alone_mean", "count", "felt", "mean", "variance")

    def __init__(self, state: PresenceState | None = None) -> None:
        state = state or PresenceState()
        self.count, self.mean, self.variance = state.count, state.mean, state.variance
        self.alone, self.alone_mean = state.alone, state.alone_mean
        self.felt = state.felt

    def saw_alone(self, off: float) -> None:
        """A batch was alone."""
        self.alone += 1
        off = min(_MOST, max(-_MOST, off))
        self.alone_mean += (off - self.alone_mean) / min(self.alone + _PROFILE, _WINDOW)

    def saw_beside(self, off: float) -> None:
        """A batch was beside others."""
        self.count += 1
        count = min(self.count, _WINDOW)
        off = min(_MOST, max(-_MOST, off))
        change = off - self.mean
        self.mean += change / count
        self.variance += (change * (off - self.mean) - self.variance) / count
        more = self.mean - self.alone_mean
        if self.felt:
            self.felt = more > LEAST / 2
        elif self.count >= ENOUGH:
            self.felt = more > LEAST and more > _ERRORS * math.sqrt(self.variance / count)

    def state(self) -> PresenceState:
        """As data."""
        return PresenceState(self.count, self.mean, self.variance, self.alone, self.alone_mean, self.felt)


class Stretches:
    """By model, what its usual company costs it, as a logarithm: what a plan counts on, which knows nobody yet."""

    __slots__ = ("_known",)

    def __init__(self, rows: tuple[StretchState, ...] = ()) -> None:
        self._known = {row.model: row for row in rows}

    def add(self, model: str, cost: float) -> None:
        """A batch of it had company that cost so much; nought if it was alone."""
        known = self._known.get(model)
        if known is None:
            self._known[model] = StretchState(model, 1, cost, 0.0)
            return
        count = known.count + 1
        within = min(count, _COMPANY)
        change = cost - known.mean
        mean = known.mean + change / within
        variance = known.variance + (change * (cost - mean) - known.variance) / within
        self._known[model] = StretchState(model, count, mean, variance)

    def of(self, model: str) -> tuple[float, float]:
        """What is to be expected, and its variance; nought of a model that was not seen."""
        known = self._known.get(model)
        return (0.0, 0.0) if known is None else (known.mean, max(0.0, known.variance))

    def rows(self) -> tuple[StretchState, ...]:
        """As data."""
        return tuple(self._known[model] for model in sorted(self._known))
