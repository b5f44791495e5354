"""No scaling: from the beginning on there are the slices that the highest rate needs, and they stay."""

from __future__ import annotations

from collections.abc import Sequence

from ...predict import Predictor
from ...scale.choose import choose
from ...workflow.graph import Graph
from .slicing import Pod, SlicingRival

__all__ = ["StaticPeak"]


class StaticPeak(SlicingRival):
    """Knows the peak beforehand, which nobody does."""

    def __init__(self, predictor: Predictor, graph: Graph, *, most: int, peak_per_s: float) -> None:
        super().__init__(predictor, graph, most=most)
        self._peak_per_s = peak_per_s

    def decide(self, pods: Sequence[Pod], rate_per_s: float, ongoing: int, now_ns: int) -> Sequence[Pod]:
        """Always the same."""
        choice = choose(self.points, self._peak_per_s)
        missing = choice.count - len(pods)
        return [*pods, *(Pod(choice.point, choice.quota_pct) for _ in range(missing))]
