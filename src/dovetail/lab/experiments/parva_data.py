"""ParvaGPU's scenarios and profiles (SC '24, MunQ-Lee/ParvaGPU_SC24, MIT), read from the public measurements.

Throughput in its profiles is that of one process: batch over latency says so. Where it is nought the model did not
fit into memory.
"""

from __future__ import annotations

import csv
from pathlib import Path

from ...scale.partition import Demand, Measured
from ...units import MS, SECOND

__all__ = ["PUBLISHED_GPUS", "demands", "deployed_devices", "present"]

#: GPUs of ParvaGPU's own deployments of S1 to S4 (its `S*.deploy.csv`).
PUBLISHED_GPUS = (2, 3, 5, 7)


def present(data: Path) -> bool:
    """Whether the files are there."""
    return (data / "parvagpu_slo").is_dir() and (data / "parvagpu_a100_mig").is_dir()


def demands(data: Path, scenario: int) -> list[Demand]:
    """What scenario 1 to 4 asks for."""
    limits, rates = (
        _rows(data / "parvagpu_slo" / name)[scenario - 1] for name in ("SLO_latency.csv", "SLO_req_rate.csv")
    )
    return [
        Demand(model, float(rates[model]), round(float(limit) * MS), _profile(data, model))
        for model, limit in limits.items()
        if limit != "N/A"
    ]


def deployed_devices(data: Path, scenario: int) -> int:
    """GPUs that ParvaGPU's own deployment of the scenario uses."""
    return len({row["Num GPU"] for row in _rows(data / "parvagpu_slo" / f"S{scenario}.deploy.csv")})


def _profile(data: Path, model: str) -> tuple[Measured, ...]:
    found = []
    for row in _rows(data / "parvagpu_a100_mig" / f"{model}.csv"):
        processes, per_s = int(row["Workload Number"]), float(row["Throughput"])
        size, batch = int(row["Mig instance"]), int(row["Batch size"])
        if per_s > 0:
            found.append(Measured(size, batch, processes, processes * per_s, round(float(row["Latency"]) * SECOND)))
    return tuple(found)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
