"""Who is on a device: one batch as its neighbours feel it.

Rules of this file
- A load says what is known of a batch before it runs: model, items, share, time alone, use of the device.
- Its time alone is kept in quarter octaves. So loads that differ by a few per cent are the same load, and what is
  derived from a pair of loads can be remembered.
- A fetch of a model, or a transfer, is a load as well: it has a name of its own and no items to speak of.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from ...units import MS

__all__ = ["Beside", "Load", "fetch", "quarter_octaves"]

#: Nobody is beside another longer than this. A neighbour whose end is not known stays for ever.
FOREVER_NS: Final = 1 << 62


def quarter_octaves(ns: int) -> int:
    """A time as a number of quarter octaves above a microsecond."""
    return round(4 * math.log2(max(1000, ns) / 1000))


class Load(msgspec.Struct, frozen=True, array_like=True, cache_hash=True, gc=False):
    """One batch that runs, as far as its neighbours feel it."""

    model: str
    items: int = 1
    share_pct: int = 100
    #: Its time alone in this configuration, in quarter octaves above a microsecond.
    solo_q: int = quarter_octaves(10 * MS)
    #: Models that are alike (a family), where that is known: what was learned of one counts for the others.
    family: str = ""
    #: Which part of the device's arithmetic, cache and memory bandwidth it uses alone; negative: not known.
    compute: float = -1.0
    cache: float = -1.0
    memory: float = -1.0


def fetch(weights: str, ns: int) -> Load:
    """A model that is brought into memory, as those feel it who run there; all such fetches are alike at first."""
    return Load(f"fetch {weights}", 1, 0, quarter_octaves(ns), "fetch")


class Beside(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A neighbour, and when it was there: times count from the begin of the batch that it was beside."""

    load: Load
    begin_ns: int = 0
    end_ns: int = FOREVER_NS
