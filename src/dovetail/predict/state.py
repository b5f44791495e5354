"""What an estimator has learned, as plain data: to be saved, shown, put into a log's header, and restored.

Rules of this file: field order is the format. Append, never reorder, and raise `VERSION` when a meaning changes.
"""

from __future__ import annotations

import math

import msgspec

from ..errors import ProfileError
from ..profile.kernels import KernelStats
from .interference.state import InterferenceState
from .interference.state import trouble_of as trouble_of_interference

__all__ = [
    "VERSION",
    "EstimatorState",
    "LearnedLoad",
    "LearnedRun",
    "LearnedScatter",
    "LearnedTurnaround",
    "trouble_of",
]

VERSION = 1
#: No time that was measured is longer, and nothing was seen more often.
_MOST_NS, _MOST_COUNT = 1 << 62, 1 << 40


class LearnedRun(msgspec.Struct, frozen=True, array_like=True):
    """Run times of one stage on one kind of device, for one batch size in one configuration.

    They are kept of stages with a profile, too.
    """

    stage: str
    kind: str
    items: int
    cpus: int
    share_pct: int
    #: Batches that were seen (0: only first runs in a worker), and the weighted mean and sum of squares of the last
    #: of them (`running.Seen`).
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


class LearnedScatter(msgspec.Struct, frozen=True, array_like=True):
    """How far times of a profiled stage on one kind of device are from its profile's."""

    stage: str
    kind: str
    #: Batches that were seen; weighted mean and sum of squares of their times over the profile's, in millionths.
    count: int
    mean: int
    squares: float
    #: What is said of it until it has changed by enough.
    said: float


class EstimatorState(msgspec.Struct, frozen=True):
    """All that one estimator has learned."""

    version: int = VERSION
    runs: tuple[LearnedRun, ...] = ()
    loads: tuple[LearnedLoad, ...] = ()
    turnarounds: tuple[LearnedTurnaround, ...] = ()
    #: Of sequences of kernels that came, and of those that others told of and that did not come yet.
    kernels: tuple[KernelStats, ...] = ()
    told: tuple[KernelStats, ...] = ()
    scatters: tuple[LearnedScatter, ...] = ()
    #: What neighbours cost each other, where that is learned. It is left out of the data where it is not.
    interference: InterferenceState | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ProfileError(
                f"what was learned is of version {self.version}, and this Dovetail reads version {VERSION}; let it "
                f"be learned anew, or use the version that wrote it"
            )

    def __bool__(self) -> bool:
        learned = self.runs or self.loads or self.turnarounds or self.kernels or self.told or self.scatters
        return bool(learned or self.interference)


def trouble_of(state: EstimatorState) -> str:
    """What is wrong with run and load times that come from elsewhere; empty if nothing is."""
    rows: tuple[LearnedRun | LearnedLoad, ...] = (*state.runs, *state.loads)
    for row in rows:
        if not (0 <= row.count <= _MOST_COUNT and 0 <= row.mean_ns <= _MOST_NS and 0 <= row.squares < math.inf):
            return f"{row.count} times of {row.mean_ns} ns"
    for run in state.runs:
        if not (0 < run.items <= _MOST_COUNT and 0 <= run.cpus <= _MOST_COUNT and 0 < run.share_pct <= 100):
            return f"{run.items} items on {run.cpus} cores and {run.share_pct} % of a device"
    return trouble_of_interference(state.interference) if state.interference else ""
