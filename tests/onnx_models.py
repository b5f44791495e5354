"""Tiny ONNX models, made when they are needed. Items are float32 vectors, of three numbers if nothing is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 3


def _save(path: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], width: int = WIDTH) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def _add_nothing(of: str) -> list[onnx.NodeProto]:
    """y = x, but not before this is known."""
    return [
        helper.make_node("ReduceMean", [of], ["end"], keepdims=0),
        helper.make_node("Mul", ["end", "none"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]


def double(path: Path) -> Path:
    """y = 2 x, at once."""
    return _save(path, [helper.make_node("Mul", ["x", "two"], ["y"])], {"two": np.float32([2])})


def slow(path: Path, products: int = 8, side: int = 384, matrices: int = 1) -> Path:
    """y = x, after some tens of milliseconds of matrix products that depend on x, with so many different matrices."""
    names = ["w", *(f"w{i}" for i in range(1, matrices))]
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Tanh", ["mean"], ["bounded"]),
        helper.make_node("Mul", ["w", "bounded"], ["m0"]),
        *(
            helper.make_node("MatMul", [f"m{i}", names[i * matrices // products]], [f"m{i + 1}"])
            for i in range(products)
        ),
        *_add_nothing(f"m{products}"),
    ]
    chance = np.random.default_rng(7)
    weights = {name: (chance.standard_normal((side, side)) / side).astype(np.float32) for name in names}
    return _save(path, nodes, {**weights, "none": np.float32(0)})


def nonzero(path: Path) -> Path:
    """y = x for 512 numbers, past matrix products over as many rows as x has numbers that are not 1."""
    side, products = 384, 16
    nodes = [
        helper.make_node("Sub", ["x", "one"], ["less"]),
        helper.make_node("NonZero", ["less"], ["where"]),
        helper.make_node("Transpose", ["where"], ["rows"], perm=[1, 0]),
        helper.make_node("Cast", ["rows"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["floats", "wide"], ["m0"]),
        *(helper.make_node("MatMul", [f"m{i}", "w"], [f"m{i + 1}"]) for i in range(products)),
        *_add_nothing(f"m{products}"),
    ]
    chance = np.random.default_rng(7)
    wide, w = (chance.standard_normal((rows, side)).astype(np.float32) / side for rows in (2, side))
    return _save(path, nodes, {"wide": wide, "w": w, "none": np.float32(0), "one": np.float32([1])}, width=512)


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
