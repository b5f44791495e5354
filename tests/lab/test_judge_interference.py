"""What the experiment on interference makes of its results: each judgement on small tables, worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.lab.hand import HandLab

from dovetail.lab.experiments import interference_public as public
from dovetail.lab.experiments import interference_simulated as sim
from dovetail.lab.experiments.interference_data import STACKS
from dovetail.lab.experiments.interference_world import CHANGES
from dovetail.lab.rivals.interference import RIVALS


def with_data(lab: HandLab, folder: Path, *names: str) -> HandLab:
    """A lab that finds these files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    lab._data = folder
    return lab


def disb_file(folder: Path, name: str, victim: tuple[int, int], other: tuple[int, int]) -> None:
    rows = [
        {
            "clientName": client,
            "analyzers": [
                {"type": "basic", "avgTotalLatency(us)": us, "standAloneTotalLatency(us)": solo},
                {"type": "accuarcy"},
            ],
        }
        for client, (us, solo) in (("resnet152_be", victim), ("vgg19_rt", other))
    ]
    path = folder / "disb" / "results" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"results": rows}))


@pytest.mark.parametrize(("measured_us", "holds"), [(5_000, True), (15_000, False), (4_100, False)])
def test_partial_overlap_has_to_be_predicted(tmp_path: Path, measured_us: int, holds: bool) -> None:
    """Beside VGG all the time, ResNet takes three times as long; in A VGG is there for 3 ms of every 10 ms."""
    for stack in STACKS:
        disb_file(tmp_path, f"{stack}.B.json", (12_000, 4_000), (3_000, 3_000))
        disb_file(tmp_path, f"{stack}.A.json", (measured_us, 4_000), (3_000, 3_000))
    lab = HandLab((1,), lambda job: job)
    lab._data = tmp_path
    public.disb(lab)
    assert [claim.holds for claim in lab.claims] == [holds] * 3
    if holds:
        # Of 10 ms, 3 ms do 1 ms of work and 7 ms do 7: 4 ms of work take 5 ms.
        assert all(abs(claim.measured) < 2 for claim in lab.claims)
        assert all("+140 %" in claim.text for claim in lab.claims), "one factor says 12 ms"


def test_what_has_no_data_is_left_out() -> None:
    lab = HandLab((1,), lambda job: job)
    public.public(lab)
    assert not lab.claims
    assert {left.id for left in lab.left_out} == {"disb.trt", "disb.triton", "disb.tfs", "igniter", "pitot"}


def held(tmp_path: Path, errors: dict[str, float]) -> HandLab:
    errors = {public.NESTED: 2.9, **errors}
    lab = HandLab((1, 2), lambda job: [errors[job.rival] - 0.1, errors[job.rival] + 0.1])
    public.igniter(with_data(lab, tmp_path, "igniter/v100_mps_pairs.jsonl"))
    return lab


def test_errors_on_pairs_are_means_and_are_compared_with_the_better_rival(tmp_path: Path) -> None:
    lab = held(tmp_path, {"constant": 3.0, "gpulets": 2.5, "igniter": 1.0, "ours": 2.0})
    lab.expect("igniter.pairs", 2.0, holds=True)
    lab.expect("igniter.pair-of-models", 2.0, holds=True)
    lab.expect("igniter.model", 2.0, holds=True)
    for out in ("pairs", "pair-of-models", "model"):
        lab.expect(f"igniter.{out}.below", 0.8, holds=True)
        lab.expect(f"igniter.{out}.nested", 2.9, holds=out == "model")
    lab = held(tmp_path, {"constant": 2.0, "gpulets": 4.0, "igniter": 1.0, "ours": 3.1})
    for out in ("pairs", "pair-of-models", "model"):
        lab.expect(f"igniter.{out}", 3.1, holds=False)
        lab.expect(f"igniter.{out}.below", 1.55, holds=False)


@pytest.mark.parametrize(
    ("error", "coverage", "after", "holds"),
    [(8.0, 94.5, 9.0, True), (9.5, 93.5, 16.0, False), (9.1, 96.5, 15.1, False)],
)
def test_pitot_is_judged_by_error_and_by_coverage_on_both_sides(
    tmp_path: Path, error: float, coverage: float, after: float, holds: bool
) -> None:
    def answer(job: Any) -> dict[str, float]:
        if job.unseen:
            return {"0": 20.0, "10": after, "30": after, "100": after}
        return {"error": error, "constant": 19.0, "coverage": coverage}

    lab = HandLab((1, 2), answer)
    public.pitot(with_data(lab, tmp_path, "pitot/pairs.npz"))
    lab.expect("pitot.split", error, holds=holds)
    lab.expect("pitot.coverage", coverage - 95, holds=holds)
    for look in (10, 30, 100):
        lab.expect(f"pitot.unseen.{look}", after, holds=holds)


def course(before: float, after: float, begin: float = 1.0, hits: float = 0.95) -> sim.Course:
    """Errors that are even before the change and from it on; the first fifty after it are huge."""
    first = sim.CHANGE_AT - sim.FITTED
    came = [before] * first + [99.0] * sim.BACK + [after] * sim.LOOK
    within = [n % 100 < round(100 * hits) for n in range(len(came))]
    return sim.Course(came, [begin] * len(came), within)


Answer = Callable[[Any], Any]


def judged(ours: sim.Course, rival: sim.Course, *, misled: float = 1.0, eight: float = 1.0) -> HandLab:
    def answer(job: Any) -> Any:
        if isinstance(job, int):
            return course(misled, misled), course(1.0, 1.0)
        if job.world.at_once == 8:
            return course(eight, eight) if job.rival == "ours" else rival
        return ours if job.rival == "ours" else rival

    lab = HandLab((1, 2), answer)
    sim.simulated(lab)
    return lab


GOOD, POOR = course(2.0, 2.5), course(10.0, 12.0, 2.0)


def test_ours_is_judged_before_and_after_each_change() -> None:
    lab = judged(GOOD, POOR)
    lab.expect("sim.stationary.median", 2.0, holds=True)
    lab.expect("sim.stationary.p95", 2.0, holds=True)
    lab.expect("sim.stationary.begin", 0.5, holds=True)
    for change in ("new-model", "doubled-rate", "other-batch-mix", "more-at-once"):
        lab.expect(f"sim.{change}.back", 1.25, holds=True)
        lab.expect(f"sim.{change}.coarse", 12 / 2.5, holds=True)
    lab.expect("sim.eight.median", 1.0, holds=True)
    lab.expect("sim.wrong-prior", 1.0, holds=True)
    assert lab.expect("sim.coverage.before", 0.0, holds=True)
    assert lab.expect("sim.coverage.after", 0.0, holds=True)


def test_whoever_is_worse_does_not_hold() -> None:
    lab = judged(course(21.0, 35.0, 3.0, 0.9), course(10.0, 12.0, 2.0), misled=1.6, eight=25.0)
    for ident in ("sim.stationary.median", "sim.stationary.p95", "sim.stationary.begin", "sim.eight.median",
                  "sim.eight.p95", "sim.wrong-prior", "sim.coverage.before", "sim.coverage.after",
                  "sim.new-model.back", "sim.new-model.coarse"):  # fmt: skip
        assert not lab.claimed(ident).holds, ident


def test_every_rival_meets_every_change_and_boosting_on_one_seed() -> None:
    lab = judged(GOOD, POOR)
    asked = lab.asked["simulated device"]
    for name in RIVALS:
        seeds = 1 if name == "boosting" else 2
        assert sum(job.rival == name for job in asked) == seeds * len(CHANGES)
    quick = HandLab((1,), lambda job: (GOOD, GOOD) if isinstance(job, int) else GOOD, quick=True)
    sim.simulated(quick)
    assert not any(job.rival == "boosting" for job in quick.asked["simulated device"])
    assert [left.id for left in quick.left_out] == ["sim.boosting"]
