"""Tensor types as the Open Inference Protocol names them, and as numpy, onnxruntime and ONNX files do."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ..errors import DeclarationError

__all__ = ["NUMPY_OF", "NUMPY_OF_ORT", "OIP_OF", "OIP_OF_ONNX", "ONNX_OF_ORT", "TensorSpec", "tensor"]

#: Name in the Open Inference Protocol, in numpy, in onnxruntime; number in onnx.proto, where BYTES is 8.
_TYPES = (
    ("BOOL", "bool", "bool", 9),
    ("UINT8", "uint8", "uint8", 2),
    ("UINT16", "uint16", "uint16", 4),
    ("UINT32", "uint32", "uint32", 12),
    ("UINT64", "uint64", "uint64", 13),
    ("INT8", "int8", "int8", 3),
    ("INT16", "int16", "int16", 5),
    ("INT32", "int32", "int32", 6),
    ("INT64", "int64", "int64", 7),
    ("FP16", "float16", "float16", 10),
    ("FP32", "float32", "float", 1),
    ("FP64", "float64", "double", 11),
)
NUMPY_OF: dict[str, np.dtype[Any]] = {oip: np.dtype(name) for oip, name, _, _ in _TYPES}
OIP_OF = {name: oip for oip, name, _, _ in _TYPES}
OIP_OF_ONNX = {number: oip for oip, _, _, number in _TYPES} | {8: "BYTES"}
NUMPY_OF_ORT = {f"tensor({ort})": np.dtype(name) for _, name, ort, _ in _TYPES}
ONNX_OF_ORT = {f"tensor({ort})": number for _, _, ort, number in _TYPES}


class TensorSpec(msgspec.Struct, frozen=True):
    """Type of one tensor: protocol datatype and shape without a batch dimension; -1 is any length."""

    datatype: str
    shape: tuple[int, ...]


def tensor(dtype: str, *shape: int) -> TensorSpec:
    """The type of a workflow's input or output, for its annotations: ``tensor("uint8", -1, -1, 3)``.

    `dtype` is a numpy name (``"float32"``), a protocol name (``"FP32"``) or ``"bytes"`` for text and bytes.
    One request carries one item, so there is no batch dimension.
    """
    datatype = "BYTES" if dtype.lower() in ("bytes", "str") else OIP_OF.get(dtype.lower(), dtype.upper())
    if datatype != "BYTES" and datatype not in NUMPY_OF:
        known = ", ".join([*OIP_OF, "bytes"])
        raise DeclarationError(f"tensor type {dtype!r} is not known; known types: {known}")
    for dim in shape:
        if not isinstance(dim, int) or dim < -1 or dim == 0:
            raise DeclarationError(f"dimension {dim!r} of {dtype} {shape} must be positive, or -1 for any length")
    return TensorSpec(datatype, tuple(shape))
