"""Tensor types as the Open Inference Protocol names them, and their numpy counterparts."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ..errors import DeclarationError

__all__ = ["NUMPY_OF", "OIP_OF", "TensorSpec", "tensor"]

#: Open Inference Protocol name -> numpy dtype. BYTES has no numpy counterpart of fixed size.
NUMPY_OF: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("bool"),
    "UINT8": np.dtype("uint8"),
    "UINT16": np.dtype("uint16"),
    "UINT32": np.dtype("uint32"),
    "UINT64": np.dtype("uint64"),
    "INT8": np.dtype("int8"),
    "INT16": np.dtype("int16"),
    "INT32": np.dtype("int32"),
    "INT64": np.dtype("int64"),
    "FP16": np.dtype("float16"),
    "FP32": np.dtype("float32"),
    "FP64": np.dtype("float64"),
}
OIP_OF: dict[str, str] = {dtype.name: name for name, dtype in NUMPY_OF.items()}


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
