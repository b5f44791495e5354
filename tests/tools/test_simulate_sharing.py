"""Scenarios in which batches are stopped between kernels, and in which neighbours slow each other down."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.record.ledger import Summary
from dovetail.tools.simulate import ScenarioRun

CLASSES = """
seed = 3
duration = "20s"
target = 0.0

[[workflows]]
name = "urgent"
slo = "50ms"
priority = 1
stages = [{ name = "look", model = "resnet50", batch = [1] }]

[[workflows]]
name = "bulk"
slo = "10s"
priority = 3
stages = [{ name = "study", model = "resnet101", batch = [32] }]

[[devices]]
kind = "v100"
kernels = "KERNELS"

[[arrivals]]
workflow = "urgent"
kind = "poisson"
rate = 10

[[arrivals]]
workflow = "bulk"
kind = "poisson"
rate = 250

[policy]
name = "by-class"
"""
SHARES = """
seed = 3
requests = 2000
target = 0.0

[[workflows]]
name = "tag"
slo = "1s"
stages = [{ name = "look", model = "resnet50", batch = [1] }]

[[devices]]
kind = "v100"

[[arrivals]]
workflow = "tag"
kind = "poisson"
rate = 50

[policy]
name = "first-come"
share_pct = 50
"""


def simulate(folder: Path, text: str) -> dict[str, Summary]:
    path = folder / "s.toml"
    path.write_text(text)
    return {line.workflow: line for line in ScenarioRun(path).go(check=True).summaries}


def test_a_high_class_beside_a_busy_low_one_is_faster_where_batches_can_be_stopped_between_kernels(
    tmp_path: Path,
) -> None:
    alone = simulate(tmp_path, CLASSES.replace("KERNELS", "never").replace("rate = 250", "rate = 0.001"))
    whole = simulate(tmp_path, CLASSES.replace("KERNELS", "never"))
    cut = simulate(tmp_path, CLASSES.replace("KERNELS", "auto"))
    # What the low class adds to the mean latency of the high one: the rest of a batch, or of a kernel.
    added_ms = [run["urgent"].mean_ms - alone["urgent"].mean_ms for run in (whole, cut)]
    assert added_ms[1] < added_ms[0] / 4
    assert cut["urgent"].p95_ms < whole["urgent"].p95_ms
    assert cut["urgent"].requests == whole["urgent"].requests
    # What the low class lost is what the high one took earlier.
    assert cut["bulk"].requests == whole["bulk"].requests
    assert cut["bulk"].mean_ms < 1.5 * whole["bulk"].mean_ms


def test_the_same_seed_gives_the_same_result_with_kernels(tmp_path: Path) -> None:
    text = CLASSES.replace("KERNELS", "auto").replace('"20s"', '"5s"')
    assert simulate(tmp_path, text) == simulate(tmp_path, text)


def test_with_one_class_kernels_change_nothing(tmp_path: Path) -> None:
    text = CLASSES.replace("priority = 3", "priority = 1").replace('"20s"', '"5s"')
    assert simulate(tmp_path, text.replace("KERNELS", "auto")) == simulate(tmp_path, text.replace("KERNELS", "never"))


@pytest.mark.parametrize("settings", ["", "beside = 1.4\n"])
def test_batches_at_half_a_device_each_take_longer_under_contention(tmp_path: Path, settings: str) -> None:
    alone = simulate(tmp_path, SHARES)["tag"]
    beside = simulate(tmp_path, SHARES + f"[contention]\n{settings}")["tag"]
    assert beside.mean_ms > alone.mean_ms
    # Alone on the device they take what they always took.
    assert beside.p50_ms >= alone.p50_ms
    most = 1.4 if settings else 1.09
    assert beside.mean_ms < alone.mean_ms * most * 1.3
