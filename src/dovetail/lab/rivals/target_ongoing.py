"""Ray Serve's rule: as many replicas as keep the ongoing requests of each at a target.

Source of the rules: recollection of Ray's documentation [unverified]. The wanted number is that of the replicas times
their mean ongoing requests over the target, rounded up. It is averaged over `look_back_period_s` (30 s), and a change
counts when it was wanted for `upscale_delay_s` (30 s) or `downscale_delay_s` (600 s) without a break.
`target_ongoing_requests` is 2.

A replica is a whole slice of the most efficient share here, since a replica has a fixed part of a GPU there. Where a
trace's time is compressed, these times are divided by as much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil

from ...predict import Predictor
from ...units import SECOND
from ...workflow.graph import Graph
from .slicing import Pod, SlicingRival

__all__ = ["TargetOngoing"]


class TargetOngoing(SlicingRival):
    """Replicas by ongoing requests."""

    def __init__(
        self, predictor: Predictor, graph: Graph, *, most: int, speed: float = 1.0, target: float = 2.0
    ) -> None:
        super().__init__(predictor, graph, most=most)
        self.tick_ns = round(max(0.1, 1 / speed) * SECOND)
        self._target = target
        self._look_ns = round(30 / speed * SECOND)
        self._up_ns, self._down_ns = round(30 / speed * SECOND), round(600 / speed * SECOND)
        self._seen: deque[tuple[int, int]] = deque()
        #: Since when more or fewer were wanted without a break.
        self._since: tuple[int, int] = (0, 0)

    def decide(self, pods: Sequence[Pod], rate_per_s: float, ongoing: int, now_ns: int) -> Sequence[Pod]:
        """Add or remove replicas when that was wanted for long enough."""
        self._seen.append((now_ns, ongoing))
        while self._seen[0][0] < now_ns - self._look_ns:
            self._seen.popleft()
        mean = sum(count for _, count in self._seen) / len(self._seen)
        have = len(pods)
        want = max(1, ceil(mean / self._target))
        way = (want > have) - (want < have)
        if way != self._since[0]:
            self._since = (way, now_ns)
        waited_ns = now_ns - self._since[1]
        if have and (way == 0 or waited_ns < (self._up_ns if way > 0 else self._down_ns)):
            return pods
        self._since = (0, now_ns)
        best = self.points[0]
        return [*pods[:want], *(Pod(best, 100) for _ in range(want - have))]
