"""What the profiler feeds each stage, and what it says where it has nothing to feed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from dovetail import App, stage, tensor, workflow
from dovetail import onnx as onnx_stage
from dovetail.errors import ProfileError
from dovetail.profile.samples import MOST_ITEMS, Items, collect
from dovetail.workflow.stage import Stage

ANY = tensor("float32", -1)
FIXED = tensor("float32", 4)


@stage
def double(xs: list[Any]) -> list[Any]:
    return [2 * x for x in xs]


@stage
def pieces(xs: list[Any]) -> list[Any]:
    return [[x[:n] for n in range(1, len(x) + 1)] for x in xs]


@stage
def is_large(xs: list[Any]) -> list[bool]:
    return [bool(x.max() > 5) for x in xs]


def relu(folder: Path, *shape: int | str, kind: int = TensorProto.FLOAT) -> Stage:
    """A model of one operator; its first axis is the batch."""
    x, y = (helper.make_tensor_value_info(name, kind, ["n", *shape]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return onnx_stage(folder / "m.onnx", name="model", batch=(1, 2))


def test_each_stage_is_fed_what_reaches_it() -> None:
    @workflow(slo="1s", sample=lambda: {"x": np.ones(3, np.float32)})
    def wf(x: ANY):
        return double.map(pieces(double(x)))

    items, why_not = collect(App(wf), ["double", "pieces"])
    assert why_not == {}
    assert items["pieces"].text == "float32[3]"
    # The first call and the three elements of the mapped one.
    assert items["double"].text == "float32[3] | float32[1] | float32[2]"
    assert len(items["double"].rows) == 4


def test_of_many_items_a_few_are_taken_evenly() -> None:
    @workflow(slo="1s", sample=lambda: {"x": np.ones(80, np.float32)})
    def wf(x: ANY):
        return double.map(pieces(x))

    items, _ = collect(App(wf), ["double"])
    assert [len(row[0]) for row in items["double"].rows] == list(range(1, 81, 80 // MOST_ITEMS))


@given(st.integers(1, 9), st.integers(1, 40))
def test_batches_use_every_item_equally_often(count: int, size: int) -> None:
    items = Items([(np.zeros(n), n) for n in range(count)])
    batches = items.batches(size)
    assert all(len(column) == size for columns in batches for column in columns)
    used = Counter(n for _, numbers in batches for n in numbers)
    assert len(used) == count and len(set(used.values())) == 1


def test_items_that_are_alike_need_one_batch() -> None:
    (columns,) = Items([("abc", 1), ("def", 2), ("ghi", 3)]).batches(2)
    assert columns == [["abc", "def"], [1, 2]]


def test_items_are_described_by_type_and_size() -> None:
    row = (np.zeros((2, 3), np.uint8), "text", [1, 2], 7)
    assert Items([row, row]).text == "uint8[2,3], str[4], list[2], int"


def test_random_tensors_stand_in_for_a_sample_where_all_is_fixed() -> None:
    @workflow(slo="1s")
    def wf(x: FIXED):
        return double(x)

    first, _ = collect(App(wf), ["double"])
    again, _ = collect(App(wf), ["double"])
    assert first["double"].text == "float32[4]"
    np.testing.assert_array_equal(first["double"].rows[0][0], again["double"].rows[0][0])


def test_an_open_dimension_needs_a_sample() -> None:
    @workflow(slo="1s")
    def wf(x: ANY):
        return double(x)

    items, why_not = collect(App(wf), ["double"])
    assert items == {}
    assert (
        "no sample and its input 'x' (FP32 [-1]) cannot be made up; add sample=lambda: {'x': ...}"
        in why_not["double"]
    )


def test_a_step_whose_condition_is_false_is_fed_with_what_it_would_have_been_given() -> None:
    @stage
    def negate(xs: list[Any]) -> list[Any]:
        return [-x for x in xs]

    @workflow(slo="1s", sample=lambda: {"x": np.ones(2, np.float32)})
    def wf(x: ANY):
        return double(negate.when(is_large(x), otherwise=x)(x))

    items, why_not = collect(App(wf), ["negate"])
    assert why_not == {}
    assert items["negate"].text == "float32[2]"
    np.testing.assert_array_equal(items["double"].rows, [(np.ones(2),)])  # from the true run, and only once


def test_stages_that_the_sample_does_not_reach_are_named_with_the_reason() -> None:
    @stage
    def negate(xs: list[Any]) -> list[Any]:
        raise ValueError("only large ones")

    @workflow(slo="1s", sample=lambda: {"x": np.zeros(0, np.float32), "y": np.ones(1, np.float32)})
    def wf(x: ANY, y: ANY):
        return {"a": double.map(pieces(x)), "b": negate.when(is_large(y), otherwise=y)(y)}

    items, why_not = collect(App(wf), ["double", "negate"])
    assert set(items) == {"pieces", "is_large"}
    assert (
        "sample of workflow 'wf' does not reach it: its list is empty; give a sample that does" in why_not["double"]
    )
    assert "its condition is false" in why_not["negate"]


def test_a_stage_that_another_workflow_reaches_is_fed_from_there() -> None:
    @workflow(slo="1s", sample=lambda: {"x": np.zeros(0, np.float32)})
    def empty(x: ANY):
        return double.map(pieces(x))

    @workflow(slo="1s", sample=lambda: {"x": np.zeros(2, np.float32)})
    def full(x: ANY):
        return double(x)

    items, why_not = collect(App(empty, full), ["double"])
    assert items["double"].text == "float32[2]" and why_not == {}


def test_workflows_without_a_stage_that_is_asked_for_are_not_run() -> None:
    def never() -> dict[str, Any]:
        raise AssertionError("not asked for")

    @workflow(slo="1s", sample=never)
    def wf(x: ANY):
        return double(x)

    assert collect(App(wf), ["other"]) == ({}, {})


@pytest.mark.cpu
def test_a_model_that_is_not_reached_is_fed_from_its_file(tmp_path: Path) -> None:
    model = relu(tmp_path, 3, 2, kind=TensorProto.UINT8)

    @workflow(slo="1s", sample=lambda: {"x": np.zeros((0, 3, 2), np.uint8)})
    def wf(x: tensor("uint8", -1, 3, 2)):
        return model.map(x)

    items, why_not = collect(App(wf), ["model"])
    assert items["model"].text == "uint8[3,2]" and why_not == {}


@pytest.mark.cpu
def test_a_model_of_open_shape_cannot_be_fed_from_its_file(tmp_path: Path) -> None:
    model = relu(tmp_path, "width")

    @workflow(slo="1s")
    def wf(x: ANY):
        return model(x)

    items, why_not = collect(App(wf), ["model"])
    assert items == {} and "add sample=" in why_not["model"]


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (lambda: 1 / 0, "the sample of workflow 'wf' raised ZeroDivisionError: division by zero"),
        (lambda: {"y": 1}, r"gives \['y'\]; it must give a dict with the inputs \['x'\]"),
        (lambda: [1], r"gives list; it must give a dict"),
        (lambda: {"x": "text"}, "the sample of workflow 'wf' failed: stage 'is_large' raised .*; correct the stage"),
    ],
)
def test_a_sample_that_cannot_be_run_is_explained(sample: Any, said: str) -> None:
    @workflow(slo="1s", sample=sample)
    def wf(x: ANY):
        return is_large(x)

    with pytest.raises(ProfileError, match=said):
        collect(App(wf), ["is_large"])


def test_a_stage_that_cannot_take_random_tensors_asks_for_a_sample() -> None:
    @stage
    def picky(xs: list[Any]) -> list[Any]:
        raise ValueError("not a face")

    @workflow(slo="1s")
    def wf(x: FIXED):
        return picky(x)

    with pytest.raises(
        ProfileError, match=r"run on random tensors of workflow 'wf' failed: .*not a face.*add sample="
    ):
        collect(App(wf), ["picky"])
