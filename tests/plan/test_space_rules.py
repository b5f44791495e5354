"""Configurations, rule by rule: powers of two and all cores, one core where none are counted, the ablations."""

from __future__ import annotations

import pytest

from dovetail.plan.space import Space, configs_for
from dovetail.state import Config, WorkerSpec
from dovetail.workflow.graph import StageSpec

MODEL = StageSpec("read", "onnx", (2, 4))
PYTHON = StageSpec("join", "python", (1, 8))


@pytest.mark.parametrize(
    ("cores", "shares"),
    [
        (0, {1: 100}),
        (1, {1: 100}),
        (2, {1: 50, 2: 100}),
        (3, {1: 33, 2: 66, 3: 100}),
        (6, {1: 16, 2: 33, 4: 66, 6: 100}),
        (8, {1: 12, 2: 25, 4: 50, 8: 100}),
    ],
)
def test_on_a_processor_powers_of_two_and_all_of_the_cores(cores: int, shares: dict[int, int]) -> None:
    found = configs_for(MODEL, WorkerSpec("cpu", "cpu", ("onnx",), cores=cores), Space())
    assert found == [Config(b, c, share) for b in (2, 4) for c, share in shares.items()]


def test_without_batching_the_smallest_and_without_sharing_the_largest() -> None:
    space = Space(shares_pct=(20, 40, 80), cpus=(1, 2))
    gpu = WorkerSpec("gpu", "v100", ("onnx",))
    assert configs_for(MODEL, gpu, Space((20, 40, 80), (1, 2), batching=False)) == [
        Config(2, c, s) for c in (1, 2) for s in (20, 40, 80)
    ]
    assert configs_for(MODEL, gpu, Space((20, 40, 80), (1, 2), sharing=False)) == [
        Config(b, c, 80) for b in (2, 4) for c in (1, 2)
    ]
    assert len(configs_for(MODEL, gpu, space)) == 12, "cores are not counted, so any number may be taken"
    host = WorkerSpec("host", "cpu", ("python",), cores=4)
    assert configs_for(PYTHON, host, Space(batching=False)) == [Config(1, 1, 100)]


def test_no_more_cores_are_taken_than_there_are() -> None:
    gpu = WorkerSpec("gpu", "v100", ("onnx",), cores=2)
    assert {c.cpus for c in configs_for(MODEL, gpu, Space(cpus=(1, 2, 3)))} == {1, 2}


def test_by_default_shares_are_tenths_and_one_core_is_taken() -> None:
    found = configs_for(MODEL, WorkerSpec("gpu", "v100", ("onnx",)), Space())
    assert [c.share_pct for c in found if c.batch == 2] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert {c.cpus for c in found} == {1}
