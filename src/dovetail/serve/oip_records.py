"""What the JSON of the Open Inference Protocol v2 holds: requests, answers and small questions, as records."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

__all__ = [
    "MAX_DIM",
    "MAX_NAME_CHARS",
    "MAX_RANK",
    "MAX_TENSORS",
    "InferRequest",
    "InferResponse",
    "InputTensor",
    "OutputTensor",
    "Parameters",
    "Peek",
    "Region",
    "WantedOutput",
    "Which",
]

MAX_RANK = 16  # twice what any model of ours or of the public zoos has
MAX_DIM = 2**31 - 1  # a longer axis cannot be sent anyway, and products of 16 of them stay cheap
MAX_TENSORS = 64  # inputs, or requested outputs, of one request
MAX_NAME_CHARS = 256  # request ids and tenants: they go into logs and labels

Parameters = dict[str, bool | int | float | str]
_Dim = Annotated[int, msgspec.Meta(ge=0, le=MAX_DIM)]


class InputTensor(msgspec.Struct):
    """One entry of `inputs` in a request; `data` stays undecoded until shape and datatype are known to fit."""

    name: str
    datatype: str
    shape: Annotated[list[_Dim], msgspec.Meta(max_length=MAX_RANK)]
    parameters: Parameters = {}
    data: msgspec.Raw = msgspec.Raw()


class OutputTensor(msgspec.Struct, omit_defaults=True):
    """One entry of `outputs` in a response."""

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters = {}
    data: list[Any] | None = None


class WantedOutput(msgspec.Struct):
    """One entry of `outputs` in a request."""

    name: str
    parameters: Parameters = {}


class InferRequest(msgspec.Struct):
    """The JSON of an inference request."""

    inputs: Annotated[list[InputTensor], msgspec.Meta(max_length=MAX_TENSORS)]
    id: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)] = ""
    parameters: Parameters = {}
    outputs: Annotated[list[WantedOutput], msgspec.Meta(max_length=MAX_TENSORS)] = []


class Peek(msgspec.Struct):
    """What is looked at before there is room for the rest."""

    parameters: Parameters = {}


class InferResponse(msgspec.Struct, omit_defaults=True):
    """The JSON of an answer."""

    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    parameters: Parameters
    id: str = ""


class Which(msgspec.Struct):
    """The body of a question for the index."""

    ready: bool = False


class Region(msgspec.Struct):
    """The body of a question to register a region."""

    key: str
    byte_size: int
    offset: int = 0
