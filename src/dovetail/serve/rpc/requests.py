"""An inference as gRPC has it, read into what HTTP reads its JSON into; from there on the two are one.

Rule of this file: it finds out what was sent and where; whether that is sound is said by `oip_request` and `tensors`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ...errors import BadRequest
from ...workflow.tensor import NUMPY_OF
from ..backend import Backend, ModelInfo
from ..oip_records import MAX_TENSORS, InferRequest
from ..oip_request import Upload, checked
from ..oip_response import MODEL_VERSION, Outputs
from ..tensors import Elements
from .messages import message_class
from .wire import joined

__all__ = ["header_of", "response_bytes", "uploaded"]

MAX_PARAMETERS = 64  # of a request, and of each tensor
#: Datatype -> the list of `contents` that has its elements.
_LISTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def _parameters(given: Any) -> dict[str, Any]:
    if len(given) > MAX_PARAMETERS:
        raise BadRequest(f"{len(given)} parameters are more than {MAX_PARAMETERS}")
    found = {}
    for name, value in given.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise BadRequest(f"the parameter {name} has no value")
        found[name] = getattr(value, choice)
    return found


def header_of(message: Any, raw: list[memoryview]) -> tuple[InferRequest, list[bytes | memoryview]]:
    """What a `ModelInferRequest` says, and the bytes of its tensors in order."""
    if len(message.inputs) > MAX_TENSORS or len(message.outputs) > MAX_TENSORS:
        raise BadRequest(f"a request has at most {MAX_TENSORS} inputs and as many outputs")
    inputs: list[dict[str, Any]] = []
    tensors: list[bytes | memoryview] = []
    waiting = iter(raw)
    elements = Elements()
    for given in message.inputs:
        parameters = _parameters(given.parameters)
        if "shared_memory_region" not in parameters:
            data = _contents(given, elements) if given.HasField("contents") else next(waiting, None)
            if data is None:
                raise BadRequest(
                    f"input {given.name!r} has no data: neither contents, nor raw_input_contents, nor a region"
                )
            tensors.append(data)
            parameters["binary_data_size"] = len(data)
        if len(given.shape) > MAX_TENSORS:
            raise BadRequest(f"input {given.name!r} has {len(given.shape)} dimensions")
        inputs.append(
            {
                "name": given.name,
                "datatype": given.datatype,
                "shape": list(given.shape),
                "parameters": parameters,
            }
        )
    if (left := len(list(waiting))) > 0:
        raise BadRequest(f"{left} of raw_input_contents belong to no input")
    header = {
        "id": message.id,
        "parameters": _parameters(message.parameters),
        "inputs": inputs,
        "outputs": [{"name": each.name, "parameters": _parameters(each.parameters)} for each in message.outputs],
    }
    try:
        found = msgspec.convert(header, InferRequest)
    except msgspec.ValidationError as error:
        raise BadRequest(f"this is not an inference request: {error}") from None
    found.parameters["binary_data_output"] = True  # answers are raw
    return checked(found), tensors


def _contents(given: Any, elements: Elements) -> bytes:
    """Elements that were sent one by one, as raw bytes."""
    where = f"input {given.name!r}"
    name = _LISTS.get(given.datatype)
    if name is None:
        raise BadRequest(f"{where}: {given.datatype} has no form in contents; send it in raw_input_contents")
    extra = [field.name for field, _ in given.contents.ListFields() if field.name != name]
    if extra:
        raise BadRequest(f"{where} is {given.datatype}, which goes into {name}; got {', '.join(extra)}")
    values = getattr(given.contents, name)
    elements.add(where, given.datatype, len(values), False)
    if given.datatype == "BYTES":
        return b"".join([part for value in values for part in (len(value).to_bytes(4, "little"), value)])
    dtype = NUMPY_OF[given.datatype]
    if values and dtype.kind in "iu" and not np.iinfo(dtype).min <= min(values) <= max(values) <= np.iinfo(dtype).max:
        raise BadRequest(f"{where}: contents do not fit {given.datatype}")
    return np.array(list(values), dtype).tobytes()


def uploaded(backend: Backend, info: ModelInfo, tensors: list[bytes | memoryview], priority: int) -> Upload:
    """The tensors in memory that models read. This is the one copy of a request."""
    nbytes = sum(map(len, tensors))
    upload = Upload(backend, info, nbytes, 0, priority)
    at = 0
    for tensor in tensors:
        upload.view[at : at + len(tensor)] = tensor
        at += len(tensor)
    return upload


_Response = message_class("ModelInferResponse")


def response_bytes(outputs: Outputs) -> bytes:
    """An answer, serialised."""
    call = outputs.call
    response = _Response(model_name=call.model, model_version=MODEL_VERSION, id=call.request_id)
    _write(response.parameters, outputs.parameters)
    for tensor in outputs.tensors:
        one = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if "shared_memory_region" in tensor.parameters:
            _write(one.parameters, tensor.parameters)
    # Clients find a tensor by its place in the list, so what went to shared memory is an empty one.
    return joined(response.SerializeToString(), [parts or [] for parts in outputs.raw])


def _write(target: Any, parameters: dict[str, bool | int | float | str]) -> None:
    for name, value in parameters.items():
        if isinstance(value, bool):
            target[name].bool_param = value
        elif isinstance(value, int):
            target[name].int64_param = value
        elif isinstance(value, float):
            target[name].double_param = value
        else:
            target[name].string_param = value
