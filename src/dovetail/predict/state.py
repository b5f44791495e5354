"""What an estimator has learned, as plain data: to be saved, shown, put into a log's header, and restored.

Rules of this file: field order is the format. Append, never reorder, and raise `VERSION` when a meaning changes.
"""

from __future__ import annotations

import msgspec

from ..errors import ProfileError
from ..profile.kernels import KernelStats

__all__ = ["VERSION", "EstimatorState", "LearnedLoad", "LearnedRun", "LearnedTurnaround"]

VERSION = 1


class LearnedRun(msgspec.Struct, frozen=True, array_like=True):
    """Run times of one stage on one kind of device, for one batch size in one configuration.

    They are kept of stages with a profile, too.
    """

    stage: str
    kind: str
    items: int
    cpus: int
    share_pct: int
    #: Batches that were seen, and the weighted mean and sum of squares of the last of them (`running.Spread`).
    count: int
    mean_ns: int
    squares: float


class LearnedLoad(msgspec.Struct, frozen=True, array_like=True):
    """Load times of one model on one kind of device."""

    weights: str
    kind: str
    count: int
    mean_ns: int
    squares: float


class LearnedTurnaround(msgspec.Struct, frozen=True, array_like=True):
    """From the end of a batch to its requests' next one, on one kind of device."""

    kind: str
    count: int
    mean_ns: float
    #: Weighted mean of squared deviations.
    variance: float


class EstimatorState(msgspec.Struct, frozen=True):
    """All that one estimator has learned."""

    version: int = VERSION
    runs: tuple[LearnedRun, ...] = ()
    loads: tuple[LearnedLoad, ...] = ()
    turnarounds: tuple[LearnedTurnaround, ...] = ()
    #: Of sequences of kernels that came, and of those that others told of and that did not come yet.
    kernels: tuple[KernelStats, ...] = ()
    told: tuple[KernelStats, ...] = ()

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ProfileError(
                f"what was learned is of version {self.version}, and this Dovetail reads version {VERSION}; let it "
                f"be learned anew, or use the version that wrote it"
            )
