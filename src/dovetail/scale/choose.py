"""Which slices yield so much: vertical first (quota, then share), then replicas.

Rules of this file
- All slices of a stage are alike: a point (`points`), how many of it, and one quota. The quota is never below the
  point's least, which is what the latency filter asks for.
- The least area of a device is best. Of choices that are nearly as small the one that takes the fewest devices is
  taken, then the one with the fewest replicas, then the one that has the share that the stage has now: a quota is
  changed before a share, and a share before the number of replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from typing import Final

import msgspec

from ..state.run_batch import FULL_QUOTA
from ..units import SECOND
from .points import ScalePoint

__all__ = ["Choice", "choose", "headroom_per_s"]

#: Choices whose areas differ by less than this part are told apart by replicas and shares [our choice].
NEAR: Final = 1.05


def headroom_per_s(slack_ns: int, late: float) -> float:
    """What has to be there beyond the rate, so that this part of requests at most waits for longer than the slack.

    Heavy traffic of a queue with Poisson arrivals and constant service (Kingman 1961): the chance to wait for longer
    than x is exp(-2 x (capacity - rate)), whatever the rate is.
    """
    return -log(late) * SECOND / (2 * max(1, slack_ns))


def _own_ns(point: ScalePoint) -> int:
    """What a request takes without any queue: its batch; and where batches fill, the one before it."""
    return point.batch_ns * (1 if point.batch == 1 else 2)


class Choice(msgspec.Struct, frozen=True):
    """So many slices of a point, each with this quota."""

    point: ScalePoint
    count: int
    quota_pct: int

    @property
    def area(self) -> int:
        """Hundredths of a per cent of a device."""
        return self.count * self.point.share_pct * self.quota_pct

    @property
    def devices(self) -> int:
        """Devices that it takes if nobody else is there: so many slices of this share are beside each other."""
        beside = FULL_QUOTA // self.point.share_pct * (FULL_QUOTA // self.quota_pct)
        return -(-self.count // beside)

    @property
    def per_s(self) -> float:
        """What it yields."""
        return self.count * self.point.per_s * self.quota_pct / FULL_QUOTA


def choose(
    points: Sequence[ScalePoint], rate_per_s: float, share_pct: int = 0, *, limit_ns: int = 0, late: float = 1.0
) -> Choice:
    """The slices for so many items per second; `share_pct` is the share of the slices that there are.

    With `limit_ns` there is more, so that at most the part `late` waits for longer than that less its own batch.
    """
    found = []
    for point in points:
        per_s = rate_per_s + (headroom_per_s(limit_ns - _own_ns(point), late) if limit_ns else 0.0)
        count = max(1, ceil(per_s / point.per_s - 1e-9))
        quota_pct = max(point.least_quota_pct, ceil(FULL_QUOTA * per_s / (count * point.per_s) - 1e-9))
        found.append(Choice(point, count, min(FULL_QUOTA, quota_pct)))
    least = min(choice.area for choice in found)
    near = [choice for choice in found if choice.area <= least * NEAR]
    return min(near, key=lambda c: (c.devices, c.count, c.point.share_pct != share_pct, c.area, c.point.batch))
