"""Torch modules as kernels: the same results, by groups of operators, and through a real device. Needs torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

from dovetail.errors import ModelError  # noqa: E402
from dovetail.lab.experiments import fikit_models  # noqa: E402
from dovetail.lab.gate.client import Gate, GateClient, GatePolicy  # noqa: E402
from dovetail.lab.gate.source import Source  # noqa: E402
from dovetail.live.kernels.segment_run import Bound  # noqa: E402
from dovetail.live.kernels.torch_kernels import TorchModel, cut, group  # noqa: E402

pytestmark = [pytest.mark.cpu, pytest.mark.torch]


class TwoResults(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        z = x * y
        return z.sum(1), (z + 1, y)


class Choice(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


def fine(module: Any, shapes: dict[str, tuple[int, ...]]) -> TorchModel:
    """Every operator a kernel, or nearly so."""
    return cut(module, [shapes], segments=1 << 30, target_ns=1, shortest_ns=1)[0]


def run(kernels: Bound) -> None:
    for kernel in kernels.begin():
        kernel()


@pytest.mark.parametrize("name", fikit_models.TORCH_MODELS)
@pytest.mark.parametrize("batch", [1, 3])
def test_models_give_the_same_in_kernels_as_whole(name: str, batch: int) -> None:
    module = getattr(fikit_models, name)()
    shapes = fikit_models.TORCH_MODELS[name].shapes(batch)
    traced = fine(getattr(fikit_models, name)(), shapes)
    buffers: dict[str, np.ndarray] = {}

    def allocate(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        buffers[name] = np.empty(shape, dtype)
        return buffers[name]

    kernels = traced.bind(shapes, allocate)
    assert len(kernels.idents) > 20
    assert len(set(kernels.idents)) == len(kernels.idents)
    x = np.random.default_rng(4).standard_normal(shapes["input"]).astype(np.float32)
    with torch.no_grad():
        want = module(torch.from_numpy(x)).numpy()
    for _ in range(2):
        buffers["input"][...] = x
        run(kernels)
        np.testing.assert_allclose(buffers["output_0"], want, rtol=1e-5, atol=1e-5)


def test_several_inputs_and_nested_outputs_come_in_order() -> None:
    shapes = {"x": (2, 3), "y": (2, 3)}
    buffers: dict[str, np.ndarray] = {}

    def allocate(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return buffers.setdefault(name, np.empty(shape, dtype))

    kernels = fine(TwoResults(), shapes).bind(shapes, allocate)
    buffers["x"][...], buffers["y"][...] = 2, 3
    run(kernels)
    assert buffers["output_0"].tolist() == [18, 18]
    assert (buffers["output_1"] == 7).all() and (buffers["output_2"] == 3).all()


def test_a_run_given_up_half_way_does_not_disturb_the_next() -> None:
    shapes = {"input": (1, 64, 256)}
    kernels = fine(fikit_models.small_transformer(), shapes).bind(shapes)
    for kernel in list(kernels.begin())[:5]:
        kernel()
    run(kernels)


def test_what_cannot_be_traced_is_refused_with_its_reason() -> None:
    with pytest.raises(ModelError, match=r"cannot trace Choice: .*control flow"):
        fine(Choice(), {"x": (1,)})


@given(st.lists(st.integers(0, 500), min_size=1, max_size=50), st.integers(1, 1000))
def test_groups_keep_all_operators_in_order_and_only_the_last_may_be_short(lengths: list[int], least: int) -> None:
    groups = group(dict(enumerate(lengths)), least)
    assert [node for nodes in groups for node in nodes] == list(range(len(lengths)))
    totals = [sum(lengths[n] for n in nodes) for nodes in groups]
    assert all(total >= least for total in totals[:-1])
    assert len(groups) == 1 or 2 * totals[-1] >= least


@given(st.lists(st.integers(0, 500), min_size=1, max_size=50), st.integers(1, 1000), st.integers(1, 1000))
def test_a_group_is_longer_than_the_longest_only_if_it_would_be_less_than_half_as_long_as_it_should(
    lengths: list[int], least: int, longest: int
) -> None:
    groups = group(dict(enumerate(lengths)), least, longest)
    assert [node for nodes in groups for node in nodes] == list(range(len(lengths)))
    for nodes in groups[:-1]:
        assert 2 * sum(lengths[n] for n in nodes) >= least
        assert 2 * sum(lengths[n] for n in nodes[:-1]) < least or sum(lengths[n] for n in nodes) <= longest


def test_a_torch_model_runs_on_a_device_beside_another() -> None:
    source = Source("torch", "dovetail.lab.experiments.fikit_models:small_transformer", target_ns=1, shortest_ns=1)
    x = np.random.default_rng(5).standard_normal((1, 64, 256)).astype(np.float32)
    with torch.no_grad():
        want = fikit_models.small_transformer()(torch.from_numpy(x)).numpy()
    with Gate(GatePolicy("slices")) as gate, GateClient(gate.connect()) as client:
        programs = [client.open(f"task {i}", source, {"input": x.shape}) for i in range(2)]
        for program in programs:
            program.inputs["input"][...] = x
        tasks = [client.begin(p, priority=1, launch=len(p.kernels)) for p in programs]
        for task in tasks:
            task.wait()
        for program in programs:
            np.testing.assert_allclose(program.outputs["output_0"], want, rtol=1e-5, atol=1e-5)
        assert len({r.task for r in gate.report()}) == 2
