"""ONNX files: the header reader agrees with onnxruntime, and the runner batches as it should."""

import numpy as np
import onnx as onnx_format
import pytest
from onnx import TensorProto, helper

from dovetail import onnx, stage, tensor, workflow
from dovetail.errors import DeclarationError
from dovetail.workflow.onnxfile import read_onnx
from dovetail.workflow.runners import OnnxRunner, StageFailed


def save(path, nodes, inputs, outputs, initializers=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx_format.save(model, path)
    return path


@pytest.fixture
def scale(tmp_path):
    """y = 2 x, z = maximum of x over its last axis."""
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
    return save(
        tmp_path / "scale.onnx",
        [
            helper.make_node("Mul", ["x", "two"], ["y"]),
            helper.make_node("ReduceMax", ["x"], ["z"], axes=[-1], keepdims=0),
        ],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "width"])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3, "width"]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 3]),
        ],
        [two],
    )


def test_the_header_reader_agrees_with_onnxruntime(scale):
    import onnxruntime

    file = read_onnx(scale, "scale")
    session = onnxruntime.InferenceSession(str(scale))
    assert list(file.inputs) == [i.name for i in session.get_inputs()]
    assert list(file.outputs) == [o.name for o in session.get_outputs()]
    assert file.inputs["x"].datatype == "FP32" and file.inputs["x"].shape == (-1, 3, -1)
    assert file.nbytes == scale.stat().st_size


def test_types_of_inputs_and_outputs_come_from_the_file(scale):
    double = onnx(scale, name="double")

    @workflow(slo="1s")
    def flow(x):
        y, z = double(x)
        return {"y": y, "z": z}

    assert [(p.name, p.datatype, p.shape) for p in flow.graph.inputs] == [("x", "FP32", (3, -1))]
    assert [(p.name, p.datatype, p.shape) for p in flow.graph.outputs] == [
        ("y", "FP32", (3, -1)),
        ("z", "FP32", (3,)),
    ]
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    answer = flow.local(x)
    np.testing.assert_array_equal(answer["y"], 2 * x)


@pytest.mark.parametrize("pad", [None, 0.0])
def test_a_batch_of_unequal_shapes_equals_single_runs(scale, pad):
    spec = onnx(scale, name="double", pad=pad).spec
    runner = OnnxRunner(spec)
    rng = np.random.default_rng(1)
    items = [rng.random((3, w), dtype=np.float32) for w in (2, 5, 2, 4)]
    together = runner.run([items])
    for item, (y, z) in zip(items, together, strict=True):
        width = item.shape[1]
        np.testing.assert_array_equal(y[:, :width], 2 * item)
        np.testing.assert_array_equal(z, item.max(axis=-1))


def test_an_item_of_the_wrong_rank_is_named(scale):
    runner = OnnxRunner(onnx(scale, name="double").spec)
    with pytest.raises(StageFailed, match=r"stage 'double': input 'x' takes items of 2 dimension"):
        runner.run([[np.zeros((1, 3, 2), dtype=np.float32)]])


def test_a_fixed_batch_axis_allows_batch_one_only(tmp_path):
    path = save(
        tmp_path / "one.onnx",
        [helper.make_node("Relu", ["x"], ["y"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    with pytest.raises(DeclarationError, match="batch=1"):
        onnx(path)
    assert onnx(path, batch=1).spec.batch == (1,)


def test_python_and_model_stages_mix(scale):
    double = onnx(scale, name="double")

    @stage
    def width(pairs):
        return [int(y.shape[-1]) for y, _ in pairs]

    @workflow(slo="1s")
    def flow(xs: tensor("float32", -1, 3, 2)):
        return {"widths": width.map(double.map(xs))}

    assert flow.local(np.ones((4, 3, 2), dtype=np.float32)) == {"widths": [2, 2, 2, 2]}
