"""What the experiment `fast-gshare` makes of its scalers' runs: the answers are made by hand here."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tests.lab.hand import HandLab

from dovetail.lab.experiments import scaling
from dovetail.lab.experiments.scaling import OURS, SCALERS, Job, play
from dovetail.lab.experiments.scaling_traces import Load, bound_gpu_s, fourteen_stages, genai, has_gpu, worldcup
from dovetail.lab.experiments.scaling_world import Run, ScalingWorld
from dovetail.units import MS, SECOND


def made(**given: Any) -> Run:
    usual: dict[str, Any] = {
        "requests": 1000, "in_time": 0.99, "p50_ms": 20.0, "p95_ms": 60.0, "gpu_s": 10.0, "device_s": 20.0,
        "gpus": 0.2, "most_gpus": 0.3, "most_devices": 1, "changes": 5, "refused": 0, "usage": ((0.0, 0.1),),
        "latencies": ((1.0, 20.0),),
    }  # fmt: skip
    return Run(**{**usual, **given})


class DataLab(HandLab):
    """With a folder of measurements."""

    def __init__(self, answer: Any, data: Path) -> None:
        super().__init__((1, 2), answer)
        self._data = data


def write(data: Path) -> None:
    for name in ("rps", "stress"):
        (data / "has_gpu").mkdir(parents=True, exist_ok=True)
        (data / "has_gpu" / f"{name}.json").write_text(json.dumps({"step": "5s", "counts": [5, 15]}))
    rows = {
        "worldcup98/requests_per_minute.csv": [
            ["minute", "requests"], ["1998-06-15 00:00:00", 30], ["1998-06-15 00:01:00", 90],
        ],
        "alibaba_genai2026/qps.csv": [["request_type", "offset_s", "requests_per_s"], ["Generative Requests", 0, 0.5],
                                      ["Generative Requests", 40, 2.0]],
        "alibaba_genai2026/basemodel_load_ms.csv": [["load_ms"], [100], [300], [200]],
    }  # fmt: skip
    for name, lines in rows.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        with (data / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(lines)


def test_traces_are_read_and_compressed(tmp_path: Path) -> None:
    write(tmp_path)
    assert has_gpu(tmp_path / "has_gpu" / "rps.json").steps == ((5 * SECOND, 5.0), (5 * SECOND, 15.0))
    cup = worldcup(tmp_path / "worldcup98" / "requests_per_minute.csv", "1998-06-15", minute_ns=SECOND, peak_per_s=9)
    assert cup.steps == ((SECOND, 3.0), (SECOND, 9.0)) and cup.peak_per_s == 9
    with pytest.raises(ValueError, match="no day"):
        worldcup(tmp_path / "worldcup98" / "requests_per_minute.csv", "1999-01-01", minute_ns=1, peak_per_s=1)
    images = genai(tmp_path / "alibaba_genai2026" / "qps.csv", "Generative Requests", speed=4)
    assert images.steps[0] == (10 * SECOND, 0.5)
    stages = fourteen_stages()
    assert stages.duration_ns == 185 * SECOND and 109 < stages.peak_per_s < 110


def test_the_bound_is_the_cheapest_point_within_the_objective() -> None:
    """One of the largest model takes 24.779 ms of a whole V100 at the least."""
    world = ScalingWorld("regnet_y_128gf", 500 * MS, batches=(1, 2, 4))
    assert bound_gpu_s(world, 1000) == pytest.approx(24.779, rel=0.001)
    assert bound_gpu_s(ScalingWorld("regnet_y_128gf", 36 * MS, batches=(1,)), 1000) > 25, "where time is short"


def test_has_gpu_s_claims_hold_or_fail_with_what_was_measured(tmp_path: Path) -> None:
    write(tmp_path)
    lab = DataLab(lambda job: made(gpus=0.2 if "mobilenet" in job.world.model else 0.5, p95_ms=100.0), tmp_path)
    scaling._has_gpu_trace(lab)
    lab.expect("has_gpu.mobilenet.gpu", 0.2, holds=True)
    lab.expect("has_gpu.mobilenet.p95", 100.0, holds=True)
    lab.expect("has_gpu.stress.p95", 100.0, holds=True)
    lab.expect("has_gpu.stress.in_time", 99.0, holds=True)
    lab = DataLab(lambda job: made(gpus=0.3, p95_ms=160.0, in_time=0.9), tmp_path)
    scaling._has_gpu_trace(lab)
    assert [claim.id for claim in lab.claims if claim.holds] == []


def test_the_load_of_14_stages_needs_no_file() -> None:
    lab = HandLab((1, 2), lambda job: made(in_time=0.995, p95_ms=50.0))
    scaling._stages(lab)
    lab.expect("stages.violation", 0.5, holds=True)
    lab.expect("stages.p95", 50.0, holds=True)
    lab = HandLab((1,), lambda job: made(in_time=0.98, p95_ms=70.0))
    scaling._stages(lab)
    lab.expect("stages.violation", 2.0, holds=False)
    lab.expect("stages.p95", 70.0, holds=False)


def test_a_day_is_judged_against_the_bound_and_the_other_scalers(tmp_path: Path) -> None:
    write(tmp_path)

    def answer(job: Job) -> Run:
        bound = bound_gpu_s(job.world, 1000)
        times, hit = {OURS: (1.2, 0.99), "none": (4.0, 1.0), "HAS-GPU": (2.0, 0.95)}.get(job.scaler, (1.5, 0.9))
        return made(gpu_s=times * bound, in_time=hit)

    lab = DataLab(answer, tmp_path)
    scaling._days(lab)
    for ident in ("worldcup98", "genai"):
        lab.expect(f"{ident}.bound", 1.2, holds=True)
        lab.expect(f"{ident}.in_time", 99.0, holds=True)
        lab.expect(f"{ident}.pareto", 0, holds=True)
    assert all(name in lab.claimed("genai.bound").text for name in SCALERS)
    worse = DataLab(lambda job: made(gpu_s=1.4 * bound_gpu_s(job.world, 1000), in_time=0.97), tmp_path)
    scaling._days(worse)
    worse.expect("genai.bound", 1.4, holds=False)
    worse.expect("genai.in_time", 97.0, holds=False)
    worse.expect("genai.pareto", len(SCALERS) - 1, holds=False)


def test_without_data_a_claim_says_so() -> None:
    lab = HandLab((1,), lambda job: made())
    scaling.scaling(lab)
    left = {left.id: left.reason for left in lab.left_out}
    assert left.keys() == {"has_gpu", "worldcup98", "genai"} and all("DOVETAIL_DATA" in r for r in left.values())
    assert {claim.id for claim in lab.claims} == {"stages.violation", "stages.p95"}


@pytest.mark.parametrize("scaler", SCALERS)
def test_every_scaler_serves_a_short_load_and_says_what_it_reserved(scaler: str) -> None:
    load = Load("short", ((4 * SECOND, 10.0), (4 * SECOND, 40.0), (2 * SECOND, 5.0)))
    world = ScalingWorld("resnet50", 300 * MS, start_ns=SECOND)
    run = play(Job(world, load, scaler, 1, 10.0))
    assert run.requests > 150 and run.in_time > 0.5
    assert 0 < run.gpu_s < 10 * run.most_devices and run.changes > 0
    assert run.goodput_per_gpu_s > 0
