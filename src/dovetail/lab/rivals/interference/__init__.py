"""Rivals of the predictor of interference, one file each, by the name under which they are reported.

Each answers how many times as long a batch takes beside others, and is told how long it took (`common.Rival`).
"""

from __future__ import annotations

from collections.abc import Callable

from .boosting import Boosting
from .common import Rival, Sample
from .constant import Constant
from .ewma import Ewma
from .fine import Fine
from .gpulets import Gpulets
from .igniter import Igniter
from .none import Nothing
from .ours import Ours
from .rls import CoarseRls
from .sgd import Sgd

__all__ = ["RIVALS", "Rival", "Sample"]

#: Name -> how it is made. Ours is the last.
RIVALS: dict[str, Callable[[], Rival]] = {
    "none": Nothing,
    "constant": Constant,
    "gpulets": Gpulets,
    "ewma": Ewma,
    "fine": Fine,
    "igniter": Igniter,
    "sgd": Sgd,
    "rls": CoarseRls,
    "boosting": Boosting,
    "ours": Ours,
}
