"""What a slice of a device yields and how long it takes: the configurations that a scaler chooses from.

A point is a share and a batch with the time that the batch takes on that share. With a quota q of the device's time
it yields q * batch / time requests per second. FaST-GShare's measure of a point is its throughput per resource (RPR),
requests per second for each part of a device. By itself that always picks the slowest point there is, so that points
pass a latency filter first.

Rules of this file
- The latency filter. A slice runs one batch at a time. With a quota q a batch that takes t is followed by the next
  one after t / q, or when the part of the window that the quota leaves out is over, if that is later. Whoever comes
  just after a batch has begun waits for that long and runs for t. Both together have to be within the stage's part
  of the objective (`limit_ns`). So every point has a least quota, below which it is late.
- A stage's part of the objective is in proportion to its time along the longest path, so that the parts of no path
  add up to more than the objective (FaST-GShare and INFless know single functions only; this is our adaptation).
- The time of a batch is that in the company which its stage has of late: what is beside a slice slows it down.
- If nothing passes, the fastest point is what there is: late, but no later than it has to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ..predict import Predictor
from ..state import Config
from ..state.run_batch import FULL_QUOTA
from ..state.slice import QUOTA_WINDOW_NS, slice_cpus
from ..units import SECOND
from ..workflow.graph import Graph, StageSpec

__all__ = ["SHARES_PCT", "ScalePoint", "limits_ns", "points_of"]

#: Shares that slices may have. FaST-GShare profiles 6 to 100 %, RaPP 5 to 100 % in steps of 5.
SHARES_PCT: Final = (5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100)


class ScalePoint(msgspec.Struct, frozen=True):
    """A share and a batch, the time that it takes, and the least quota with which that is in time."""

    share_pct: int
    batch: int
    batch_ns: int
    #: Per cent of the time; above 100: it is never in time.
    least_quota_pct: int

    @property
    def per_s(self) -> float:
        """Requests per second with all of the time."""
        return self.batch * SECOND / self.batch_ns

    @property
    def rpr(self) -> float:
        """Requests per second for each whole device: FaST-GShare's throughput per resource."""
        return self.per_s * FULL_QUOTA / self.share_pct

    def latency_ns(self, quota_pct: int) -> int:
        """The longest that a request takes in a slice that keeps up: until its quota allows its batch, and that."""
        return _wait_ns(self.batch_ns, quota_pct) + self.batch_ns


def _wait_ns(batch_ns: int, quota_pct: int) -> int:
    """From the beginning of a batch to that of the next one, at the longest."""
    return max(batch_ns * FULL_QUOTA // quota_pct, (FULL_QUOTA - quota_pct) * QUOTA_WINDOW_NS // FULL_QUOTA)


def _least_quota_pct(batch_ns: int, limit_ns: int) -> int:
    """The least quota with which a batch is in time; above 100: none."""
    spare_ns = limit_ns - batch_ns
    if spare_ns < batch_ns:
        return FULL_QUOTA + 1
    by_batch = -(-batch_ns * FULL_QUOTA // spare_ns)
    by_window = FULL_QUOTA - spare_ns * FULL_QUOTA // QUOTA_WINDOW_NS
    return max(1, by_batch, by_window)


def limits_ns(graphs: Sequence[Graph], times_ns: Mapping[str, int], part: float) -> dict[str, int]:
    """Each stage's part of the objective, times `part`; the least where several workflows run it."""
    found: dict[str, int] = {}
    for graph in graphs:
        ends: list[int] = []
        for node in graph.nodes:
            before = max((ends[s.node] for s in node.sources() if s.node >= 0), default=0)
            ends.append(before + times_ns[node.stage])
        total_ns = max(ends)
        for node in graph.nodes:
            limit_ns = int(graph.slo_ns * part * times_ns[node.stage] / max(1, total_ns))
            found[node.stage] = min(found.get(node.stage, limit_ns), limit_ns)
    return found


def points_of(
    stage: StageSpec, kind: str, cores: int, predictor: Predictor, limit_ns: int, shares_pct: Sequence[int]
) -> list[ScalePoint]:
    """The points of a stage that are in time, the most efficient first; the fastest if there are none."""
    found = []
    for share_pct in shares_pct:
        cpus = slice_cpus(cores, share_pct)
        for batch in stage.batch:
            batch_ns = max(1, predictor.usual(stage, kind, batch, Config(batch, cpus, share_pct)).mean_ns)
            found.append(ScalePoint(share_pct, batch, batch_ns, _least_quota_pct(batch_ns, limit_ns)))
    in_time = [point for point in found if point.least_quota_pct <= FULL_QUOTA]
    if not in_time:
        fastest = min(found, key=lambda p: (p.batch_ns, p.share_pct))
        in_time = [msgspec.structs.replace(fastest, least_quota_pct=FULL_QUOTA)]
    return sorted(in_time, key=lambda p: (-p.rpr, -p.per_s, p.share_pct))
