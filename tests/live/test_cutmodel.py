"""Models cut into kernels: the same results as whole, and the same cut for whoever knows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import onnx_models

from dovetail import onnx
from dovetail.live.kernels.batch_run import BatchRun
from dovetail.live.kernels.cut_model import STEP_COST, CutModel, merge, smallest_step
from dovetail.profile.kernels import Cut, sequence_model
from dovetail.workflow.runners import OnnxRunner
from examples import weights


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.integers(1, 300))
def test_merged_segments_are_all_of_them_in_order_and_none_is_short(lengths: list[int], shortest: int) -> None:
    spans = merge(lengths, shortest)
    assert [i for first, end in spans for i in range(first, end)] == list(range(len(lengths)))
    assert len(spans) == 1 or all(sum(lengths[first:end]) >= shortest for first, end in spans)


def test_a_batch_is_divided_where_that_costs_next_to_nothing() -> None:
    assert smallest_step([{1: 10, 2: 20, 8: 80}]) == 1
    assert smallest_step([{1: 100, 2: 101, 8: 110}]) == 8
    assert smallest_step([{1: 130, 2: round(200 * STEP_COST) - 1, 8: 800}]) == 2
    assert smallest_step([{1: 10, 8: 80}, {1: 10, 8: 80}, {1: 30, 8: 80}]) == 1, "one bad round decides nothing"


def ready(path: Path, batch: tuple[int, ...] = (1, 2, 4), **options: Any) -> CutModel:
    model = CutModel(onnx(path, name="made", batch=batch, **options).spec)
    if model.wants is not None:
        model.make_ready()
    return model


def carry_out(model: CutModel, columns: list[list[Any]]) -> tuple[list[Any], BatchRun]:
    run = model.plan(columns)
    if model.saw(run.shapes[0]):
        model.make_ready()
    for kernel in run.kernels:
        kernel()
    return run.values(), run


def assert_same(got: list[Any], want: list[Any]) -> None:
    """Steps of a batch may add up in another order than the whole."""
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_batch_in_parts_gives_what_it_gives_at_once(tmp_path: Path, at_once: int) -> None:
    model = CutModel(onnx(onnx_models.double(tmp_path / "made.onnx"), name="made", batch=(1, 8)).spec)
    columns = [[np.full(3, i, np.float32) for i in range(5)]]
    whole, parts = model.plan(columns), model.plan(columns, at_once=at_once)
    assert parts.together_bytes == at_once * 3 * 4
    assert max(shape[0][0] for shape in parts.shapes) == at_once
    for run in (whole, parts):
        for kernel in run.kernels:
            kernel()
    assert_same(parts.values(), whole.values())


REAL = {
    "nudity": (224, 224, 3),
    "page_way": (3, 224, 224),
    "text_detector": (3, 96, 128),
    "tiny_reader": (3, 48, 160),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", REAL)
def test_results_are_those_of_the_whole_model(name: str) -> None:
    model = ready(getattr(weights, name)())
    whole = OnnxRunner(model.spec)
    chance = np.random.default_rng(5)
    for size in (1, 3, 4, 3):
        columns = [[chance.random(REAL[name]).astype(np.float32) for _ in range(size)]]
        got, run = carry_out(model, columns)
        assert_same(got, whole.run(columns))
    assert run.name, "the second time at a shape it is known"
    assert len(run.idents) == len(run.kernels)


@pytest.mark.cpu
def test_items_of_unequal_shapes_are_run_in_groups_and_padded_ones_together() -> None:
    path = weights.text_detector()
    for options in ({}, {"pad": 0.0}):
        model = ready(path, **options)
        whole = OnnxRunner(model.spec)
        chance = np.random.default_rng(5)
        columns = [[chance.random((3, 192, width)).astype(np.float32) for width in (192, 256, 192)]]
        for _ in range(3):
            got, run = carry_out(model, columns)
            assert_same(got, whole.run(columns))
        assert len(run.kernels) > 1


@pytest.mark.cpu
def test_two_batches_of_one_shape_at_once_do_not_touch_each_other(tmp_path: Path) -> None:
    model = ready(onnx_models.slow(tmp_path / "long.onnx", products=16, side=512))
    runs = [model.plan([[np.full(3, value, np.float32)] * 2]) for value in (1, 2)]
    assert len(runs[0].kernels) > 1
    for kernels in zip(runs[0].kernels, runs[1].kernels, strict=True):
        for kernel in kernels:
            kernel()
    for value, run in zip((1, 2), runs, strict=True):
        np.testing.assert_array_equal(run.values(), np.full((2, 3), value, np.float32))


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["nudity", "tiny_reader"])
def test_another_process_that_knows_the_cut_has_the_same_kernels(name: str) -> None:
    path, chance = getattr(weights, name)(), np.random.default_rng(5)
    columns = {
        size: [[chance.random(REAL[name]).astype(np.float32) for _ in range(size)]] for size in (1, 3, 4, 1, 3, 4)
    }
    runs: list[dict[int, BatchRun]] = []
    cut: Cut | None = None
    for _ in range(2):
        model = CutModel(onnx(path, name="made", batch=(1, 2, 4)).spec, cut)
        if model.wants is not None:
            model.make_ready()
        else:
            assert cut is None, "what the first batch has shown is remembered, too"
        for size in (1, 3, 4, 4):
            got, _ = carry_out(model, columns[size])
            assert_same(got, OnnxRunner(model.spec).run(columns[size]))
        runs.append({size: model.plan(columns[size]) for size in (1, 3, 4)})
        cut = model.cut()
        assert cut is not None and cut.at
    first, second = runs
    for size in first:
        assert first[size].name and first[size].name == second[size].name
        assert first[size].idents == second[size].idents


@pytest.mark.cpu
def test_cuts_of_other_places_have_other_names(tmp_path: Path) -> None:
    spec = onnx(onnx_models.slow(tmp_path / "long.onnx", products=16, side=512), name="made", batch=(1,)).spec
    names = set()
    for at, ends in (((4,), (1, 2)), ((4,), (2,)), ((5,), (1, 2)), ((4, 9), (1, 2, 3)), ((4, 9), (2, 3))):
        model = CutModel(spec, Cut(spec.model, ((1, 3),), 1, (at,), ((0, ((1, 3),), ends),)))
        model.make_ready()
        run = model.plan([[np.ones(3, np.float32)]])
        assert len(run.kernels) == len(ends)
        names.add(run.name)
    assert len(names) == 5
    assert {sequence_model(name) for name in names} == {spec.model[:16]}


@pytest.mark.cpu
@pytest.mark.parametrize("at", [((4000,),), ((2, 10_000),)])
def test_a_cut_that_does_not_fit_the_model_is_passed_over(at: tuple[tuple[int, ...], ...], tmp_path: Path) -> None:
    spec = onnx(onnx_models.slow(tmp_path / "long.onnx", products=16, side=512), name="made", batch=(1,)).spec
    model = CutModel(spec, Cut(spec.model, ((1, 3),), 1, at))
    model.make_ready()
    assert len(model.plan([[np.ones(3, np.float32)]]).kernels) > 1
    cut = model.cut()
    assert cut is not None and cut.at != at


@pytest.mark.cpu
def test_buffers_are_bounded_and_used_again(tmp_path: Path) -> None:
    model = ready(onnx_models.slow(tmp_path / "long.onnx", products=16, side=512))
    for size in (*range(1, 30), 1, 2, 3):
        carry_out(model, [[np.ones(3, np.float32)] * size])
    assert len(model._free) <= 12


@pytest.mark.cpu
def test_a_model_whose_shapes_depend_on_values_is_found_out_and_runs_whole(tmp_path: Path) -> None:
    model = CutModel(onnx(onnx_models.nonzero(tmp_path / "nonzero.onnx"), name="made", batch=(1,)).spec)
    model.make_ready()
    assert len(model.plan([[np.zeros(512, np.float32)]]).kernels) > 1
    for numbers in (0, 300, 7):
        x = (np.arange(512) < numbers).astype(np.float32)
        run = model.plan([[x]])
        try:
            for kernel in run.kernels:
                kernel()
        except Exception as error:
            run.rescue(error)
        np.testing.assert_array_equal(run.values()[0], x)
    assert model.whole_because
    assert len(model.plan([[x]]).kernels) == 1
