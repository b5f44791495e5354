"""Has the world changed? A cumulative sum of errors that are larger than they should be.

Rules of this file: errors come in units of their expected deviation. A single outlier is no change; many errors in a
row that are somewhat too large, or a few that are much too large, are one. After a change `haste` is 1 and fades.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ALARM", "FADES_AFTER", "USUAL", "Drift"]

#: The mean size of a normal error is 0.8 deviations. Below USUAL nothing adds up. [our choice]
USUAL: Final = 1.4
#: One error counts at most so much.
_MOST: Final = 4.0
#: Sum at which the world has changed: four errors beyond three deviations, or a dozen of two. [our choice]
ALARM: Final = 8.0
#: Haste falls to a third after so many observations.
FADES_AFTER: Final = 24


class Drift:
    """The detector of one kind of device."""

    __slots__ = ("alarms", "haste", "total")

    def __init__(self, total: float = 0.0, haste: float = 0.0, alarms: int = 0) -> None:
        self.total = total
        #: 1 right after a change, 0 long after it.
        self.haste = haste
        self.alarms = alarms

    def seen(self, deviations: float) -> None:
        """Take one error."""
        self.haste *= 1 - 1 / FADES_AFTER
        self.total = max(0.0, self.total + min(_MOST, abs(deviations)) - USUAL)
        if self.total >= ALARM:
            self.total = 0.0
            self.haste = 1.0
            self.alarms += 1
