"""How much those that run together on a device slow each other down: a truth that nobody outside this world is told.

Rules of this file
- Two that run together take `slowdown` times as long each: little if both fit on the device, more the more they ask
  for beyond it, and then by what bounds them.
- Of several, each suffers from each of the others as if those two were alone: iGniter's form, where what a neighbour
  costs is added up. Nobody has published measurements of more than two on a partitioned device.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..state.worker import FULL_SHARE
from .fluid import Flow

__all__ = ["BESIDE", "OPPOSITE", "SAME_COMPUTE", "SAME_MEMORY", "PairContention", "slowdown"]

#: Two kernels that each want the whole device, run together, take so many times as long each: from the speed-ups over
#: one after the other that Orion's authors report (0.98, 1.08, 1.41; second-hand, unverified).
SAME_COMPUTE, SAME_MEMORY, OPPOSITE = 2.04, 1.85, 1.42
#: Two that fit beside each other: median of 1,500 partitioned pairs measured by iGniter on a V100 (1.01 to 1.23).
BESIDE = 1.09


def slowdown(kind: str, share_pct: int, other_kind: str, other_share_pct: int, beside: float = BESIDE) -> float:
    """How many times as long each of two takes that run together; kinds are "compute", "memory" or unknown."""
    same = SAME_COMPUTE if kind == "compute" else SAME_MEMORY
    full = same if kind == other_kind else OPPOSITE
    over = max(0, share_pct + other_share_pct - FULL_SHARE) / FULL_SHARE
    return beside + (full - beside) * over


class PairContention:
    """Rates of those that run together, from what pairs of them cost each other."""

    def __init__(self, beside: float = BESIDE) -> None:
        """`beside` is how many times as long one takes beside another, if both fit on the device."""
        if beside < 1:
            raise ValueError(f"beside = {beside} would make batches faster beside each other than alone")
        self.beside = beside

    def __call__(self, running: Sequence[Flow]) -> list[float]:
        """Work per time of each of these: 1 for one that is alone."""
        if len(running) == 1:
            return [1.0]
        return [1 / (1 + sum(self._extra(flow, other) for other in running if other is not flow)) for flow in running]

    def _extra(self, flow: Flow, other: Flow) -> float:
        return slowdown(flow.kind, flow.share_pct, other.kind, other.share_pct, self.beside) - 1
