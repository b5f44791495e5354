"""How far a time may be above its prediction: quantiles of errors as they were, corrected by how often they failed.

Rules of this file
- Errors are kept in units of what the model expected of them, by class of situation, so that a rare situation keeps
  its own errors however often others occur.
- A quantile is the one of the last errors (conformal prediction), at a level that moves: after a miss the next bound
  is higher, after a hit a little lower (adaptive conformal inference, Gibbs and Candès 2021). So in the long run the
  part of misses is the one that was asked for, whatever the errors do.
- Before there are enough errors, the bound is that of a normal error, and half as much again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from statistics import NormalDist
from typing import Final

from .records import MarginState

__all__ = ["ENOUGH", "LEVELS", "WINDOW", "Margin"]

#: Levels that are kept; a question for another is answered by the next above.
LEVELS: Final[tuple[float, ...]] = (0.5, 0.9, 0.95, 0.99)
#: Errors that count, of each class.
WINDOW: Final = 400
#: Fewer errors than this say nothing of a tail. [our choice]
ENOUGH: Final = 24
#: Step of the level after a hit or a miss (the authors use 0.005). [our choice]
STEP: Final = 0.01
_NORMAL: Final = tuple([NormalDist().inv_cdf(level) for level in LEVELS])
_DOUBT: Final = 1.5
_AIMS: Final = tuple([1 - level for level in LEVELS])
#: However long nothing fails: three times as many misses are aimed at, at most. [our choice]
_MOST: Final = tuple([min(0.9, 3 * aim) for aim in _AIMS])
#: A level that fails once in a hundred times moves in smaller steps: so far up after a hit, so far down after a miss.
_STEPS: Final = tuple([STEP * min(1.0, 20 * aim) for aim in _AIMS])
_MOVES: Final = tuple(
    [
        (number, aim * step, (aim - 1) * step, most)
        for number, (aim, step, most) in enumerate(zip(_AIMS, _STEPS, _MOST, strict=True))
    ]
)


class Margin:
    """Errors of one class of situation."""

    __slots__ = ("_last", "_missing", "_sorted", "asked", "hits")

    def __init__(self, state: MarginState | None = None) -> None:
        self._last: deque[float] = deque(() if state is None else state.errors)
        self._sorted = sorted(self._last)
        #: The part of misses that is aimed at, by level.
        self._missing = list(_AIMS) if state is None else list(state.missing)
        #: Coverage: how many errors came, and how many were within the bound of each level.
        self.asked = 0 if state is None else state.asked
        self.hits = [0] * len(LEVELS) if state is None else list(state.hits)

    def bound(self, level: float) -> float:
        """What an error stays below with this chance, in units of its expected deviation."""
        number = min(bisect_left(LEVELS, level - 1e-9), len(LEVELS) - 1)
        count = len(self._sorted)
        if count < ENOUGH:
            return _NORMAL[number] * _DOUBT
        at = int((count + 1) * (1 - self._missing[number]))
        if at < count:
            return self._sorted[at]
        # Beyond all that was seen.
        return max(0.0, 1.2 * self._sorted[-1])

    def add(self, error: float) -> None:
        """An error came, in units of its expected deviation."""
        self.asked += 1
        missing, hits, errors = self._missing, self.hits, self._sorted
        count = len(errors)
        for number, up, down, most in _MOVES:
            part = missing[number]
            if count < ENOUGH:
                bound = _NORMAL[number] * _DOUBT
            else:
                at = int((count + 1) * (1 - part))
                bound = errors[at] if at < count else max(0.0, 1.2 * errors[-1])
            if error <= bound:
                hits[number] += 1
                part += up
                if part <= most:
                    missing[number] = part
            else:
                part += down
                missing[number] = part if part > 0 else 0.0
        if count == WINDOW:
            del errors[bisect_left(errors, self._last.popleft())]
        self._last.append(error)
        insort(errors, error)

    def coverage(self, level: float) -> float:
        """Part of the errors that were within the bound of this level when they came; 1 if none has come."""
        number = LEVELS.index(level)
        return self.hits[number] / self.asked if self.asked else 1.0

    def state(self) -> MarginState:
        """All that it knows."""
        return MarginState(tuple(self._last), tuple(self._missing), self.asked, tuple(self.hits))
