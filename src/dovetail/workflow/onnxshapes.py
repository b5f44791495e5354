"""What shape an operator's result has, given the shapes of what it reads: the common ones of convolutional and
transformer networks.

Rules of this file
- A rule takes an operator and its inputs and gives its outputs. An operator without a rule, and inputs of unknown
  shape, give an unknown shape. Nothing is guessed here.
- Small tensors of whole numbers are followed by value as well: exporters compute shapes with them.
- The rules are those of the ONNX operator specification, without what real models do not use (negative pads of
  pools, `output_shape` of transposed convolutions).
"""

from __future__ import annotations

import operator as arithmetic
from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import NamedTuple

from .onnxnodes import Number, Operator

__all__ = ["UNKNOWN", "Shape", "Value", "follow"]

Shape = tuple[int, ...]


class Value(NamedTuple):
    """What is known of a tensor: its shape, and its numbers in order if they are few and known."""

    shape: Shape | None
    numbers: tuple[Number, ...] | None = None


UNKNOWN = Value(None)
#: More of them are not followed by value.
_MOST_NUMBERS = 1024
Rule = Callable[[Operator, Sequence[Value]], Value]


class _Unfit(Exception):
    """The inputs do not fit the rule, or too little is known of them."""


def follow(node: Operator, inputs: Sequence[Value]) -> list[Value]:
    """What is known of each of the operator's outputs."""
    if node.op == "Constant":
        return [_constant(node)]
    try:
        if node.op == "Split":
            return _split(node, inputs)
        if node.op in ("LSTM", "GRU", "RNN"):
            return _recurrent(node, inputs)
        rule = _RULES.get(node.op)
        found = UNKNOWN if rule is None else rule(node, inputs)
    except (_Unfit, LookupError, ValueError, ArithmeticError):
        found = UNKNOWN
    return [found, *[UNKNOWN] * (len(node.writes) - 1)]


def _constant(node: Operator) -> Value:
    if node.constant is not None:
        return Value(node.constant.shape, node.constant.values)
    for name in ("value_int", "value_float"):
        if name in node.numbers:
            return Value((), (node.numbers[name],))
        if f"{name}s" in node.lists:
            return Value((len(node.lists[f"{name}s"]),), node.lists[f"{name}s"])
    return UNKNOWN


def _shape(inputs: Sequence[Value], at: int = 0) -> Shape:
    if at >= len(inputs) or inputs[at].shape is None:
        raise _Unfit
    return inputs[at].shape or ()


def _numbers(node: Operator, inputs: Sequence[Value], at: int, name: str) -> tuple[int, ...]:
    """Whole numbers that are an input in newer files and an attribute in older ones."""
    if at < len(inputs) and inputs[at].numbers is not None:
        return tuple(int(n) for n in inputs[at].numbers or ())
    if name in node.lists:
        return tuple(int(n) for n in node.lists[name])
    raise _Unfit


def _ints(node: Operator, name: str, usual: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(n) for n in node.lists.get(name, usual))


def _same(node: Operator, inputs: Sequence[Value]) -> Value:
    return Value(_shape(inputs), inputs[0].numbers)


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes))
    sides = zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True)
    return tuple(max(each) if 0 not in each else 0 for each in sides)


def _elementwise(node: Operator, inputs: Sequence[Value]) -> Value:
    shape = _broadcast([_shape(inputs, i) for i in range(len(inputs))])
    reckon = _ARITHMETIC.get(node.op)
    left, right = (inputs[0].numbers, inputs[1].numbers) if len(inputs) == 2 else (None, None)
    if reckon is None or not left or not right:
        return Value(shape)
    size = max(len(left), len(right))
    if min(len(left), len(right)) not in (1, size):
        return Value(shape)
    left, right = left * (size // len(left)), right * (size // len(right))
    return Value(shape, tuple(reckon(a, b) for a, b in zip(left, right, strict=True)))


def _divided(a: Number, b: Number) -> Number:
    return a // b if isinstance(a, int) and isinstance(b, int) else a / b


_ARITHMETIC: dict[str, Callable[[Number, Number], Number]] = {
    "Add": arithmetic.add,
    "Sub": arithmetic.sub,
    "Mul": arithmetic.mul,
    "Div": _divided,
}


def _cast(node: Operator, inputs: Sequence[Value]) -> Value:
    numbers = inputs[0].numbers
    whole = numbers is not None and node.numbers.get("to") in (6, 7)
    return Value(_shape(inputs), tuple(int(n) for n in numbers or ()) if whole else numbers)


def _window(node: Operator, spatial: Shape, kernel: Shape) -> Shape:
    """Spatial sides after a convolution or a pool."""
    rank = len(spatial)
    strides, dilations = _ints(node, "strides", (1,) * rank), _ints(node, "dilations", (1,) * rank)
    if node.texts.get("auto_pad", "NOTSET").startswith("SAME"):
        return tuple(ceil(side / stride) for side, stride in zip(spatial, strides, strict=True))
    pads = _ints(node, "pads", (0,) * 2 * rank)
    round_up = bool(node.numbers.get("ceil_mode", 0))
    sides = []
    for i, side in enumerate(spatial):
        room = side + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) - 1
        sides.append((ceil(room / strides[i]) if round_up else room // strides[i]) + 1)
    return tuple(sides)


def _conv(node: Operator, inputs: Sequence[Value], weights_at: int = 1) -> Value:
    taken, weights = _shape(inputs), _shape(inputs, weights_at)
    return Value((taken[0], weights[0], *_window(node, taken[2:], weights[2:])))


def _conv_transpose(node: Operator, inputs: Sequence[Value]) -> Value:
    taken, weights = _shape(inputs), _shape(inputs, 1)
    rank = len(taken) - 2
    strides, dilations = _ints(node, "strides", (1,) * rank), _ints(node, "dilations", (1,) * rank)
    pads, more = _ints(node, "pads", (0,) * 2 * rank), _ints(node, "output_padding", (0,) * rank)
    sides = [
        strides[i] * (side - 1) + more[i] + dilations[i] * (weights[2 + i] - 1) + 1 - pads[i] - pads[i + rank]
        for i, side in enumerate(taken[2:])
    ]
    return Value((taken[0], weights[1] * int(node.numbers.get("group", 1)), *sides))


def _pool(node: Operator, inputs: Sequence[Value]) -> Value:
    taken = _shape(inputs)
    return Value((*taken[:2], *_window(node, taken[2:], _ints(node, "kernel_shape", ()))))


def _global_pool(node: Operator, inputs: Sequence[Value]) -> Value:
    taken = _shape(inputs)
    return Value((*taken[:2], *(1,) * (len(taken) - 2)))


def _matmul(node: Operator, inputs: Sequence[Value], weights_at: int = 1) -> Value:
    left, right = _shape(inputs), _shape(inputs, weights_at)
    if len(left) < 2 or len(right) < 2:
        raise _Unfit
    return Value((*_broadcast([left[:-2], right[:-2]]), left[-2], right[-1]))


def _gemm(node: Operator, inputs: Sequence[Value]) -> Value:
    left, right = _shape(inputs), _shape(inputs, 1)
    rows = left[1] if node.numbers.get("transA") else left[0]
    return Value((rows, right[0] if node.numbers.get("transB") else right[1]))


def _concat(node: Operator, inputs: Sequence[Value]) -> Value:
    shapes = [_shape(inputs, i) for i in range(len(inputs))]
    axis = int(node.numbers["axis"]) % len(shapes[0])
    shape = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])
    parts = [value.numbers for value in inputs]
    if len(shape) == 1 and shape[0] <= _MOST_NUMBERS and None not in parts:
        return Value(shape, tuple(n for part in parts for n in part or ()))
    return Value(shape)


def _shape_of(node: Operator, inputs: Sequence[Value]) -> Value:
    shape = _shape(inputs)
    shape = shape[int(node.numbers.get("start", 0)) : int(node.numbers.get("end", len(shape)))]
    return Value((len(shape),), shape)


def _reshape(node: Operator, inputs: Sequence[Value]) -> Value:
    taken, wanted = _shape(inputs), _numbers(node, inputs, 1, "shape")
    sides = [taken[i] if side == 0 else side for i, side in enumerate(wanted)]
    rest = prod(side for side in sides if side != -1)
    return Value(tuple(prod(taken) // rest if side == -1 else side for side in sides), inputs[0].numbers)


def _flatten(node: Operator, inputs: Sequence[Value]) -> Value:
    taken = _shape(inputs)
    axis = int(node.numbers.get("axis", 1))
    return Value((prod(taken[:axis]), prod(taken[axis:])))


def _transpose(node: Operator, inputs: Sequence[Value]) -> Value:
    taken = _shape(inputs)
    return Value(tuple(taken[i] for i in _ints(node, "perm", range(len(taken) - 1, -1, -1))))


def _unsqueeze(node: Operator, inputs: Sequence[Value]) -> Value:
    axes = _numbers(node, inputs, 1, "axes")
    sides, rank = list(_shape(inputs)), len(_shape(inputs)) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        sides.insert(axis, 1)
    return Value(tuple(sides), inputs[0].numbers)


def _squeeze(node: Operator, inputs: Sequence[Value]) -> Value:
    taken = _shape(inputs)
    given = len(inputs) > 1 or "axes" in node.lists
    axes = [a % len(taken) for a in _numbers(node, inputs, 1, "axes")] if given else []
    kept = (s for i, s in enumerate(taken) if (i not in axes if given else s != 1))
    return Value(tuple(kept), inputs[0].numbers)


def _reduce(node: Operator, inputs: Sequence[Value]) -> Value:
    taken = _shape(inputs)
    given = len(inputs) > 1 or "axes" in node.lists
    axes = {a % len(taken) for a in _numbers(node, inputs, 1, "axes")} if given else set(range(len(taken)))
    if not node.numbers.get("keepdims", 1):
        return Value(tuple(s for i, s in enumerate(taken) if i not in axes))
    return Value(tuple(1 if i in axes else s for i, s in enumerate(taken)))


def _gather(node: Operator, inputs: Sequence[Value]) -> Value:
    taken, where = _shape(inputs), _shape(inputs, 1)
    axis = int(node.numbers.get("axis", 0)) % len(taken)
    numbers, chosen = inputs[0].numbers, inputs[1].numbers
    picked = None
    if len(taken) == 1 and numbers is not None and chosen is not None:
        picked = tuple(numbers[int(i)] for i in chosen)
    return Value((*taken[:axis], *where, *taken[axis + 1 :]), picked)


def _slice(node: Operator, inputs: Sequence[Value]) -> Value:
    taken = _shape(inputs)
    starts, ends = _numbers(node, inputs, 1, "starts"), _numbers(node, inputs, 2, "ends")
    named = len(inputs) > 3 or "axes" in node.lists
    axes = _numbers(node, inputs, 3, "axes") if named else tuple(range(len(starts)))
    steps = _numbers(node, inputs, 4, "steps") if len(inputs) > 4 else (1,) * len(starts)
    cut = dict(zip((a % len(taken) for a in axes), map(slice, starts, ends, steps), strict=True))
    shape = tuple(len(range(*cut.get(i, slice(None)).indices(side))) for i, side in enumerate(taken))
    numbers = inputs[0].numbers
    return Value(shape, numbers[cut.get(0, slice(None))] if len(taken) == 1 and numbers is not None else None)


def _split(node: Operator, inputs: Sequence[Value]) -> list[Value]:
    taken = _shape(inputs)
    axis, count = int(node.numbers.get("axis", 0)) % len(taken), len(node.writes)
    given = len(inputs) > 1 or "split" in node.lists
    sizes = _numbers(node, inputs, 1, "split") if given else (ceil(taken[axis] / count),) * count
    return [Value((*taken[:axis], size, *taken[axis + 1 :])) for size in sizes]


def _resize(node: Operator, inputs: Sequence[Value]) -> Value:
    taken = _shape(inputs)
    if len(inputs) > 3 and inputs[3].numbers:
        return Value(tuple(int(n) for n in inputs[3].numbers))
    scales = next((v.numbers for v in reversed(inputs[1:]) if v.numbers), node.lists.get("scales"))
    if scales is None or len(scales) != len(taken):
        raise _Unfit
    return Value(tuple(int(side * scale) for side, scale in zip(taken, scales, strict=True)))


def _pad(node: Operator, inputs: Sequence[Value]) -> Value:
    taken, pads = _shape(inputs), _numbers(node, inputs, 1, "pads")
    rank = len(taken)
    if len(pads) != 2 * rank:
        raise _Unfit
    return Value(tuple(side + pads[i] + pads[i + rank] for i, side in enumerate(taken)))


def _expand(node: Operator, inputs: Sequence[Value]) -> Value:
    return Value(_broadcast([_shape(inputs), _numbers(node, inputs, 1, "shape")]))


def _filled(node: Operator, inputs: Sequence[Value]) -> Value:
    return Value(_numbers(node, inputs, 0, "shape"))


def _recurrent(node: Operator, inputs: Sequence[Value]) -> list[Value]:
    steps, batch, _ = _shape(inputs)
    directions, _, hidden = _shape(inputs, 2)
    last = Value((directions, batch, hidden))
    return [Value((steps, directions, batch, hidden)), last, last][: len(node.writes)]


_RULES: dict[str, Rule] = {
    "Conv": _conv, "ConvInteger": _conv, "QLinearConv": lambda n, i: _conv(n, i, 3), "ConvTranspose": _conv_transpose,
    "MaxPool": _pool, "AveragePool": _pool, "LpPool": _pool, "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool, "MatMul": _matmul, "MatMulInteger": _matmul,
    "QLinearMatMul": lambda n, i: _matmul(n, i, 3), "Gemm": _gemm, "Concat": _concat, "Shape": _shape_of,
    "Reshape": _reshape, "Flatten": _flatten, "Transpose": _transpose, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze,
    "Gather": _gather, "Slice": _slice, "Resize": _resize, "Upsample": _resize, "Pad": _pad, "Expand": _expand,
    "ConstantOfShape": _filled, "Cast": _cast,
}  # fmt: skip
_RULES |= dict.fromkeys(
    ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceLogSumExp"), _reduce
)
#: The shape of the first input; the others are weights or settings.
_RULES |= dict.fromkeys(
    (
        "Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Gelu", "Sigmoid", "HardSigmoid", "HardSwish", "Mish",
        "Softplus", "Softsign", "Tanh", "Softmax", "LogSoftmax", "Hardmax", "Erf", "Exp", "Log", "Sqrt", "Abs", "Neg",
        "Reciprocal", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Not", "Identity", "Dropout", "Clip",
        "BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization", "LRN",
        "LpNormalization", "CumSum", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear",
    ),
    _same,
)  # fmt: skip
_RULES |= dict.fromkeys(
    (
        "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "And", "Or", "Xor", "Equal", "Greater",
        "GreaterOrEqual", "Less", "LessOrEqual", "Where",
    ),
    _elementwise,
)  # fmt: skip
