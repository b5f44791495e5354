"""Sequences made from the catalogue: like those that were measured, the same again for the same seed."""

from __future__ import annotations

import csv
import math
import statistics
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from scripts import fit_kernels

from dovetail.errors import CatalogueError
from dovetail.lab.kernels.hosts import AHEAD, HOST_BOUND, SYNC, launched
from dovetail.profile.catalogue import kernels
from dovetail.profile.kernels import kernel_name
from dovetail.sim.sequences import SETUP_NS, make_sequence

PROJECT = Path(__file__).resolve().parents[2]
DATA = PROJECT.parent / "shared" / "data"
absent = pytest.mark.skipif(
    not (DATA / "orion_kernels").is_dir(),
    reason="needs the measurements in ../shared/data, which are not part of the project",
)
MEASURED = {s.name: s.data for s in fit_kernels.SEQUENCES if s.data}


def times_us(name: str, seed: int) -> list[float]:
    return [(k.duration_ns - SETUP_NS) / 1000 for k in make_sequence(name, seed).kernels]


def run_length(kinds: list[str]) -> float:
    """Mean number of kernels of one kind in a row."""
    return statistics.fmean(len(list(run)) for _, run in groupby(kinds))


@pytest.mark.parametrize("name", kernels.sequences())
class TestMade:
    def test_it_is_what_the_catalogue_says(self, name: str) -> None:
        entry, made = kernels.sequence(name), make_sequence(name, 3)
        assert len(made.kernels) == entry.count
        for kind in entry.kinds:
            assert sum(k.kind == kind.kind for k in made.kernels) == kind.count
        assert sum(times_us(name, 3)) == pytest.approx(entry.total_us, rel=abs(entry.total_error_pct) / 100 + 0.06)
        assert all(1 <= k.share_pct <= 100 for k in made.kernels)
        names = len({kernel_name(k.ident) for k in made.kernels})
        assert names == pytest.approx(entry.names, abs=2)

    def test_the_seed_decides_on_the_order_and_nothing_else_does(self, name: str) -> None:
        assert make_sequence(name, 3) == make_sequence(name, 3)
        assert make_sequence(name, 3) != make_sequence(name, 4)
        assert sorted(times_us(name, 3)) == pytest.approx(sorted(times_us(name, 4)), abs=0.002)

    def test_identities_are_unique(self, name: str) -> None:
        made = make_sequence(name, 1)
        assert len({k.ident for k in made.kernels}) == len(made.kernels)


class TestCatalogue:
    def test_there_are_ten_models_and_more_each_with_the_error_of_its_fit(self) -> None:
        assert len(kernels.sequences()) >= 10
        for name in kernels.sequences():
            entry = kernels.sequence(name)
            assert entry.count == sum(kind.count for kind in entry.kinds)
            assert abs(entry.total_error_pct) < 60
            assert entry.distance < 0.25
        assert "orion" in kernels.source()

    def test_a_name_may_be_cut_short(self) -> None:
        assert kernels.sequence("bert").name == "bert-large"
        assert kernels.sequence("resnet50").name == "resnet50"

    def test_an_unknown_name_is_answered_with_the_nearest(self) -> None:
        with pytest.raises(CatalogueError, match="Did you mean 'resnet50'"):
            kernels.sequence("resnet5")

    def test_hosts_leave_gaps_as_measured(self) -> None:
        waits = [ns / 1000 for seed in range(5) for ns in launched("resnet101", seed, HOST_BOUND).host_ns]
        assert 0.3 < sum(w <= 5 for w in waits) / len(waits) < 0.4
        assert 20 < statistics.median(waits) < 105
        assert SYNC.depth == 0 < AHEAD.depth


@pytest.mark.data
@absent
class TestAgainstMeasurements:
    @pytest.mark.parametrize("name", MEASURED)
    def test_made_sequences_are_like_the_real_one(self, name: str) -> None:
        with (DATA / "orion_kernels" / MEASURED[name]).open(newline="") as file:
            rows = list(csv.DictReader(file))
        real = sorted(float(row["Duration"]) / 1000 for row in rows)
        for seed in (1, 2, 3):
            made = sorted(times_us(name, seed))
            assert len(made) == len(real)
            assert sum(made) == pytest.approx(sum(real), rel=0.06)
            # Kernel by kernel in the order of length. What is worst: kernels of unknown kind in training mode.
            off = sorted(abs(math.log(a / b)) for a, b in zip(made, real, strict=True))
            assert off[len(off) // 2] < math.log(1.3)
            assert off[len(off) * 9 // 10] < math.log(3)
            assert max(made) <= max(real) * 1.001
            kinds = [k.kind for k in make_sequence(name, seed).kernels]
            truth = run_length([fit_kernels.KINDS[row["Profile"]] for row in rows])
            assert run_length(list(kinds)) == pytest.approx(truth, rel=0.3)

    def test_the_committed_file_is_what_the_script_writes_byte_for_byte(self) -> None:
        assert fit_kernels.render(DATA, None) == fit_kernels.TARGET.read_text(encoding="utf-8")


def test_without_measurements_the_script_says_what_to_do(tmp_path: Path) -> None:
    before = fit_kernels.TARGET.read_bytes()
    script = [sys.executable, str(PROJECT / "scripts" / "fit_kernels.py"), "--data", str(tmp_path)]
    run = subprocess.run(script, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 2
    assert "--data DIR" in run.stderr
    assert "docs/kernels.md" in run.stderr
    assert fit_kernels.TARGET.read_bytes() == before
