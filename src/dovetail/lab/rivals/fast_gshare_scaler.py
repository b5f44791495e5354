"""FaST-GShare's auto-scaler as published, behind the protocol of scalers.

Source of the rules: the slides of ICPP '23 (p. 12, 16) and YukioZzz/FaSTAutoscaler (2023).
- The gap is the rate of the last 10 s, plus 1, less what all pods yield. It looks every second.
- Up: floor(gap / T) pods of the point with the highest RPR, and for what remains the pod that yields least above it.
- Down: pods go in ascending order of RPR, as long as they yield no more than is too much. The release of 2024 does
  nothing within a fifth of the capacity; down we do the same.
- Points are shares by quotas of 0.2 to 1. How latency enters the choice is not in the code: as the research has it,
  points whose 95th percentile is within the objective count. That is the time over the quota here. Pods answer one
  request after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from .slicing import Pod, SlicingRival

__all__ = ["FastGShareScaler"]

QUOTAS_PCT = (20, 40, 60, 80, 100)
HEADROOM_PER_S = 1.0
BAND_DOWN = 0.2


class FastGShareScaler(SlicingRival):
    """Keeps what pods yield near the rate."""

    def decide(self, pods: Sequence[Pod], rate_per_s: float, ongoing: int, now_ns: int) -> Sequence[Pod]:
        """Close the gap."""
        kept = list(pods)
        capacity = sum(pod.per_s for pod in kept)
        gap = rate_per_s + HEADROOM_PER_S - capacity
        if gap > 0:
            return [*kept, *self._more(gap)]
        if -gap > BAND_DOWN * capacity:
            for pod in sorted(pods, key=lambda p: (round(p.rpr, 6), p.slice)):
                if pod.per_s <= -gap and len(kept) > 1:
                    kept.remove(pod)
                    gap += pod.per_s
        return kept

    def _more(self, gap: float) -> list[Pod]:
        profiled = [Pod(p, q) for p in self.points for q in QUOTAS_PCT if self._in_time(p.batch_ns, q)]
        profiled = profiled or [Pod(self.points[0], 100)]
        best = max(profiled, key=lambda pod: (round(pod.rpr, 6), pod.per_s))
        count = int(gap / best.per_s)
        rest = gap - count * best.per_s
        found = [best] * count
        if rest > 0:
            enough = [pod for pod in profiled if pod.per_s > rest]
            found.append(min(enough, key=lambda pod: pod.per_s) if enough else best)
        return found

    def _in_time(self, batch_ns: int, quota_pct: int) -> bool:
        return batch_ns * 100 / quota_pct <= self._graph.slo_ns
