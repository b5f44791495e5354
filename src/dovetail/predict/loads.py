"""How long loads of models take: what a profile says; without one, what was seen; before that, a guess by size."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .estimate import GUESSED_SPREAD, Estimate
from .running import Seen
from .state import LearnedLoad

__all__ = ["LOAD_WINDOW", "LoadTimes"]

#: Loads that count: they are rare, and how fast they were of late says most.
LOAD_WINDOW = 4


class LoadTimes:
    """Times of loads, by model and kind of device."""

    __slots__ = ("_guess_ns", "_profiled", "_seen")

    def __init__(self, guess_ns: Callable[[int], int]) -> None:
        """`guess_ns` is what a load of so many bytes is taken to last before one was seen."""
        self._guess_ns = guess_ns
        #: (model, kind) -> load time of the first stage of that model that has one in its profile.
        self._profiled: dict[tuple[str, str], Estimate] = {}
        self._seen: dict[tuple[str, str], Seen] = {}

    def of(self, weights: str, nbytes: int, kind: str) -> Estimate:
        """How long a load of such a model takes."""
        key = weights, kind
        profiled = self._profiled.get(key)
        if profiled is not None:
            return profiled
        seen = self._seen.get(key)
        if seen is not None:
            return Estimate(seen.mean, seen.spread(), "learned")
        return Estimate(self._guess_ns(nbytes), GUESSED_SPREAD, "guess")

    def profiled(self, weights: str, kind: str, load_ns: int, spread: float) -> None:
        """A profile says so; who said it first counts."""
        self._profiled.setdefault((weights, kind), Estimate(load_ns, spread, "profile"))

    def saw(self, weights: str, kind: str, duration_ns: int) -> None:
        """A load took so long."""
        key = weights, kind
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = Seen(LOAD_WINDOW)
        seen.add(max(0, duration_ns))

    def state(self) -> tuple[LearnedLoad, ...]:
        """All that was seen, in a fixed order."""
        rows = sorted(self._seen.items(), key=lambda pair: pair[0])
        return tuple([LearnedLoad(*key, seen.count, seen.mean, seen.squares) for key, seen in rows])

    def restore(self, rows: Iterable[LearnedLoad]) -> None:
        """Know what `state` gave, in place of all that was seen."""
        self._seen = {(r.weights, r.kind): Seen(LOAD_WINDOW, r.count, r.mean_ns, r.squares) for r in rows}
