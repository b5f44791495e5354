"""From the end of a batch to the arrival of its requests' next one at the same device: a running mean."""

from __future__ import annotations

from .estimate import GUESSED_SPREAD, GUESSED_TURNAROUND_NS, Estimate

__all__ = ["TURNAROUND_WEIGHT", "Turnaround"]

#: Weight of the newest turn-around in the running mean.
TURNAROUND_WEIGHT = 1 / 8


class Turnaround:
    """Running mean of turn-arounds, from the guess on."""

    __slots__ = ("count", "mean_ns", "variance")

    def __init__(self, count: int = 0, mean_ns: float = GUESSED_TURNAROUND_NS, variance: float = 0.0) -> None:
        self.count = count
        self.mean_ns = mean_ns
        self.variance = variance

    def add(self, ns: int) -> None:
        """Take one."""
        self.count += 1
        off = ns - self.mean_ns
        self.mean_ns += TURNAROUND_WEIGHT * off
        self.variance += TURNAROUND_WEIGHT * (off * (ns - self.mean_ns) - self.variance)

    def estimate(self) -> Estimate:
        """What is to be expected."""
        spread = max(0.0, self.variance) ** 0.5 / self.mean_ns if self.mean_ns > 0 else 0.0
        spread = (spread * spread + (GUESSED_SPREAD / self.count) ** 2) ** 0.5
        return Estimate(round(self.mean_ns), spread, "learned")
