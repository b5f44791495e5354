"""What is particular to a victim, to an aggressor and to a pair of them, beyond what features say.

Rules of this file
- An effect is a number that is added to the cost of a neighbour. It begins at nought and is the more certain the more
  often it was seen; a rare pair keeps what was learned of it, because only what is seen is forgotten.
- Effects have levels, from the general to the particular: models of a family on any device, a model on any device,
  the same on this kind of device, and a single pair. A new pair begins with what the general levels know.
- The name of a kind may have parts ("runtime:host"). What was learned of a part counts for all kinds that share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .load import Load
from .records import Effect

__all__ = ["FIRST", "MOST", "NOWHERE", "Effects"]

#: So many effects are kept at most; pairs beyond that have no effect of their own. [our choice] Some megabytes.
MOST: Final = 50_000
#: The number of effects that are not kept: it is nought, and stays so.
NOWHERE: Final = 0
#: Deviation of an effect before it was seen, of logarithms of slow-downs. Single victims and aggressors deviate from
#: the mean by 0.2 (Pitot) and by 0.02 (iGniter). [our choice] Between them, tuned on one
#: split of each; the levels share it.
_GENERAL, _OF_KIND, _OF_PAIR = 0.085, 0.075, 0.07
#: The least variance that an effect begins with.
FIRST: Final = _OF_PAIR**2


class Effects:
    """All effects of one model of interference, by number."""

    __slots__ = ("_first", "_numbers", "means", "variances")

    def __init__(self, rows: Iterable[Effect] = ()) -> None:
        self._numbers: dict[tuple[str, str, str], int] = {}
        self.means: list[float] = [0.0]
        self.variances: list[float] = [0.0]
        #: Variances as they were before anything was seen.
        self._first: list[float] = [0.0]
        for row in rows:
            self._numbers[row.scope, row.victim, row.other] = len(self.means)
            self.means.append(row.mean)
            self.variances.append(row.variance)
            self._first.append(-1.0)

    def of_victim(self, kind: str, victim: Load) -> tuple[int, ...]:
        """Numbers of the effects that a victim has on a kind of device, whoever is beside it."""
        return self._found(_of_victim(kind, victim))

    def of_pair(self, kind: str, victim: Load, other: Load) -> tuple[int, ...]:
        """Numbers of the effects that a neighbour has on a kind of device, and this pair: three, or more."""
        return self._found(_of_pair(kind, victim, other))

    def _found(self, levels: list[tuple[str, str, str, float]]) -> tuple[int, ...]:
        return tuple([self._number(*key) for key in levels])

    def _number(self, scope: str, victim: str, other: str, deviation: float) -> int:
        key = scope, victim, other
        number = self._numbers.get(key, NOWHERE)
        if number == NOWHERE and len(self.means) <= MOST:
            number = self._numbers[key] = len(self.means)
            self.means.append(0.0)
            self.variances.append(deviation * deviation)
            self._first.append(deviation * deviation)
        return number

    def rows(self) -> tuple[Effect, ...]:
        """All effects of which something was seen, in a fixed order; to be asked about leaves no trace."""
        return tuple(
            Effect(*key, self.means[number], self.variances[number])
            for key, number in sorted(self._numbers.items())
            if self.means[number] or self.variances[number] != self._first[number]
        )


def _parts(kind: str) -> list[str]:
    return kind.split(":") if ":" in kind else []


def _of_victim(kind: str, victim: Load) -> list[tuple[str, str, str, float]]:
    """(scope, victim, other, deviation) of each level that does not depend on the neighbour."""
    levels = [("", victim.model, "", _GENERAL), (kind, victim.model, "", _OF_KIND)]
    parts = _parts(kind)
    if parts:
        levels.append((kind, "", "", _OF_KIND))
    for part in parts:
        levels += [(part, "", "", _GENERAL), (part, victim.model, "", _OF_KIND)]
    if victim.family:
        levels += [(part, f"family {victim.family}", "", _OF_PAIR) for part in parts or [kind]]
    return levels


def _of_pair(kind: str, victim: Load, other: Load) -> list[tuple[str, str, str, float]]:
    """(scope, victim, other, deviation) of each level that depends on the neighbour."""
    levels = [
        ("", "", other.model, _GENERAL),
        (kind, "", other.model, _OF_KIND),
        (kind, victim.model, other.model, _OF_PAIR),
    ]
    parts = _parts(kind)
    if parts:
        levels.append(("", victim.model, other.model, _OF_PAIR))
    levels += [(part, "", other.model, _OF_KIND) for part in parts]
    if other.family:
        of, by = f"family {victim.family}", f"family {other.family}"
        levels.append(("", of, by, _OF_PAIR))
        for part in parts or [kind]:
            levels += [(part, "", by, _OF_PAIR), (part, of, by, _OF_PAIR)]
    return levels
