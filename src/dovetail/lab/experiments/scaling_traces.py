"""Loads for scalers, from public traces: rates over time, played as Poisson arrivals; and what they need at least.

Rules of this file
- A trace says how many requests came in each interval. Inside an interval arrivals are Poisson [assumption].
- Time is compressed and rates are scaled, so that a day takes some thousand seconds and some GPUs. Compressed time is
  harder for a scaler: the load changes as many times as fast, and devices start no faster.
- The bound counts every request at the cheapest point that could be in time at all: share times time, by batch. It
  knows no queue, no quota step, no start and no chance. Nobody can do with less.
"""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path

import msgspec

from ...predict import Estimator
from ...scale.points import SHARES_PCT
from ...sim.arrivals import Steps
from ...state import Config
from ...units import MS, SECOND
from .scaling_world import KIND, ScalingWorld

__all__ = ["Load", "bound_gpu_s", "fourteen_stages", "genai", "genai_load_ns", "has_gpu", "worldcup"]


#: FaST-GShare's load: (seconds, requests per second at their end). [slides p. 18, configuration.txt]
STAGES = (
    (5, 30), (10, 40), (10, 50), (10, 60), (15, 70), (15, 80), (15, 90), (15, 100), (15, 110), (15, 100), (10, 90),
    (10, 70), (20, 50), (20, 20),
)  # fmt: skip


class Load(msgspec.Struct, frozen=True):
    """A load: its name and its rates."""

    name: str
    #: (duration in ns, requests per second)
    steps: tuple[tuple[int, float], ...]

    @property
    def process(self) -> Steps:
        """As arrivals."""
        return Steps(self.steps)

    @property
    def peak_per_s(self) -> float:
        """The highest rate."""
        return max(rate for _, rate in self.steps)

    @property
    def duration_ns(self) -> int:
        """All of it."""
        return sum(duration for duration, _ in self.steps)


def has_gpu(path: Path) -> Load:
    """`rps.json` or `stress.json` of HAS-GPU: requests per second in steps of 5 s."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Load(path.stem, tuple((5 * SECOND, float(rate)) for rate in data["counts"]))


def fourteen_stages() -> Load:
    """Rates that go from one target to the next, in steps of a second, as k6 has it."""
    steps: list[tuple[int, float]] = []
    before = 0
    for seconds, target in STAGES:
        steps += [(SECOND, before + (target - before) * (i + 0.5) / seconds) for i in range(seconds)]
        before = target
    return Load("14 stages", tuple(steps))


def worldcup(path: Path, day: str, *, minute_ns: int, peak_per_s: float) -> Load:
    """A day of the World Cup of 1998, a minute played in `minute_ns`, scaled to a peak."""
    with path.open(encoding="utf-8", newline="") as file:
        counts = [int(row["requests"]) for row in csv.DictReader(file) if row["minute"].startswith(day)]
    if not counts:
        raise ValueError(f"{path} has no day {day}")
    scale = peak_per_s / max(counts)
    return Load(f"worldcup98 {day}", tuple((minute_ns, count * scale) for count in counts))


def genai(path: Path, kind: str, *, speed: float) -> Load:
    """Requests of one type of Alibaba's image service, as fast as it was, time compressed by `speed`."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["request_type"] == kind]
    times = [float(row["offset_s"]) for row in rows]
    rates = [float(row["requests_per_s"]) for row in rows]
    gaps = [later - sooner for sooner, later in zip(times, [*times[1:], times[-1] + 57], strict=True)]
    steps = tuple((round(gap / speed * SECOND), rate) for gap, rate in zip(gaps, rates, strict=True))
    return Load(f"alibaba_genai2026 {kind}", steps)


def genai_load_ns(path: Path) -> int:
    """The median time to load a base model."""
    with path.open(encoding="utf-8", newline="") as file:
        return round(statistics.median(float(row["load_ms"]) for row in csv.DictReader(file)) * MS)


def bound_gpu_s(world: ScalingWorld, requests: int) -> float:
    """GPU-seconds that so many requests need at the least."""
    predictor = Estimator(world.table())
    (stage,) = world.graph().stages
    least = min(
        share_pct * time_ns / batch
        for share_pct in SHARES_PCT
        for batch in stage.batch
        if (time_ns := predictor.run(stage, KIND, batch, Config(batch, 1, share_pct)).mean_ns) <= world.slo_ns
    )
    return requests * least / 100 / SECOND
