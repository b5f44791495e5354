"""What a scaler may do: how many devices, and how eagerly."""

from __future__ import annotations

import msgspec

from ..units import SECOND
from .demand import DemandSettings
from .points import SHARES_PCT

__all__ = ["ScaleSettings"]


class ScaleSettings(msgspec.Struct, frozen=True):
    """Settings of `LoadScaler`. Constants without a source are our choice, tuned on other data than is reported."""

    #: Devices at the least and at the most.
    least: int = 1
    most: int = 1
    #: Stages have slices of devices; otherwise every batch may have what is free, and only devices come and go.
    slices: bool = True
    #: What a slice has is all that it may have; otherwise it may use what nobody else does.
    limits: bool = True
    #: Times are learned while it runs, so that what slices yield is worked out anew at every look.
    learns: bool = False
    #: How long a device takes to start: so far ahead the forecast looks.
    start_ns: int = 0
    #: A stage that nothing has come for in this time has no slice any more; 0: it always has one.
    zero_ns: int = 60 * SECOND
    #: Only say what would be done.
    dry: bool = False
    #: How often it looks. Ray Serve and HAS-GPU look every second or less often.
    tick_ns: int = 1 * SECOND
    #: Part of requests that may wait for longer than the objective allows, by chance alone (`headroom_per_s`).
    late: float = 0.08
    #: Part of its objective that a stage's slices are chosen for: times scatter.
    part: float = 0.8
    #: Changes of less than this are not made (hysteresis); of the whole, in per cent.
    band_pct: int = 10
    #: A device that is not needed for so long goes, or for as long as another one takes if that is longer.
    device_settle_ns: int = 15 * SECOND
    shares_pct: tuple[int, ...] = SHARES_PCT
    demand: DemandSettings = DemandSettings()
