"""FIKIT's rule for the gaps between kernels, as far as it could be found out.

Verified (abstract of arXiv 2311.10359): priorities of tasks, kernels identified and measured one by one, idle time
between the kernels of a high-priority task filled with kernels of lower ones. Everything else here is reconstruction
from second-hand outlines and memory, unverified: one mean per kernel name for duration and gap, the longest kernel of
the best class that fits (best-priority-fit), no filling of gaps up to 0.1 ms, early stop, never an unknown kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...device.account import Account
from ...device.arbiter_tasks import ArbiterSettings, ArbiterTask, Offer
from ...device.priority import PriorityArbiter
from ...profile.kernels import KernelStats, Spread, kernel_name
from ...units import US

__all__ = ["FikitArbiter", "FikitSettings", "pooled"]


class FikitSettings(ArbiterSettings, frozen=True, kw_only=True):
    """FIKIT's knobs."""

    #: Gaps that are not longer are left alone (epsilon; of the order of 0.1 ms, unverified).
    small_gap_ns: int = 100 * US


class FikitArbiter(PriorityArbiter):
    """Fills a gap that is predicted by its mean with the longest kernels that fit by their mean."""

    settings: FikitSettings

    def __init__(
        self,
        stats: Mapping[str, KernelStats] | None = None,
        settings: FikitSettings | None = None,
        *,
        account: Account | None = None,
        learn: bool = False,
    ) -> None:
        super().__init__(stats, settings or FikitSettings(), account=account, learn=learn)
        #: Sequence -> durations and gaps by name: FIKIT measures before, and keeps what it measured.
        self._pooled: dict[str, tuple[dict[str, Spread], dict[str, Spread]]] = {}

    def _worth(self, task: ArbiterTask, holders: list[ArbiterTask], now_ns: int) -> Offer | None:
        """The kernel's duration, if it fits into what should be left of the gap."""
        duration_ns = self._mean_ns(task, task.ready[0].kernel, 0)
        if duration_ns is None:
            return None
        for holder in holders:
            gap_ns = self._mean_ns(holder, holder.position, 1)
            if gap_ns is None or gap_ns <= self.settings.small_gap_ns:
                return None
            if duration_ns > gap_ns - (now_ns - holder.free_ns):
                return None
        return Offer(duration_ns)

    def _mean_ns(self, task: ArbiterTask, position: int, which: int) -> float | None:
        """Mean duration (0) of a kernel or mean gap (1) after it, over all kernels of its name; None if unknown."""
        stats = task.stats
        if stats is None or not 0 <= position < len(stats.kernels):
            return None
        known = self._pooled.get(stats.name)
        if known is None:
            known = self._pooled[stats.name] = pooled(stats)
        spread = known[which][kernel_name(stats.kernels[position])]
        return spread.mean_ns if spread.count >= stats.min_count else None


def pooled(stats: KernelStats) -> tuple[dict[str, Spread], dict[str, Spread]]:
    """Durations and waits by name, all kernels of one name together."""
    durations: dict[str, Spread] = {}
    gaps: dict[str, Spread] = {}
    for position, ident in enumerate(stats.kernels):
        name = kernel_name(ident)
        durations.setdefault(name, Spread()).merge(stats.durations[position])
        gaps.setdefault(name, Spread()).merge(stats.gaps[position + 1])
    return durations, gaps
