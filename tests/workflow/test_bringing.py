"""Declarations that bring models: apps of apps, what a stage loads, and models that cannot be batched."""

from __future__ import annotations

from pathlib import Path

import onnx as onnx_format
import pytest
from onnx import TensorProto, helper

from dovetail import App, onnx, stage, tensor, workflow
from dovetail.errors import DeclarationError
from dovetail.workflow.runners import StageFailed

ITEM = tensor("float32", 3)
LOADS: list[str] = []


def make_model() -> dict[str, float]:
    LOADS.append("once")
    return {"factor": 3.0}


@stage(load=make_model)
def scale(model, items):
    return [item * model["factor"] for item in items]


@stage
def plain(items):
    return items


@workflow(slo="1s")
def scaled(x: ITEM):
    return scale(x)


@workflow(slo="1s")
def same(x: ITEM):
    return plain(x)


def test_what_a_stage_loads_is_its_first_argument_and_is_loaded_once():
    LOADS.clear()
    assert scaled.local(x=2.0)["output"] == 6.0
    assert scaled.local(x=4.0)["output"] == 12.0
    assert LOADS == ["once"]


def test_a_load_counts_for_the_identity_of_a_stage_and_not_for_its_arguments():
    def other() -> None: ...

    @stage(load=other, name="scale")
    def twin(model, items):
        return [item * model["factor"] for item in items]

    assert twin.spec.model != scale.spec.model
    assert scale.arity == (1, 1)
    with pytest.raises(DeclarationError, match="takes no argument after what load"):

        @stage(load=make_model)
        def nothing(model):
            return []

    with pytest.raises(DeclarationError, match="must be a function without arguments"):
        stage(load=7, name="seven")(lambda items: items)


def test_a_load_that_fails_says_so():
    @stage(load=lambda: 1 // 0)
    def broken(model, items):
        return items

    @workflow(slo="1s")
    def breaks(x: ITEM):
        return broken(x)

    with pytest.raises(StageFailed, match="stage 'broken': what it needs could not be loaded: ZeroDivisionError"):
        breaks.local(x=1.0)


def test_an_app_stands_for_its_workflows():
    both = App(App(scaled), App(same, scaled), name="both")
    assert list(both.workflows) == ["scaled", "same"]
    assert sorted(both.stages) == ["plain", "scale"]
    with pytest.raises(DeclarationError, match="takes workflows"):
        App(scaled, "same")

    @workflow(slo="1s", name="same")
    def another(x: ITEM):
        return plain(x)

    with pytest.raises(DeclarationError, match="two workflows are named 'same'"):
        App(App(same), App(another))


@pytest.mark.parametrize("where", ["input", "output"])
def test_a_model_without_a_batch_axis_is_refused_when_it_is_declared(tmp_path: Path, where):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [] if where == "input" else ["batch", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    node = helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), ir_version=8)
    path = tmp_path / "total.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(DeclarationError, match="has no batch axis"):
        onnx(path)
    assert onnx_format.load(path)


def test_an_output_without_a_known_shape_is_no_single_number(tmp_path: Path):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y]), ir_version=8)
    path = tmp_path / "negative.onnx"
    path.write_bytes(model.SerializeToString())
    assert onnx(path).name == "negative"
