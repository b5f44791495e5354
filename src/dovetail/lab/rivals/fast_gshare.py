"""FaST-GShare (ICPP '23): instances are rectangles, share of a device by part of the time, scaled by what they yield.

Source of the rules: the authors' slides (ICPP '23, p. 12, 13, 16) and public code: YukioZzz/FaSTAutoscaler of 2023
and KontonGu/FaST-GShare-Autoscaler of 2024 (scaling), Interstellarss/faas-share (which device). Look-ups of the
profile are stubs there, so the choice of points follows the description. docs/rivals.md says what was adapted.

- A profiled point p = (share S, quota Q) yields T requests per second; its efficiency is RPR = T / (S * Q).
- The processing gap of a function is its rate less the summed T of its instances.
- Scale up: floor(gap / T) instances of the most efficient point, and for what remains the point that yields least
  above it. Scale down, if the gap is more than 20 % of the capacity: instances go in ascending order of RPR.
- An instance goes to the device that has room for its rectangle and least room left. Requests wait for an instance
  of their function.

Rectangles are packed in rows of equal share here. Maximal rectangles and the token windows that enforce quotas inside
a device belong to `scale` and `device`; here a quota is a reservation and, as in the original, not a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ...control import Policy
from ...predict import Predictor
from ...state import Config, Queue
from ...state.worker import FULL_SHARE
from ...units import SECOND
from ...wiring import PolicySpec
from ...workflow.graph import Graph, StageSpec
from .common import MAX_OPEN, Market, queue_key, rival_policy, slo_shares
from .instances import Instance, InstancePlanner

__all__ = ["FastGSharePlanner", "ProfilePoint", "height_pct", "make", "points"]

#: Quotas that are profiled. [slides p. 16]
QUOTAS = (0.2, 0.4, 0.6, 0.8, 1.0)
#: No action while the gap is within this part of the capacity: the autoscaler of 2024. That of 2023 has no such band.
#: We scale up by the latter and down by the former: a band above the capacity leaves a function short of up to a
#: fifth of its load for ever, and its queue grows without bound.
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
    found: list[ProfilePoint] = []
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

    def __init__(
        self,
        market: Market,
        *,
        dead_band_up: float = 0.0,
        dead_band_down: float = DEAD_BAND,
        ideal_residual: bool = True,
        max_open: int = MAX_OPEN,
    ) -> None:
        """Without `ideal_residual` what remains of a gap gets the most efficient point too: so the shipped stub."""
        super().__init__(market, tick_ns=TICK_NS, rate_weight=RATE_WEIGHT, max_open=max_open)
        self.points: dict[str, list[ProfilePoint]] = {}
        self._ideal_residual = ideal_residual
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
        capacity_rps = sum(i.max_rps for i in have)
        gap_rps = (rps + HEADROOM_RPS if rps else 0.0) - capacity_rps
        if gap_rps > self._dead_band_up * capacity_rps:
            while gap_rps > 0:
                instance = self._next(queue, gap_rps)
                if instance is None:
                    return  # the cluster is full: the rest waits
                self.fleet.add(queue.key, instance)
                gap_rps -= instance.max_rps
        elif -gap_rps > self._dead_band_down * capacity_rps:
            for instance in sorted(have, key=lambda i: i.max_rps / (i.config.share_pct * i.quota)):
                if instance.max_rps <= -gap_rps and len(self.fleet.of(queue.key)) > 1:
                    self.fleet.remove(queue.key, instance)
                    gap_rps += instance.max_rps

    def _next(self, queue: Queue, gap_rps: float) -> Instance | None:
        """The most efficient instance; once it would be too large, the smallest that is large enough."""
        ranked = self.points[queue.key]
        if self._ideal_residual and ranked[0].rps > gap_rps:
            enough = [p for p in ranked if p.rps > gap_rps]
            ranked = sorted(enough, key=lambda p: p.rps) + ranked
        held = self.fleet.by_worker()
        for point in ranked:
            best: tuple[int, Instance] | None = None
            for worker in self.cluster.holders[queue.stage.name]:
                instance = Instance(worker, point.config, point.rps, quota=point.quota)
                left = FULL_SHARE - height_pct([*held[worker], instance])
                if left >= 0 and (best is None or left < best[0]):
                    best = (left, instance)
            if best is not None:
                return best[1]
        return None


def height_pct(instances: Iterable[Instance]) -> int:
    """What rectangles take of a device if each goes into the first row of its share that has time left."""
    rows: list[tuple[int, float]] = []
    for instance in instances:
        share, quota = instance.config.share_pct, instance.quota
        for at, (row_share, used) in enumerate(rows):
            if row_share == share and used + quota <= 1 + 1e-9:
                rows[at] = (share, used + quota)
                break
        else:
            rows.append((share, quota))
    return sum(share for share, _ in rows)


def make(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """FaST-GShare for the registry."""
    return rival_policy(FastGSharePlanner(Market(predictor, spec.space), max_open=spec.max_open))
