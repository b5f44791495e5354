"""Which machine and which libraries: what a profile is keyed by."""

from __future__ import annotations

from importlib import metadata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.profile import machine
from dovetail.profile.machine import Identity, core_counts, cpu_name, this_machine, usable_cores

XEON = """processor\t: 0
cpu family\t: 6
model\t\t: 207
model name\t: Intel(R) Xeon(R)  Processor

processor\t: 1
model name\t: something else
"""


@given(st.integers(1, 1024))
def test_core_counts_rise_from_one_to_all_by_at_most_doubling(cores: int) -> None:
    counts = core_counts(cores)
    assert counts[0] == 1 and counts[-1] == cores
    assert all(a < b <= 2 * a for a, b in pairwise(counts))


def test_core_counts_of_six_are_the_powers_of_two_and_six() -> None:
    assert core_counts(6) == (1, 2, 4, 6)


def test_a_generic_processor_name_is_told_apart_by_family_and_model(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(XEON)
    assert cpu_name(tmp_path / "cpuinfo") == "Intel Xeon Processor (family 6 model 207)"


def test_without_proc_the_platform_names_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.processor", lambda: "arm")
    assert cpu_name(tmp_path / "none") == "arm"


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("5000 100000", 1), ("max 100000", 4), ("?", 4)])
def test_a_container_has_the_cores_of_its_quota(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path / "cpu.max") == cores


def test_this_machine_has_the_versions_that_are_installed() -> None:
    here = this_machine()
    assert here.cores >= 1 and here.cpu
    assert here.libraries["numpy"] == np.__version__
    assert set(here.libraries) == {"onnxruntime", "numpy", "python"}
    assert here.machine.startswith(here.cpu)


def test_a_library_that_another_package_brings_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine.metadata, "version", absent)
    assert this_machine().libraries["numpy"] == np.__version__


def test_one_core_is_singular() -> None:
    assert Identity("Xeon", 1, {}).machine == "Xeon, 1 core"
