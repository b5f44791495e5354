"""Models made for benches, always the same: convolutional networks with random weights of a fixed seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Of a picture: channels, height, width. 0.2 MB.
SHAPE = (3, 128, 128)
#: (channels, stride) of each 3 × 3 convolution of a network of about 9 ms.
LAYERS = ((32, 2), (64, 2), *((128, 1),) * 5)


def make_model(
    path: Path,
    layers: tuple[tuple[int, int], ...],
    *,
    size: tuple[int | str, int | str] = ("height", "width"),
    pooled: bool = True,
) -> None:
    """A small convolutional network with a variable batch axis, for pictures of this size.

    Without layers it only takes the mean. One that is not pooled gives a picture again.
    """
    rng = np.random.default_rng(1)
    nodes, weights = [], []
    at, channels = "x", SHAPE[0]
    for i, (wider, stride) in enumerate(layers):
        kernel = (rng.standard_normal((wider, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{i}"))
        options = {"strides": [stride, stride], "pads": [1] * 4, "kernel_shape": [3, 3]}
        nodes += [helper.make_node("Conv", [at, f"w{i}"], [f"c{i}"], **options)]
        nodes += [helper.make_node("Relu", [f"c{i}"], [f"r{i}"])]
        at, channels = f"r{i}", wider
    if pooled:
        nodes += [helper.make_node("GlobalAveragePool", [at], ["pooled"])]
        nodes += [helper.make_node("Flatten", ["pooled"], ["y"])]
    else:
        nodes += [helper.make_node("Identity", [at], ["y"])]
    shape = ["batch", channels] if pooled else ["batch", channels, *size]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", SHAPE[0], *size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def picture(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """What the networks are shown."""
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)
