"""Tensors of the Open Inference Protocol v2, as JSON and in Triton's binary extension, to and from values.

Rules of this file
- Nothing is allocated for a tensor before its declared shape fits the model and its data fits the shape.
- A fixed-size tensor that arrived in binary is never copied: it becomes a reference into the request body.
- What is wrong with a tensor raises `BadRequest` and says what was expected and what came.
- Whatever is done for each element in Python is bounded by `Elements`: other clients wait meanwhile.

Sources: kserve/open-inference-protocol, specification/protocol/inference_rest.md; Triton's extension_binary_data.md.
"""

from __future__ import annotations

import math
import re
import struct
from functools import cache
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import BadRequest
from ..workflow.graph import Port
from ..workflow.tensor import NUMPY_OF
from .backend import Body
from .oip_records import InputTensor, OutputTensor

__all__ = [
    "MAX_JSON_ELEMENTS",
    "MAX_TEXTS",
    "Elements",
    "decode",
    "decode_raw",
    "encode",
]

#: Elements of all tensors of a request, or of an answer, that are written as JSON, and BYTES elements in any form.
#: Each costs 80 to 150 ns, and a BYTES element 500 ns, on the thread that serves everybody: 20 to 40 ms at most, on a
#: Xeon of 2023 with other work on it (bench/front_stall.py).
MAX_JSON_ELEMENTS = 256 << 10
MAX_TEXTS = 32 << 10

# Looked up once: numpy's own `dtype.name` takes microseconds each time.
_NUMPY_NAME_OF = {name: dtype.name for name, dtype in NUMPY_OF.items()}
_OIP_NAME_OF = {order: name for name, dtype in NUMPY_OF.items() for order in (dtype, dtype.newbyteorder())}


class Elements:
    """Counts the elements of one request or of one answer that Python has to touch one by one."""

    def __init__(self) -> None:
        self._json = self._texts = 0

    def add(self, where: str, datatype: str, count: int, binary: bool) -> None:
        """So many more; raises `BadRequest` if that is too many."""
        if datatype == "BYTES":
            self._texts += count
        if not binary:
            self._json += count
        if self._texts > MAX_TEXTS:
            raise BadRequest(f"{where}: {self._texts} BYTES elements are more than the {MAX_TEXTS} of a request")
        if self._json > MAX_JSON_ELEMENTS:
            raise BadRequest(
                f"{where}: {self._json} elements are more than the {MAX_JSON_ELEMENTS} of JSON; use binary data"
            )


def decode(
    spec: Port, tensor: InputTensor, body: Body, offset: int, elements: Elements | None = None
) -> tuple[object, int]:
    """The value of one input, and how many bytes of `body` from `offset` on it took (none if it came as JSON).

    `elements` counts for all inputs of the request.
    """
    where = f"input {spec.name!r}"
    if tensor.datatype != spec.datatype:
        raise BadRequest(f"{where} has datatype {spec.datatype}, got {tensor.datatype}")
    shape = tuple(tensor.shape)
    if len(shape) != len(spec.shape) or any(
        want not in (-1, got) for want, got in zip(spec.shape, shape, strict=True)
    ):
        raise BadRequest(
            f"{where} has shape {list(spec.shape)} (-1 is any length), got {list(shape)}; "
            "a request carries one item and has no batch dimension"
        )
    if 0 in shape and math.prod(filter(None, shape)) >= 1 << 48:  # numpy takes none beyond 2**63 bytes, even empty
        raise BadRequest(f"{where}: shape {list(shape)} is too large, though it has no elements")
    binary = "binary_data_size" in tensor.parameters
    (elements or Elements()).add(where, spec.datatype, math.prod(shape), binary)
    if not binary:
        return _value(spec, _from_json(where, spec.datatype, shape, bytes(tensor.data))), 0
    if bytes(tensor.data):
        raise BadRequest(f"{where} has both data and binary_data_size; give one of them")
    nbytes = tensor.parameters["binary_data_size"]
    if type(nbytes) is not int or not 0 <= nbytes <= len(body.view) - offset:
        raise BadRequest(
            f"{where}: binary_data_size {nbytes!r} does not fit the {len(body.view) - offset} bytes left"
        )
    return _from_binary(spec, shape, body, offset, nbytes), nbytes


def decode_raw(spec: Port, body: Body) -> object:
    """The value of the only input when the body is nothing but its bytes, so that its shape has to be deduced."""
    nbytes = len(body.view)
    if spec.datatype == "BYTES":
        if spec.shape != (1,):
            raise BadRequest(f"input {spec.name!r} is BYTES {list(spec.shape)}; raw requests need BYTES [1]")
        return bytes(body.view)  # the element itself, without a length before it, as Triton takes it
    if spec.shape.count(-1) > 1:
        raise BadRequest(f"input {spec.name!r} has shape {list(spec.shape)}; raw requests need at most one -1")
    fixed = math.prod(dim for dim in spec.shape if dim != -1) * NUMPY_OF[spec.datatype].itemsize
    shape = tuple(nbytes // max(fixed, 1) if dim == -1 else dim for dim in spec.shape)
    return _from_binary(spec, shape, body, 0, nbytes)


def encode(
    name: str, value: object, binary: bool, elements: Elements | None = None, declared: str = ""
) -> tuple[OutputTensor, list[bytes | memoryview] | None]:
    """An output as clients read it, and its raw bytes if `binary`. Arrays are not copied unless they are strided.

    `elements` counts for all outputs of the answer. Where numbers are `declared`, a Python number becomes one of
    that datatype, and a list of equal arrays one tensor.
    """
    if binary and type(value) is np.ndarray and (plain := _OIP_NAME_OF.get(value.dtype, "BYTES")) != "BYTES":
        shape = value.shape or ((1,) if declared in _NUMPY_NAME_OF and declared != "BYTES" else ())
        # Nothing of it is touched one by one, so there is nothing to count.
        return OutputTensor(name, plain, list(shape), {"binary_data_size": value.nbytes}), [_raw(value)]
    elements = elements or Elements()
    numeric = NUMPY_OF[declared] if declared in _NUMPY_NAME_OF and declared != "BYTES" else None
    if numeric is not None and isinstance(value, bool | int | float):
        value = np.array([value], numeric)
    if numeric is not None and isinstance(value, list) and value and _alike(value, numeric):
        return _encode_list(name, declared, value, binary, elements)
    datatype, shape, content = _describe(name, value, elements)
    if numeric is not None:  # what is declared without a length is shown to clients as [1]
        shape = shape or (1,)
    elements.add(f"output {name!r}", datatype, math.prod(shape), binary)
    tensor = OutputTensor(name, datatype, list(shape))
    if isinstance(content, list):
        if binary:
            raw = b"".join([part for text in content for part in (struct.pack("<I", len(text)), text)])
            tensor.parameters = {"binary_data_size": len(raw)}
            return tensor, [raw]
        try:
            tensor.data = [text.decode() for text in content]
        except UnicodeDecodeError:
            raise BadRequest(
                f"output {name!r} is not UTF-8 text, so JSON cannot hold it; ask for binary_data"
            ) from None
        return tensor, None
    if binary:
        tensor.parameters = {"binary_data_size": content.nbytes}
        return tensor, [_raw(content)]
    if datatype == "FP16":
        raise BadRequest(f"output {name!r} is FP16, which has no JSON form; ask for binary_data")
    tensor.data = content.reshape(-1).tolist()  # JSON has no NaN and no infinity: they become null
    return tensor, None


def _raw(array: npt.NDArray[Any]) -> bytes | memoryview:
    if not array.flags.c_contiguous or array.dtype.str[0] == ">":
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    if not array.size:
        return b""
    return (array if array.ndim else array.reshape(-1)).data.cast("B")


def _alike(values: list[Any], dtype: np.dtype[Any]) -> bool:
    """Whether these are arrays that make one when they are stacked."""
    first = values[0]
    return isinstance(first, np.ndarray) and all(
        isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == first.shape for value in values
    )


def _encode_list(
    name: str, datatype: str, arrays: list[npt.NDArray[Any]], binary: bool, elements: Elements
) -> tuple[OutputTensor, list[bytes | memoryview] | None]:
    """Arrays behind each other are one tensor; they need not be copied for that."""
    shape = [len(arrays), *arrays[0].shape]
    elements.add(f"output {name!r}", datatype, math.prod(shape), binary)
    tensor = OutputTensor(name, datatype, shape)
    if binary:
        tensor.parameters = {"binary_data_size": sum(array.nbytes for array in arrays)}
        return tensor, [_raw(array) for array in arrays]
    if datatype == "FP16":
        raise BadRequest(f"output {name!r} is FP16, which has no JSON form; ask for binary_data")
    tensor.data = [number for array in arrays for number in array.reshape(-1).tolist()]
    return tensor, None


def _from_binary(spec: Port, shape: tuple[int, ...], body: Body, offset: int, nbytes: int) -> object:
    where = f"input {spec.name!r}"
    count = math.prod(shape)
    if spec.datatype == "BYTES":
        return _value(spec, _split(where, body.view[offset : offset + nbytes], count))
    dtype = NUMPY_OF[spec.datatype]
    if nbytes != count * dtype.itemsize:
        raise BadRequest(
            f"{where}: {spec.datatype} {list(shape)} takes {count * dtype.itemsize} bytes, got {nbytes} bytes"
        )
    if spec.datatype == "BOOL" and nbytes and np.frombuffer(body.view, np.uint8, nbytes, offset).max() > 1:
        raise BadRequest(f"{where}: a BOOL is one byte, 0 or 1; got another value")
    return body.ref(offset, nbytes, _NUMPY_NAME_OF[spec.datatype], shape)


def _split(where: str, data: memoryview, count: int) -> list[bytes]:
    """Elements of a BYTES tensor: each a length (u32) and as many bytes."""
    if count * 4 > len(data):
        raise BadRequest(f"{where}: {count} BYTES elements take at least {count * 4} bytes, got {len(data)} bytes")
    elements = []
    at = 0
    for index in range(count):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if at + 4 > len(data) or end > len(data):
            raise BadRequest(
                f"{where}: element {index} of {count} reaches beyond the {len(data)} bytes of the tensor"
            )
        elements.append(bytes(data[at + 4 : end]))
        at = end
    if at != len(data):
        raise BadRequest(f"{where}: {len(data) - at} bytes are left over after its {count} elements")
    return elements


_NESTING = re.compile(rb"[\s\[]*")


def _from_json(where: str, datatype: str, shape: tuple[int, ...], text: bytes) -> npt.NDArray[Any] | list[bytes]:
    """Data of a JSON tensor, flat or nested as its shape is."""
    if not text:
        raise BadRequest(f"{where} has no data: neither data nor the parameter binary_data_size")
    if datatype == "FP16":
        raise BadRequest(f"{where} is FP16, which has no JSON form; send it in binary")
    count = math.prod(shape)
    if not count:
        if text.strip(b"[] ,\t\r\n"):
            raise BadRequest(f"{where}: shape {list(shape)} has 0 elements, data has some")
        return [] if datatype == "BYTES" else np.empty(shape, NUMPY_OF[datatype])
    depth = _NESTING.match(text)[0].count(b"[")  # type: ignore[index]  # the pattern matches anything
    if depth not in (1, len(shape)):
        raise BadRequest(f"{where}: data must be a flat list or nested like its shape {list(shape)}")
    if datatype != "BYTES" and text.count(b",") + 1 != count:  # of lists in lists, too, if none is empty
        raise BadRequest(f"{where}: shape {list(shape)} has {count} elements, data has {text.count(b',') + 1}")
    try:
        data = _json_decoder(datatype, depth).decode(text)
        array = np.array(data, object if datatype == "BYTES" else NUMPY_OF[datatype])
    except UnicodeDecodeError as error:
        raise BadRequest(f"{where}: data is not UTF-8 text: {error.reason}") from None
    except (ValueError, OverflowError) as error:  # msgspec's errors are ValueErrors
        raise BadRequest(f"{where}: data does not fit {datatype} {list(shape)}: {error}") from None
    if array.shape != shape and (depth > 1 or array.size != count):
        raise BadRequest(f"{where}: shape {list(shape)} has {count} elements, data has shape {list(array.shape)}")
    return [item.encode() for item in array.flat] if datatype == "BYTES" else array.reshape(shape)


@cache
def _json_decoder(datatype: str, depth: int) -> msgspec.json.Decoder[Any]:
    """Lists of lists of elements of one datatype, checked against its range while they are read."""
    element: Any
    if datatype == "BYTES":
        element = str
    elif datatype == "BOOL":
        element = bool
    elif datatype.startswith("FP"):
        largest = float(np.finfo(NUMPY_OF[datatype]).max)
        element = Annotated[float, msgspec.Meta(ge=-largest, le=largest)]
    elif datatype == "UINT64":
        element = Annotated[int, msgspec.Meta(ge=0)]  # msgspec's bounds end at 2**63; numpy checks the rest
    else:
        bounds = np.iinfo(NUMPY_OF[datatype])
        element = Annotated[int, msgspec.Meta(ge=int(bounds.min), le=int(bounds.max))]
    for _ in range(depth):
        element = list[element]
    return msgspec.json.Decoder(element)


def _value(spec: Port, content: npt.NDArray[Any] | list[bytes]) -> object:
    return content[0] if spec.datatype == "BYTES" and spec.shape == (1,) else content


def _describe(
    name: str, value: object, elements: Elements
) -> tuple[str, tuple[int, ...], npt.NDArray[Any] | list[bytes]]:
    """Datatype, shape, and either a numeric array or the elements of a BYTES tensor."""
    if isinstance(value, np.generic | bool | float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        value = np.array([value])
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OSU":
            elements.add(f"output {name!r}", "BYTES", 0 if value.size <= MAX_TEXTS else value.size, True)
            return "BYTES", value.shape, [_text(name, item, elements) for item in value.reshape(-1).tolist()]
        datatype = _OIP_NAME_OF.get(value.dtype)
        if datatype is None:
            raise TypeError(f"output {name!r} is an array of {value.dtype}, which the protocol cannot carry")
        return datatype, value.shape, value
    if isinstance(value, list | tuple) and all(isinstance(item, str | bytes) for item in value):
        elements.add(f"output {name!r}", "BYTES", 0 if len(value) <= MAX_TEXTS else len(value), True)
        return "BYTES", (len(value),), [_text(name, item, elements) for item in value]
    return "BYTES", (1,), [_text(name, value, elements)]


def _text(name: str, value: object, elements: Elements) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()

    def plain(part: object) -> object:
        """Numpy values inside a JSON text."""
        if isinstance(part, np.ndarray | np.generic):
            elements.add(f"output {name!r}", "", part.size, False)
            return part.tolist()
        raise TypeError(f"a {type(part).__name__} cannot be written as JSON")

    return msgspec.json.encode(value, enc_hook=plain)
