"""HAS-GPU's scaler: quotas first, in tenths; then pods on GPUs in use; then another GPU.

Source of the rules: KontonGu/HAS-GPU (2025), as far as research notes have it; the paper's text was not at hand.
- The rate is filtered by Kalman (Q = 1, R = 10). What is predicted is the estimate plus alpha times the root of its
  variance, and never below what was measured plus a buffer. Alpha and the buffer were not found: 1 and 1 here.
- Up, if the prediction is above 0.9 of the capacity: quotas rise by 10 points, pods with the largest share first;
  when all are whole, a pod is added. Down, if it is below 0.3 of the capacity and ten seconds have passed: quotas
  fall by 10 points, then pods go. A pod never has less than its latency asks for.
- A pod's share and batch are those with the least cost within the objective: RaPP predicts that there, the profile
  says it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import msgspec

from ...predict import Predictor
from ...units import SECOND
from ...workflow.graph import Graph
from .slicing import Pod, SlicingRival

__all__ = ["HasGpu"]

PROCESS, MEASUREMENT = 1.0, 10.0
ALPHA, BUFFER_PER_S = 1.0, 1.0
UP, DOWN = 0.9, 0.3
COOL_NS = 10 * SECOND
STEP_PCT = 10


class HasGpu(SlicingRival):
    """Vertical first, by a filtered rate."""

    #: What is filtered are counts of the last tick.
    window_ns = 1 * SECOND

    def __init__(self, predictor: Predictor, graph: Graph, *, most: int) -> None:
        super().__init__(predictor, graph, most=most)
        self._estimate, self._variance = 0.0, 1.0
        self._changed_ns = 0

    def decide(self, pods: Sequence[Pod], rate_per_s: float, ongoing: int, now_ns: int) -> Sequence[Pod]:
        """Quotas, then pods."""
        self._variance += PROCESS
        gain = self._variance / (self._variance + MEASUREMENT)
        self._estimate += gain * (rate_per_s - self._estimate)
        self._variance *= 1 - gain
        predicted = max(self._estimate + ALPHA * sqrt(self._variance), rate_per_s + BUFFER_PER_S)
        best = self.points[0]
        least = -(-max(best.least_quota_pct, STEP_PCT) // STEP_PCT) * STEP_PCT
        found = list(pods) or [Pod(best, least)]
        capacity = sum(pod.per_s for pod in found)
        if predicted > UP * capacity:
            self._changed_ns = now_ns
            while predicted > UP * sum(pod.per_s for pod in found) and len(found) < 100:
                self._grow(found, best.per_s, Pod(best, least))
        elif predicted < DOWN * capacity and now_ns - self._changed_ns >= COOL_NS:
            self._changed_ns = now_ns
            self._shrink(found, least)
        return found

    def _grow(self, found: list[Pod], _per_s: float, new: Pod) -> None:
        parts = [i for i, pod in enumerate(found) if pod.quota_pct < 100]
        if not parts:
            found.append(new)
            return
        at = max(parts, key=lambda i: (found[i].point.share_pct, -i))
        found[at] = msgspec.structs.replace(found[at], quota_pct=min(100, found[at].quota_pct + STEP_PCT))

    def _shrink(self, found: list[Pod], least: int) -> None:
        parts = [i for i, pod in enumerate(found) if pod.quota_pct > least]
        if parts:
            at = max(parts)
            found[at] = msgspec.structs.replace(found[at], quota_pct=found[at].quota_pct - STEP_PCT)
        elif len(found) > 1:
            found.pop()
