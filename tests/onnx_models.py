"""Tiny ONNX models, made when they are needed. Items are float32 vectors of three numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 3


def _save(path: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WIDTH])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def double(path: Path) -> Path:
    """y = 2 x, at once."""
    return _save(path, [helper.make_node("Mul", ["x", "two"], ["y"])], {"two": np.float32([2])})


def slow(path: Path, products: int = 8, side: int = 384) -> Path:
    """y = x, after some tens of milliseconds of matrix products that depend on x."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Tanh", ["mean"], ["bounded"]),
        helper.make_node("Mul", ["w", "bounded"], ["m0"]),
        *(helper.make_node("MatMul", [f"m{i}", "w"], [f"m{i + 1}"]) for i in range(products)),
        helper.make_node("ReduceMean", [f"m{products}"], ["end"], keepdims=0),
        helper.make_node("Mul", ["end", "none"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]
    w = (np.random.default_rng(7).standard_normal((side, side)) / side).astype(np.float32)
    return _save(path, nodes, {"w": w, "none": np.float32(0)})


def heavy(path: Path, nbytes: int, seed: int) -> Path:
    """y = 2 x, with weights of so many bytes that nobody can fold away."""
    rows = nbytes // 4 // WIDTH
    nodes = [
        helper.make_node("Mul", ["x", "none"], ["nothing"]),
        helper.make_node("Cast", ["nothing"], ["row"], to=TensorProto.INT64),
        helper.make_node("Gather", ["w", "row"], ["picked"]),
        helper.make_node("ReduceMean", ["picked"], ["mean"], axes=[2], keepdims=0),
        helper.make_node("Mul", ["mean", "none"], ["still_nothing"]),
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "still_nothing"], ["y"]),
    ]
    w = np.random.default_rng(seed).random((rows, WIDTH), np.float32)
    return _save(path, nodes, {"w": w, "none": np.float32(0), "two": np.float32([2])})
