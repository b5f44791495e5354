"""Multiply-accumulates counted from the file: by hand, and against what the onnx package infers of shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx as onnx_format
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, shape_inference
from tests.onnx_models import double, slow

from dovetail import onnx
from dovetail.workflow.onnxfile import read_onnx
from dovetail.workflow.onnxnodes import Operator, read_operators
from dovetail.workflow.onnxshapes import UNKNOWN, Value, follow
from dovetail.workflow.onnxwork import IMAGE_SIDE, LINE_ASPECT, STEPS, count_macs

LIGHT = Path(onnx_format.__file__).parent / "backend" / "test" / "data" / "light"
#: In thousand millions, for a picture of 224 × 224, as torchvision's table of models states them (under "GFLOPS").
PUBLISHED = {"resnet50": 4.09, "vgg19": 19.63, "squeezenet": 0.35, "densenet121": 2.83}


def save(path: Path, nodes: list, shape: list, weights: dict[str, np.ndarray]) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx_format.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def macs(path: Path) -> int:
    return count_macs(path, read_onnx(path, "stage").inputs)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize("name", PUBLISHED)
def test_well_known_networks_have_the_published_number(name: str) -> None:
    assert macs(LIGHT / f"light_{name}.onnx") / 1e9 == pytest.approx(PUBLISHED[name], abs=0.005)


def test_a_convolution_counts_its_kernel_at_every_place_of_the_result(tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1], group=2)
    path = save(tmp_path / "c.onnx", [node], ["batch", 4, 10, 7], {"w": zeros(6, 2, 3, 3)})
    assert macs(path) == 6 * 5 * 4 * (2 * 3 * 3)


@pytest.mark.parametrize(("ceil_mode", "side"), [(0, 2), (1, 3)])
def test_a_pool_rounds_as_it_says(tmp_path: Path, ceil_mode: int, side: int) -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=ceil_mode),
        helper.make_node("Conv", ["p", "w"], ["y"]),
    ]
    assert macs(save(tmp_path / "p.onnx", nodes, ["batch", 3, 5, 5], {"w": zeros(1, 3, 1, 1)})) == side * side * 3


def test_a_transposed_convolution_counts_its_kernel_at_every_place_of_the_input(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w"], ["up"], strides=[2, 2]),
        helper.make_node("Conv", ["up", "v"], ["y"]),
    ]
    path = save(tmp_path / "t.onnx", nodes, ["batch", 4, 5, 5], {"w": zeros(4, 3, 2, 2), "v": zeros(1, 3, 1, 1)})
    assert macs(path) == 4 * 5 * 5 * (3 * 2 * 2) + 10 * 10 * 3


def test_products_and_layers_with_memory_are_counted(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Transpose", ["m"], ["t"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["t", "i", "r"], ["all", "last"], hidden_size=3),
        helper.make_node("Squeeze", ["last", "zero"], ["s"]),
        helper.make_node("Gemm", ["s", "g"], ["y"], transB=1),
    ]
    weights = {"w": zeros(6, 5), "i": zeros(1, 12, 5), "r": zeros(1, 12, 3), "g": zeros(7, 3), "zero": np.array([0])}
    path = save(tmp_path / "p.onnx", nodes, ["batch", 10, 6], weights)
    assert macs(path) == 10 * 6 * 5 + 10 * (12 * 5 + 12 * 3) + 3 * 7


def test_shapes_that_the_file_computes_are_followed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sides"]),
        helper.make_node("Slice", ["sides", "from", "to"], ["first"]),
        helper.make_node("Concat", ["first", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["y"]),
    ]
    weights = {"from": np.array([0]), "to": np.array([1]), "rest": np.array([-1, 8]), "w": zeros(8, 2)}
    assert macs(save(tmp_path / "s.onnx", nodes, ["batch", 4, 6], weights)) == 3 * 8 * 2


@pytest.mark.parametrize(
    ("shape", "rows", "columns"),
    [
        (["batch", 3, "h", "w"], IMAGE_SIDE, IMAGE_SIDE),
        (["batch", 3, 48, "w"], 48, 48 * LINE_ASPECT),
        (["batch", 3, 320, "w"], 320, IMAGE_SIDE),
        (["batch", 3, 32, 32], 32, 32),
    ],
)
def test_open_sides_of_a_picture_are_taken_for_granted(tmp_path: Path, shape: list, rows: int, columns: int) -> None:
    path = save(tmp_path / "o.onnx", [helper.make_node("Conv", ["x", "w"], ["y"])], shape, {"w": zeros(2, 3, 1, 1)})
    assert macs(path) == 2 * rows * columns * 3


def test_any_other_open_side_is_a_short_text(tmp_path: Path) -> None:
    path = save(
        tmp_path / "s.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], ["batch", "n", 4], {"w": zeros(4, 2)}
    )
    assert macs(path) == STEPS * 4 * 2


def test_what_cannot_be_followed_is_unknown(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["where"]), helper.make_node("MatMul", ["where", "w"], ["y"])]
    assert macs(save(tmp_path / "n.onnx", nodes, ["batch", 4], {"w": zeros(4, 2)})) == 0
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Einsum", ["m"], ["y"], equation="ij->j"),
    ]
    assert macs(save(tmp_path / "e.onnx", nodes, ["batch", 4], {"w": zeros(4, 2)})) == 0, "a part says little"
    assert macs(double(tmp_path / "d.onnx")) == 0, "nothing is multiplied with a matrix"
    broken = tmp_path / "b.onnx"
    broken.write_bytes(b"\x3a\xff")
    assert count_macs(broken, {}) == 0
    assert count_macs(tmp_path / "none.onnx", {}) == 0


def test_a_stage_knows_its_work(tmp_path: Path) -> None:
    assert onnx(slow(tmp_path / "s.onnx", products=2, side=8)).spec.macs == 2 * 8**3


@pytest.mark.parametrize("path", sorted(LIGHT.glob("light_*.onnx")), ids=lambda p: p.stem)
def test_shapes_are_those_that_the_onnx_package_infers(path: Path) -> None:
    model = shape_inference.infer_shapes(onnx_format.load(path), data_prop=True)
    told = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in model.graph.value_info}
    operators = read_operators(path)
    values = {name: Value(c.shape, c.values) for name, c in operators.constants.items()}
    values |= {name: Value(spec.shape) for name, spec in read_onnx(path, "s").inputs.items()}
    compared = 0
    for node in operators.nodes:
        found = follow(node, [values.get(name, UNKNOWN) for name in node.reads])
        values.update(zip(node.writes, found, strict=False))
        for name, value in zip(node.writes, found, strict=False):
            if value.shape is not None and told.get(name):
                assert value.shape == told[name], (node.op, name)
                compared += 1
    assert compared > 20


OPS = (
    "Conv", "MaxPool", "MatMul", "Gemm", "Concat", "Reshape", "Slice", "Squeeze", "Unsqueeze", "Gather", "Resize",
    "Pad", "Split", "LSTM", "Add", "Cast", "Expand", "ReduceMean", "Transpose", "ConvTranspose", "Shape", "NoSuch",
)  # fmt: skip


@given(
    op=st.sampled_from(OPS),
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=5).map(tuple), max_size=4),
    numbers=st.lists(st.integers(-3, 5), max_size=4).map(tuple),
)
def test_inputs_that_do_not_fit_give_an_unknown_shape_and_no_error(
    op: str, shapes: list[tuple[int, ...]], numbers: tuple[int, ...]
) -> None:
    lists = {name: numbers for name in ("pads", "strides", "perm", "scales") if numbers}
    node = Operator(op, (), ("y", "z"), {"axis": numbers[0]} if numbers else {}, lists, {})
    inputs = [Value(shape, numbers) for shape in shapes]
    assert all(isinstance(value, Value) for value in follow(node, inputs))
