"""Measured kernel sequences: what is in the file is what runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.lab.kernels.hosts import AHEAD, SYNC
from dovetail.lab.kernels.recorded import recorded_sequence
from dovetail.sim.sequences import SETUP_NS

PROFILE = """Name,Profile,Memory_footprint,SM_usage,Duration
Conv,1,0,40,26688
BatchNorm,0,0,0,3000
nothing,0,0,1,0
Conv,-1,0,400,1500
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "net_b4.csv"
    path.write_text(PROFILE)
    return path


def test_kernels_are_those_of_the_file_in_its_order(profile: Path) -> None:
    made = recorded_sequence(profile, 1, AHEAD)
    assert made.name == "net_b4"
    assert [(k.kind, k.share_pct, k.duration_ns - SETUP_NS) for k in made.kernels] == [
        ("compute", 50, 26688),
        ("memory", 1, 3000),
        ("unknown", 100, 1500),
    ], "what takes no time is no kernel, and nobody wants more than the device"
    assert len({k.ident for k in made.kernels}) == 3


def test_the_seed_decides_on_the_host_alone(profile: Path) -> None:
    one, other = (recorded_sequence(profile, seed, SYNC) for seed in (1, 2))
    assert one == recorded_sequence(profile, 1, SYNC)
    assert one.host_ns != other.host_ns
    assert [k.duration_ns for k in one.kernels] == [k.duration_ns for k in other.kernels]
