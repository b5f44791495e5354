"""How few devices serve so many requests in time, where a device is cut into fixed slices that models share in time.

A device such as an A100 is cut into slices of whole parts (MIG). A model on a slice has a quota of its time. Others
have the rest. ParvaGPU (SC '24) gives each slice to one model. What it leaves idle is what a quota can use.

Rules of this file
- A configuration on a slice has a throughput and a batch time, both measured alone on a slice of that size. With a
  quota it has that part of the throughput. A batch takes its time divided by the quota, and a window more for the
  phase (`device.tokens`).
- A model is in time if a batch ends within half of its objective. The other half is for requests to gather in a
  batch: also that has to be so. The first is ParvaGPU's rule, the second is ours; ParvaGPU does not look at it.
- A model may be on several slices. Each part is in time for itself.
- Devices are tried from the lower bound on, all ways to cut them. For each cut, models are placed one after the other
  where they take the least of a device. The one that found no room goes first next time, a few times.
- Pure and without chance: the same demand gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, islice
from typing import Final

import msgspec

from ..units import MS, SECOND

__all__ = ["A100_CUTS", "Demand", "Measured", "Part", "Plan", "lower_bound", "plan_devices"]

#: All ways to cut an A100 as far as it goes, as MIG allows it (NVIDIA's table of profiles and placements). Two slices
#: of three leave a seventh that cannot be used.
A100_CUTS: Final = (
    (7,), (4, 3), (4, 2, 1), (4, 1, 1, 1), (3, 3), (3, 2, 2), (3, 2, 1, 1), (3, 1, 1, 1, 1), (2, 2, 2, 1),
    (2, 2, 1, 1, 1), (2, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1, 1),
)  # fmt: skip
#: FaST-GShare's window of 2024.
WINDOW_NS: Final = 40 * MS
#: Ways to cut that are tried for a number of devices, and orders for each of them [our choice].
MOST_CUTS: Final = 1500
MOST_ORDERS: Final = 2
#: A part of less than this of a slice's time is not worth having [our choice].
LEAST_QUOTA: Final = 0.05
_NONE: Final = 2.0


class Measured(msgspec.Struct, frozen=True, gc=False):
    """A configuration of a model on a slice of a size, alone."""

    size: int
    batch: int
    processes: int
    #: Of all processes together.
    per_s: float
    batch_ns: int


class Demand(msgspec.Struct, frozen=True):
    """What is asked of a model."""

    model: str
    per_s: float
    objective_ns: int
    measured: tuple[Measured, ...]


class Part(msgspec.Struct, frozen=True):
    """A model on a slice: so much of its time, so many requests."""

    model: str
    device: int
    slice: int
    config: Measured
    quota: float
    per_s: float

    def answer_ns(self, window_ns: int = WINDOW_NS) -> int:
        """How long a request takes at the most: to gather its batch, and the batch."""
        gather_ns = self.config.batch * self.config.processes / self.per_s * SECOND
        return round(gather_ns + _batch_ns(self.config, self.quota, window_ns))


class Plan(msgspec.Struct, frozen=True):
    """Devices, how each is cut, and who is where."""

    cuts: tuple[tuple[int, ...], ...]
    parts: tuple[Part, ...]


def _batch_ns(config: Measured, quota: float, window_ns: int) -> float:
    return config.batch_ns if quota >= 1 else config.batch_ns / quota + window_ns


def _in_time(config: Measured, quota: float, per_s: float, half_ns: float, window_ns: int) -> bool:
    gather_ns = config.batch * config.processes / per_s * SECOND if per_s else 0.0
    return _batch_ns(config, quota, window_ns) <= half_ns and gather_ns <= half_ns


class _Model:
    """A demand, and what it takes on each size of slice."""

    def __init__(self, demand: Demand, window_ns: int) -> None:
        self.demand = demand
        self.half_ns = demand.objective_ns / 2
        self.window_ns = window_ns
        self.sizes: dict[int, list[Measured]] = {}
        for config in demand.measured:
            if config.per_s > 0:
                self.sizes.setdefault(config.size, []).append(config)
        self._least: dict[tuple[int, float], tuple[float, Measured | None]] = {}

    def least(self, size: int, per_s: float) -> tuple[float, Measured | None]:
        """The least quota of a slice of this size that serves so many requests in time."""
        found = self._least.get((size, per_s))
        if found is None:
            found = (_NONE, None)
            for config in self.sizes.get(size, ()):
                patient_ns = self.half_ns - self.window_ns
                quota = max(per_s / config.per_s, config.batch_ns / patient_ns if patient_ns > 0 else _NONE)
                if per_s <= config.per_s and config.batch_ns <= self.half_ns:
                    quota = min(quota, 1.0)
                # A little more, so that rounding does no harm.
                quota = min(quota * (1 + 1e-9), 1.0) if quota <= 1 else _NONE
                if quota < found[0] and _in_time(config, quota, per_s, self.half_ns, self.window_ns):
                    found = (quota, config)
            self._least[size, per_s] = found
        return found

    def most(self, size: int, quota: float) -> tuple[float, Measured | None]:
        """The most requests that a quota of a slice of this size serves in time."""
        best: tuple[float, Measured | None] = (0.0, None)
        for config in self.sizes.get(size, ()):
            per_s = quota * config.per_s
            if per_s > best[0] and _in_time(config, quota, per_s, self.half_ns, self.window_ns):
                best = (per_s, config)
        return best

    def area(self) -> float:
        """The least of a device that it takes on one slice, for the order."""
        per_s = self.demand.per_s
        return min((size * self.least(size, per_s)[0] for size in self.sizes), default=0.0)


def _place(models: Sequence[_Model], cuts: Sequence[tuple[int, ...]]) -> tuple[list[Part], str]:
    """Place the models in this order; the name of the first that found no room, or none."""
    slices = [(device, number, size) for device, cut in enumerate(cuts) for number, size in enumerate(cut)]
    free = [1.0] * len(slices)
    parts: list[Part] = []
    for model in models:
        left = model.demand.per_s
        while left > 0:
            fits = []
            for i, (_, _, size) in enumerate(slices):
                quota, config = model.least(size, left)
                if config is not None and quota <= free[i]:
                    fits.append((size * quota, free[i] - quota, i, quota, config))
            if fits:
                _, _, i, quota, config = min(fits, key=lambda fit: fit[:3])
                per_s = left
            else:
                offers = []
                for i, (_, _, size) in enumerate(slices):
                    if free[i] >= LEAST_QUOTA:
                        per_s, found = model.most(size, free[i])
                        if found is not None:
                            offers.append((-per_s / (size * free[i]), i, per_s, found))
                if not offers:
                    return [], model.demand.model
                _, i, per_s, config = min(offers, key=lambda offer: offer[:2])
                quota = free[i]
            device, number, _ = slices[i]
            parts.append(Part(model.demand.model, device, number, config, quota, per_s))
            free[i] -= quota
            left -= per_s
    return parts, ""


def lower_bound(demands: Sequence[Demand], sevenths: int = 7, *, shared: bool = True) -> int:
    """Devices that nobody could do with less than, by these measurements and this rule of being in time.

    As if every model ran at its best throughput for a part of a device, and parts could be cut at will. Not `shared`:
    as if every model had the fewest sevenths in whole slices of its own, and these fitted together at will.
    """
    parts = 0.0
    for demand in demands:
        in_time = [c for c in demand.measured if c.per_s > 0 and 2 * c.batch_ns <= demand.objective_ns]
        if shared:
            parts += demand.per_s * min(config.size / config.per_s for config in in_time)
        else:
            parts += _fewest_sevenths(demand.per_s, in_time)
    return max(1, -(-round(parts * 1e6) // (sevenths * 1_000_000)))


def _fewest_sevenths(per_s: float, in_time: Sequence[Measured]) -> int:
    """Sevenths of devices in whole slices that yield so much."""
    best: dict[int, float] = {}
    for config in in_time:
        best[config.size] = max(best.get(config.size, 0.0), config.per_s)
    yields = [0.0]
    while yields[-1] < per_s:
        size = len(yields)
        yields.append(max(yields[size - s] + best[s] for s in best if s <= size) if min(best) <= size else 0.0)
    return len(yields) - 1


def plan_devices(
    demands: Sequence[Demand],
    cuts: Sequence[tuple[int, ...]] = A100_CUTS,
    *,
    most: int = 16,
    window_ns: int = WINDOW_NS,
    shared: bool = True,
) -> Plan | None:
    """The fewest devices found, and who is where; None: more than `most`. Not `shared`: a slice is one model's."""
    models = [_Model(demand, window_ns if shared else 1 << 62) for demand in demands]
    models.sort(key=lambda model: (-model.area(), model.demand.model))
    for devices in range(lower_bound(demands), most + 1):
        for cut in islice(combinations_with_replacement(cuts, devices), MOST_CUTS):
            for parts in _orders(models, cut):
                if parts:
                    return Plan(cut, tuple(parts))
    return None


def _orders(models: Sequence[_Model], cut: Sequence[tuple[int, ...]]) -> Iterator[list[Part]]:
    """Place them in some orders: whoever found no room goes first next time."""
    order = list(models)
    for _ in range(MOST_ORDERS):
        parts, failed = _place(order, cut)
        yield parts
        if parts:
            return
        order.sort(key=lambda model: model.demand.model != failed)
