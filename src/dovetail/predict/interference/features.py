"""What is known of a pair before it ever ran together, as numbers, and what they are taken to mean at first.

Rules of this file
- A row describes a victim and one neighbour. Every number is of the order of one.
- The prior is what others have published of devices in general. It is weak: some tens of batches outweigh it.
- `crowd` is not of a pair: it is how far all who run together ask for more than the device has.
"""

from __future__ import annotations

import math
from typing import Final

from .load import Load

__all__ = ["CROWD", "FULL_PCT", "NAMES", "PRIOR_DEVIATION", "PRIOR_MEAN", "crowd_of", "row"]

FULL_PCT: Final = 100

#: name -> (mean, deviation) of its weight before anything was seen.
_PRIOR: Final = {
    # Median of 1,500 partitioned pairs on a V100 (iGniter): 1.09.
    "always": (math.log(1.09), 0.1),
    # Two that each want the whole device take 1.42 to 2.04 times as long each (Orion, second-hand).
    "over": (math.log(1.72), 0.3),
    "crowd": (0.0, 0.3),
    # Not to be drawn out beyond what was seen: what two models do at some shares and sizes says little of a third.
    # Of 0.2, 0.1, 0.05 and 0.03 these two left the least error on iGniter's pairs with models left out. [our choice]
    "share": (0.0, 0.05),
    "share²": (0.0, 0.05),
    "items": (0.0, 0.05),
    "other's items": (0.0, 0.05),
    # The rest: [our choice] that nothing is known, and that a step of one hardly ever doubles a time.
    "time alone": (0.0, 0.1),
    "other's time alone": (0.0, 0.1),
    "cache": (0.0, 0.3),
    "other's cache": (0.0, 0.3),
    "memory": (0.0, 0.3),
    "other's memory": (0.0, 0.3),
    "both compute": (0.0, 0.3),
    "both memory": (0.0, 0.3),
}
NAMES: Final = tuple(_PRIOR)
PRIOR_MEAN: Final = tuple([mean for mean, _ in _PRIOR.values()])
PRIOR_DEVIATION: Final = tuple([deviation for _, deviation in _PRIOR.values()])
#: Place of the one feature that is of all who run together.
CROWD: Final = NAMES.index("crowd")


def row(victim: Load, other: Load) -> tuple[float, ...]:
    """The features of a victim beside one other, in the order of `NAMES`."""
    share = victim.share_pct / FULL_PCT
    known = victim.cache >= 0 and other.cache >= 0
    memory = victim.memory >= 0 and other.memory >= 0
    compute = victim.compute >= 0 and other.compute >= 0
    return (
        1.0,
        max(0, victim.share_pct + other.share_pct - FULL_PCT) / FULL_PCT,
        0.0,
        share - 0.5,
        (share - 0.5) ** 2,
        math.log2(max(1, victim.items)) / 3 - 0.5,
        math.log2(max(1, other.items)) / 3 - 0.5,
        # 53 quarter octaves above a microsecond are ten milliseconds.
        (victim.solo_q - 53) / 16,
        (other.solo_q - 53) / 16,
        victim.cache if known else 0.0,
        other.cache if known else 0.0,
        victim.memory if memory else 0.0,
        other.memory if memory else 0.0,
        victim.compute * other.compute if compute else 0.0,
        victim.memory * other.memory if memory else 0.0,
    )


def crowd_of(share_pct: int, others: int) -> float:
    """How far three or more, who ask for so much together, ask for more than there is, as a logarithm.

    With a weight of one it is what a device costs that is divided evenly among them.
    """
    return math.log(share_pct / FULL_PCT) if others > 1 and share_pct > FULL_PCT else 0.0
