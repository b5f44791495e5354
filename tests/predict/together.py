"""A predictor that has learned that two models hurt each other and others do not, for tests of whoever asks it."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.predict import Estimator
from dovetail.predict.interference import Forecast, Interference, Load
from dovetail.predict.interference.forward import Slowdown
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.units import MS


class Known(Interference):
    """Slow-downs as told: of a pair, whatever else is there; nobody else costs anything."""

    def __init__(self, pairs: dict[tuple[str, str], float], margin: float = 1.0) -> None:
        super().__init__()
        self.pairs = pairs
        self.margin = margin

    def felt(self, kind: str) -> bool:
        return True

    def slowdown(self, kind: str, victim: Load, others: Sequence[Load]) -> float:
        return 1 + sum(self.pairs.get((victim.model, other.model), 1.0) - 1 for other in others)

    def slowdowns(self, kind: str) -> Slowdown:
        return lambda victim, others: self.slowdown(kind, victim, others)

    def predict(
        self, kind: str, victim: Load, solo_ns: int, others: Sequence[Load], ends_ns: Sequence[int] | None = None
    ) -> Forecast:
        return Forecast(solo_ns, round(solo_ns * self.slowdown(kind, victim, others)), 0.0, "all")

    def factor(self, kind: str, victim: Load, others: Sequence[Load], level: float) -> float:
        return self.margin


def estimator(pairs: dict[tuple[str, str], float], *stages: str, ms: int = 10, margin: float = 1.0) -> Estimator:
    """Each of these stages takes so long alone, on kind `gpu`, whatever its share."""
    table = ProfileTable([Entry(name, "gpu", points=(Point(1, 1, ms * MS, 0.0, 1),)) for name in stages])
    return Estimator(table, interference=Known(pairs, margin))
