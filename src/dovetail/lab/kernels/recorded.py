"""Kernel sequences as they were measured, from files like Orion's public profiles: one row per kernel, in order."""

from __future__ import annotations

import csv
import random
from pathlib import Path

from ...profile.catalogue.kernels import KernelKind
from ...profile.kernels import kernel_ids
from ...sim.sequences import SETUP_NS, Kernel
from ...state.worker import FULL_SHARE
from .hosts import Host, LaunchedSequence, host_ns

__all__ = ["KINDS", "SM_COUNT", "read_rows", "recorded_sequence"]

#: Multiprocessors of the V100 that the profiles are of, and what its profiler calls the kinds of kernels.
SM_COUNT = 80
KINDS: dict[str, KernelKind] = {"1": "compute", "0": "memory", "-1": "unknown"}


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a profile, in the order of launch."""
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if float(row["Duration"]) > 0]


def recorded_sequence(path: Path, seed: int, host: Host) -> LaunchedSequence:
    """The measured kernels; the seed decides only on the host's times, of which nothing was measured."""
    rows = read_rows(path)
    rng = random.Random(f"{path.stem}/{seed}/{host.name}")
    idents = kernel_ids([(row["Name"], ()) for row in rows])
    kernels = tuple(
        Kernel(
            ident,
            KINDS[row["Profile"].strip()],
            max(1, min(FULL_SHARE, round(FULL_SHARE * float(row["SM_usage"]) / SM_COUNT))),
            round(float(row["Duration"])) + SETUP_NS,
        )
        for ident, row in zip(idents, rows, strict=True)
    )
    return LaunchedSequence(path.stem, kernels, host, tuple(host_ns(host, rng) for _ in kernels))
