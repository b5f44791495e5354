"""What was learned of kernels, as the store keeps it: packed, of bounded size, and looked over before it is used.

Rules of this file: plain data; it knows neither files nor clocks. A store travels, and workers may be wrong: what is
unpacked here is trusted no further than it was checked, and what is wrong with it is said, not raised as a surprise.
"""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from ..errors import ProfileError
from ..state_limits import FULL_SHARE
from .kernels import Cut, KernelStats, Spread
from .record import Key

__all__ = ["DAMAGED", "KernelStatus", "pack", "unpack_cut", "unpack_stats"]

#: State of a row that cannot be read, beside those of `record`.
DAMAGED = "damaged"
