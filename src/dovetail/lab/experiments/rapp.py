"""RaPP's measurements: the time of a request by batch, share and quota on a V100, under the hook of 2024.

What the data show. The hook counts the time of launches on the host, and not that of kernels on the device. So a
quota stretches the launches of a request and nothing else. How long they take then depends on the model and the
quota, and neither on the batch nor on the share: a larger batch has the same launches. The device works meanwhile.
So a request takes the longer of two: its launches under the quota, and its kernels on the share.

    time = max(charged(model, quota) / quota, floor(model, batch) + work(model, batch) / share)

What a launch is charged falls when the quota rises, from model to model in another way. No form with fewer numbers
was found that is as good (`docs/results/sharing.md`). So `charged` is one number by model and quota.

Rules of this file
- Numbers are fitted on half of the cells, as on a chess-board over share and quota. Errors are of the other half, and
  of the simulated device: its account lets launches through, and the share says how long its kernels take.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from ...units import MS, SECOND
from .fast_gshare_pods import Pod, Pods, search, simulated_per_s

__all__ = ["Cell", "Surface", "fit_surface", "halves", "launches_ms", "read_surfaces"]

#: Cells with a share of so much or more show what launches take, those with one of so much or less what kernels do.
MOSTLY_LAUNCHES_PCT, MOSTLY_KERNELS_PCT = 50, 15
#: From this quota on the device may be what takes longest.
WIDE_QUOTA_PCT = 60


class Cell(msgspec.Struct, frozen=True, order=True):
    """One measurement."""

    batch: int
    share_pct: int
    quota_pct: int
    ms: float


class Surface(msgspec.Struct, frozen=True):
    """What was fitted for a model."""

    #: Quota -> what launches take with it.
    launches_ms: Mapping[int, float]
    #: Batch -> floor, and work on the whole device.
    kernels_ms: Mapping[int, tuple[float, float]]

    def device_ms(self, batch: int, share_pct: int) -> float:
        """What the kernels of a request take."""
        floor_ms, work_ms = self.kernels_ms[batch]
        return floor_ms + work_ms * 100 / share_pct


def read_surfaces(path: Path) -> dict[str, list[Cell]]:
    """All measurements by model."""
    found: dict[str, list[Cell]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            sizes = (int(row["batch"]), int(row["sm_pct"]), int(row["quota_pct"]))
            found.setdefault(row["model"], []).append(Cell(*sizes, float(row["latency_ms"])))
    return {model: sorted(cells) for model, cells in sorted(found.items())}


def halves(cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Those that a model is fitted on, and the others: the colours of a chess-board, turned with each batch."""
    batches = sorted({cell.batch for cell in cells})
    colour: Callable[[Cell], int] = lambda c: c.share_pct // 5 + c.quota_pct // 10 + batches.index(c.batch)  # noqa: E731
    return [c for c in cells if colour(c) % 2 == 0], [c for c in cells if colour(c) % 2]


def fit_surface(cells: Sequence[Cell]) -> Surface:
    """The numbers with the least relative error, absolute and squared, by a search along each of them."""
    quotas, batches = sorted({c.quota_pct for c in cells}), sorted({c.batch for c in cells})
    values = []
    for quota in quotas:
        times = sorted(c.ms for c in cells if c.quota_pct == quota and c.share_pct >= MOSTLY_LAUNCHES_PCT)
        values.append(times[len(times) // 5])
    for batch in batches:
        narrow = [c for c in cells if c.batch == batch and c.share_pct <= MOSTLY_KERNELS_PCT]
        work = sorted(c.ms * c.share_pct / 100 for c in narrow if c.quota_pct >= WIDE_QUOTA_PCT)
        values += [0.3, work[len(work) // 2]]
    rows = [
        (quotas.index(c.quota_pct), len(quotas) + 2 * batches.index(c.batch), 100 / c.share_pct, math.log(c.ms))
        for c in cells
    ]

    def error(values: Sequence[float]) -> float:
        total = squares = 0.0
        for launch, kernel, inverse, ms in rows:
            off = abs(math.log(max(values[launch], values[kernel] + values[kernel + 1] * inverse)) - ms)
            total += off
            squares += off * off
        return total / len(rows) + math.sqrt(squares / len(rows))

    found = search(error, values, first=1.25, last=1.008)
    kernels = {
        b: (found[at], found[at + 1]) for b, at in zip(batches, range(len(quotas), len(found), 2), strict=True)
    }
    return Surface(dict(zip(quotas, found, strict=False)), kernels)


def launches_ms(job: tuple[float, int]) -> float:
    """What launches take on the simulated device that should take so long with this quota: (ms, quota)."""
    ms, quota_pct = job
    charged_ns = ms * MS * quota_pct / 100
    return SECOND / MS / simulated_per_s(Pods(Pod(0.0, charged_ns, 1.0), 100, quota_pct / 100))
