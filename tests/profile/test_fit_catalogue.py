"""The committed curves are what comes out of the measurements. Left out where those are absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from scripts import fit_catalogue

from dovetail.profile import catalogue
from dovetail.profile.curve import fit

PROJECT = Path(__file__).resolve().parents[2]
DATA = PROJECT.parent / "shared" / "data"
absent = pytest.mark.skipif(
    not (DATA / "rapp").is_dir(), reason="needs the measurements in ../shared/data, which are not part of the project"
)


@pytest.fixture(scope="module")
def rapp() -> fit_catalogue.Times:
    return fit_catalogue.read_rapp(DATA)


@pytest.mark.data
@absent
@pytest.mark.parametrize("name", ["resnet50", "vgg19"])
class TestFits:
    def test_v100_curve_is_what_rapp_measured(self, name: str, rapp: fit_catalogue.Times) -> None:
        self.check(name, "v100", rapp)

    def test_a100_curve_is_what_parvagpu_measured(self, name: str) -> None:
        self.check(name, "a100", fit_catalogue.read_parvagpu(DATA))

    def check(self, name: str, device: str, times: fit_catalogue.Times) -> None:
        made, committed = fit(times[name]), catalogue.model(name)
        evidence = committed.evidence(device)
        assert committed.curve(device).batches == made.curve.batches
        assert committed.curve(device).floor_ns == pytest.approx(made.curve.floor_ns, abs=500)
        assert committed.curve(device).work_ns == pytest.approx(made.curve.work_ns, abs=500)
        assert evidence.fit_error_pct == pytest.approx(made.mape_pct, abs=0.05)
        assert evidence.fit_error_p90_pct == pytest.approx(made.p90_pct, abs=0.05)
        assert evidence.points == made.points


@pytest.mark.data
@absent
def test_the_committed_file_is_what_the_script_writes_byte_for_byte() -> None:
    committed = (fit_catalogue.CATALOGUE / "models.toml").read_text(encoding="utf-8")
    assert fit_catalogue.render(DATA) == committed


def test_without_measurements_the_script_says_what_to_do(tmp_path: Path) -> None:
    before = (fit_catalogue.CATALOGUE / "models.toml").read_bytes()
    script = [sys.executable, str(PROJECT / "scripts" / "fit_catalogue.py"), "--data", str(tmp_path)]
    run = subprocess.run(script, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 2
    assert "--data DIR" in run.stderr
    assert "docs/catalogue.md" in run.stderr
    assert (fit_catalogue.CATALOGUE / "models.toml").read_bytes() == before
