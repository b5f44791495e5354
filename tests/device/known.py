"""Small sequences of which all is known, for the arbiters' tests step by step."""

from __future__ import annotations

from dovetail.device.arbiter import StartKernel
from dovetail.profile.kernels import KernelStats, kernel_ids
from dovetail.units import US

HIGH, LOW, OTHER = 1, 2, 3


def known(name: str, kernels: list[tuple[int, int]], *, names: list[str] | None = None) -> KernelStats:
    """Statistics of (duration, gap after it) in microseconds, seen often."""
    stats = KernelStats.empty(name, kernel_ids([(n, ()) for n in names or [f"k{i}" for i in range(len(kernels))]]))
    for _ in range(20):
        for i, (duration_us, gap_us) in enumerate(kernels):
            stats.observe(i, duration_us * US)
            stats.observe_gap(i, gap_us * US)
    return stats


def stats_for(gap_us: int, *durations_us: int) -> dict[str, KernelStats]:
    """A high sequence with one gap, and low sequences of one duration each."""
    found = {"high": known("high", [(50, gap_us), (50, gap_us), (50, gap_us)])}
    for number, duration_us in enumerate(durations_us):
        found[f"low{number}"] = known(f"low{number}", [(duration_us, 0)] * 4)
    return found


def starts(actions: object) -> list[object]:
    return [a for a in actions if isinstance(a, StartKernel)]  # type: ignore[attr-defined]
