"""FaST-GShare (ICPP '23): instances are rectangles (share of the device x part of the time), scaled by what they yield.

Source of the rules: the authors' slides (ICPP '23, p. 12 and 13) and public code: YukioZzz/FaSTAutoscaler and
KontonGu/FaST-GShare-Autoscaler (scaling), KontonGu/FaST-GShare (admission by area), Interstellarss/faas-share
(choice of the device). Look-ups in their profile are stubs there, so the choice of configurations follows the
description. docs/rivals.md says what was adapted and why.

- A profiled point p = (share S, quota Q) yields T requests per second; its efficiency is RPR = T / (S * Q).
- The processing gap of a function is its rate minus the summed T of its instances. Nothing happens while it is within
  20 % of what they yield.
- Scale up: floor(gap / T) instances of the most efficient point, and for what remains the point that yields least above
  it. Scale down: instances go in ascending order of RPR as long as the gap stays closed.
- An instance goes to the device that has room for its area and least area left.

Here devices are packed by area alone, as the current release does; the packing of maximal rectangles and the token
windows inside a device belong to `scale` and `device`, and this file does not know them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..state import Config, Queue
from ..state.worker import FULL_SHARE
from ..units import SECOND
from ..workflow.graph import Graph, StageSpec
from .common import Market, queue_key, slo_shares
from .instances import Instance, InstancePlanner

__all__ = ["FastGSharePlanner", "ProfilePoint", "points"]

#: Quotas that are profiled. [slides p. 16]
QUOTAS = (0.2, 0.4, 0.6, 0.8, 1.0)
#: No action while the gap is within this part of the capacity. [FaST-GShare-Autoscaler]
DEAD_BAND = 0.2
#: Added to the measured rate. [FaSTAutoscaler: rate + 1.0 - capacity]
HEADROOM_RPS = 1.0
#: How often it looks, and the weight of a look in the mean rate: as heavy as in a window of ten. [FaSTAutoscaler]
TICK_NS = 1 * SECOND
RATE_WEIGHT = 2 / 11
#: Standard deviations of a normal distribution below which 95 % lie: the profiler keeps the 95th percentile.
P95_SIGMAS = 1.645


class ProfilePoint(msgspec.Struct, frozen=True):
    """A share and a quota, and what an instance with them yields."""

    config: Config
    quota: float
    #: Requests per second.
    rps: float
    p95_ns: int

    @property
    def area_pct(self) -> float:
        """What it takes of a device."""
        return self.config.share_pct * self.quota

    @property
    def rpr(self) -> float:
        """Requests per second for each per cent of a device."""
        return self.rps / self.area_pct


def points(stage: StageSpec, slo_ns: int, market: Market) -> list[ProfilePoint]:
    """Profiled points within the objective, most efficient first; the fastest if there are none.

    A quota stretches a run: with tokens for half of the time it takes twice as long. Among equally efficient points
    the one that yields more comes first, for it needs fewer instances.
    """
    least = market.least(stage)
    found = []
    for config in market.configs(stage):
        if config.batch == least.batch and config.cpus == least.cpus:
            time_ns = market.time_ns(stage, config)
            p95_ns = time_ns * (1 + P95_SIGMAS * market.spread(stage))
            found.extend(
                ProfilePoint(config, q, config.batch * q * SECOND / time_ns, round(p95_ns / q)) for q in QUOTAS
            )
    within = [p for p in found if p.p95_ns <= slo_ns] or [min(found, key=lambda p: (p.p95_ns, p.area_pct))]
    return sorted(within, key=lambda p: (-round(p.rpr, 9), -p.rps))


class FastGSharePlanner(InstancePlanner):
    """Keeps each function's capacity near its rate."""

    def __init__(self, market: Market, *, dead_band_up: float = DEAD_BAND, dead_band_down: float = DEAD_BAND) -> None:
        super().__init__(market, tick_ns=TICK_NS, rate_weight=RATE_WEIGHT)
        self.points: dict[str, list[ProfilePoint]] = {}
        self._dead_band_up = dead_band_up
        self._dead_band_down = dead_band_down

    def prepare(self, graph: Graph) -> None:
        """The profile of each function within its part of the objective."""
        shares = slo_shares(graph, self.market)
        for stage in graph.stages:
            self.points[queue_key(graph, stage.name)] = points(stage, shares[stage.name], self.market)

    def spare(self, queue: Queue) -> Sequence[Config]:
        """The most efficient points, at last the minimum."""
        return [*dict.fromkeys(p.config for p in self.points[queue.key]), self.market.least(queue.stage)]

    def rescale(self, queue: Queue, rps: float) -> None:
        """Close the gap if it is out of the dead band."""
        have = self.fleet.of(queue.key)
        capacity = sum(i.max_rps for i in have)
        gap = rps + HEADROOM_RPS - capacity
        if gap > self._dead_band_up * capacity:
            self._grow(queue, gap)
        elif -gap > self._dead_band_down * capacity:
            for instance in sorted(have, key=lambda i: i.max_rps / (i.config.share_pct * i.quota)):
                if instance.max_rps <= -gap and len(self.fleet.of(queue.key)) > 1:
                    self.fleet.remove(queue.key, instance)
                    gap += instance.max_rps

    def _grow(self, queue: Queue, gap_rps: float) -> None:
        ranked = self.points[queue.key]
        while gap_rps > 0:
            enough = [p for p in ranked if p.rps > gap_rps]
            # The last instance need only be as large as what remains; before it, the most efficient are taken.
            wanted = ranked if ranked[0].rps <= gap_rps else sorted(enough, key=lambda p: p.rps) + ranked
            instance = next((i for i in (self._place(queue, p) for p in wanted) if i is not None), None)
            if instance is None:
                return  # the cluster is full: the rest waits
            self.fleet.add(queue.key, instance)
            gap_rps -= instance.max_rps

    def _place(self, queue: Queue, point: ProfilePoint) -> Instance | None:
        """On the device with the least area left that still has room for it."""
        held = self.fleet.reserved()
        free = {
            worker: FULL_SHARE - held.get(worker, (0.0, 0))[0] for worker in self.cluster.holders[queue.stage.name]
        }
        fits = [worker for worker, area_pct in free.items() if area_pct >= point.area_pct - 1e-9]
        if not fits:
            return None
        worker = min(fits, key=lambda w: free[w])
        return Instance(worker, point.config, point.rps, quota=point.quota)
