"""With the goal of time: which configurations a batch may run in, the fastest first.

Rules of this file
- Nothing waits for others. In a crowd only configurations count that take hardly more of the device than the least.
- A batch takes its run and its way back. In a crowd it counts how many are served, so the fastest per item is taken;
  else the smallest that is nearly as fast, because a larger one would only make the first item wait.
- Kinds of devices are looked at one by one, the fastest first: what takes long on one kind is nothing to another.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..plan.tables import Run, WorkflowPlan
from .ranked import Ranked

__all__ = ["LEAN_PCT", "MIXED_PCT", "as_fast"]

#: A batch may take so many per cent longer for items of a lower class that join it; and per item, not to be larger.
MIXED_PCT = 5
#: In a crowd a batch may take so many per cent more of the device than the least. [our choice]
LEAN_PCT = 15


def as_fast(plan: WorkflowPlan, size: int, node: int, left_ns: int, way_ns: int, *, lean: bool) -> Sequence[Ranked]:
    """As fast as can be with so many items at hand, or in a crowd (`lean`) with the least work."""
    runs = plan.runs[node]
    most = max(size, runs[0].config.batch)
    at_hand = [r for r in runs if r.config.batch <= most]
    if len(at_hand) == 1:  # nothing is to be compared
        return (Ranked(at_hand[0].config, at_hand[0].mean_ns / at_hand[0].config.batch),)
    after_ns = plan.quick_rest_ns[node] - min([r.mean_ns for r in runs])
    in_time = [r for r in at_hand if r.mean_ns + after_ns <= left_ns] or at_hand
    if plan.kinds == 1:
        return [Ranked(r.config, r.mean_ns / r.config.batch) for r in _ordered(in_time, way_ns, lean)[1]]
    kinds = dict.fromkeys([r.config.kind for r in in_time])
    found = [_ordered([r for r in in_time if r.config.kind == kind], way_ns, lean) for kind in kinds]
    found.sort(key=_first)
    return [Ranked(r.config, r.mean_ns / r.config.batch) for _, of_kind in found for r in of_kind]


def _first(found: tuple[int, list[Run]]) -> int:
    return found[0]


def _ordered(runs: list[Run], way_ns: int, lean: bool) -> tuple[int, list[Run]]:
    """The least time of an item, and the configurations worth it in order."""
    if lean:
        least = min([r.work for r in runs])
        runs = [r for r in runs if r.work * 100 <= least * (100 + LEAN_PCT)]
    most_pct = 100 if lean else 100 + MIXED_PCT
    quick_ns = min([-(-(r.mean_ns + way_ns) // r.config.batch) for r in runs])
    keyed = [
        ((r.mean_ns + way_ns) * 100 > quick_ns * r.config.batch * most_pct, r.config.batch, r.mean_ns, i)
        for i, r in enumerate(runs)
    ]
    return quick_ns, [runs[key[3]] for key in sorted(keyed)]
