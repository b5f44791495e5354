"""How much an ONNX model has to compute for one item, counted from its file when it is declared.

Rules of this file
- Counted are the multiply-accumulates of convolutions, matrix products and recurrent layers. What else operators
  write was tried as a second figure and made the guess of times no better (docs/predict.md).
- A side of an input that the file leaves open is taken for granted: pictures have `IMAGE_SIDE`, one whose other side
  is fixed below `LOW` is a line of text, `LINE_ASPECT` times as wide as it is high, and all else has `STEPS`. The
  batch axis is 1.
- If the shape of some product cannot be followed, the work is unknown, which is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from .onnxnodes import Operator, Operators, read_operators
from .onnxshapes import UNKNOWN, Shape, Value, follow
from .tensor import TensorSpec

__all__ = ["IMAGE_SIDE", "LINE_ASPECT", "LOW", "STEPS", "count_macs"]

#: Sides of a picture that the file leaves open: what classifiers of pictures take. [our choice]
IMAGE_SIDE = 224
#: A picture lower than this whose width is open is a line of text, and so many times as wide as high. [our choice]
LOW, LINE_ASPECT = 96, 8
#: Any other open side: tokens of a short text. [our choice]
STEPS = 128
#: Operator -> where its weights are among its inputs.
_PRODUCTS = {
    "Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "ConvTranspose": 1, "MatMul": 1, "MatMulInteger": 1,
    "QLinearMatMul": 3, "Gemm": 1, "LSTM": 1, "GRU": 1, "RNN": 1,
}  # fmt: skip
#: Operators that compute too much to be left out and whose shapes are not followed.
_UNCOUNTED = frozenset(("Loop", "Scan", "If", "Einsum", "Attention", "MultiHeadAttention", "NonMaxSuppression"))


def count_macs(path: Path, inputs: Mapping[str, TensorSpec]) -> int:
    """Multiply-accumulates of one item of the model at `path`, whose inputs are these; 0 if that cannot be told."""
    try:
        return _count(read_operators(path), {name: _assumed(spec.shape) for name, spec in inputs.items()})
    except (ValueError, OSError):
        return 0


def _assumed(shape: Sequence[int]) -> Shape:
    """The shape of one item with all sides filled in."""
    usual = STEPS
    if len(shape) == 4:
        rows = next((side for side in shape[1:3] if side > 4), 0)  # channels come first or last
        usual = rows * LINE_ASPECT if 0 < rows < LOW else IMAGE_SIDE
    return tuple(1 if i == 0 else side if side > 0 else usual for i, side in enumerate(shape))


def _count(operators: Operators, shapes: Mapping[str, Shape]) -> int:
    values = {name: Value(c.shape, c.values) for name, c in operators.constants.items()}
    values |= {name: Value(shape) for name, shape in shapes.items()}
    macs = 0
    for node in operators.nodes:
        given = [values.get(name, UNKNOWN) for name in node.reads]
        found = follow(node, given)
        values.update(zip(node.writes, found, strict=False))
        product = _macs(node, given, found[0]) if node.op in _PRODUCTS else 0
        if product is None or node.op in _UNCOUNTED:
            return 0
        macs += product
    return macs


def _macs(node: Operator, inputs: Sequence[Value], output: Value) -> int | None:
    at = _PRODUCTS[node.op]
    taken, weights = inputs[0].shape, inputs[at].shape if at < len(inputs) else None
    if taken is None or weights is None or output.shape is None:
        return None
    if node.op == "ConvTranspose":
        return prod(taken) * prod(weights[1:])
    if node.op.endswith(("Conv", "ConvInteger")):
        return prod(output.shape) * prod(weights[1:])
    if node.op in ("LSTM", "GRU", "RNN"):
        recurrent = inputs[2].shape or ()
        return taken[0] * taken[1] * (prod(weights) + prod(recurrent))
    inner = taken[0] if node.op == "Gemm" and node.numbers.get("transA") else taken[-1]
    return prod(output.shape) * inner
