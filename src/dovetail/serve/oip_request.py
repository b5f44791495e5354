"""What an inference request says: its JSON and the tensors behind it, read and checked.

Rule of this file: everything that a client can get wrong is found here, and said with what was expected.
"""

from __future__ import annotations

import math

import msgspec

from ..errors import BadRequest
from ..workflow.graph import Port
from .backend import BODY_ALIGN_BYTES, Backend, Body, Call, ModelInfo
from .framing import HttpError
from .oip_records import MAX_NAME_CHARS, InferRequest, Parameters, Peek
from .shared_memory import Regions, SharedPlace, shared_place, turned_on
from .tensors import MAX_JSON_ELEMENTS, Elements, decode, decode_raw

__all__ = [
    "Known",
    "Place",
    "Upload",
    "Wanted",
    "call_of",
    "checked",
    "claimed",
    "file_type",
    "inputs_of",
    "parse",
    "peek",
    "read_raw",
    "wanted_of",
]

LONGEST_MS = 1e12  # a longer objective, 31 years, is none
_FILES = ("image/", "audio/", "video/")  # content types that are one element of BYTES
_UNSUPPORTED = {"classification", "sequence_id"}  # silence would give wrong results


_decode_request = msgspec.json.Decoder(InferRequest).decode


Place = tuple[int, int, str, tuple[int, ...]]
#: Outputs that were asked for by name: whether each goes out in binary, or where in shared memory; empty: all.
Wanted = dict[str, bool | SharedPlace]


class Known(msgspec.Struct, frozen=True, gc=False):
    """The JSON of a request that was read before and found sound. All its tensors came in binary and are not looked
    into, so that the same JSON before as many bytes means the same again."""

    #: Of the model that it was read for.
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    #: Without inputs.
    call: Call
    places: tuple[tuple[str, Place], ...]
    wanted: Wanted
    binary: bool


class Upload:
    """The body of an inference request, placed so that models can read its first binary tensor aligned."""

    def __init__(self, backend: Backend, info: ModelInfo, nbytes: int, json_bytes: int, priority: int = 0) -> None:
        self.info = info
        self.json_bytes = json_bytes
        self._pad = -json_bytes % BODY_ALIGN_BYTES if json_bytes < nbytes else 0
        #: Where the tensors lie that were asked for: arguments of `ref`.
        self.places: list[Place] = []
        self._backend, self._priority = backend, priority
        self._body = backend.body(info.name, max(1, nbytes + self._pad), priority, info.generation)
        self._more: list[Body] = []
        self.view = self._body.view[self._pad : self._pad + nbytes]

    def ref(self, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]) -> object:
        self.places.append((offset, nbytes, dtype, shape))
        return self._body.ref(self._pad + offset, nbytes, dtype, shape)

    def more(self, nbytes: int) -> Body:
        """Room for what comes from elsewhere; it goes with the rest."""
        more = self._backend.body(self.info.name, max(1, nbytes), self._priority, self.info.generation)
        self._more.append(more)
        return self._more[-1]

    def release(self) -> None:
        self._body.release()
        for body in self._more:
            body.release()


def parse(text: bytes) -> InferRequest:
    try:
        header = _decode_request(text)
    except UnicodeDecodeError as error:
        raise BadRequest(f"the JSON is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise BadRequest("the JSON is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise BadRequest(f"this is not an inference request: {error}") from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"{error}, in {len(text)} bytes of JSON") from None
    return checked(header)


def checked(header: InferRequest) -> InferRequest:
    """The same, if it asks for nothing that we do not do."""
    given = [header.parameters, *(each.parameters for each in header.inputs)]
    given += [each.parameters for each in header.outputs]
    for parameters in given:
        for name in _UNSUPPORTED & parameters.keys():
            raise BadRequest(f"the parameter {name} is not supported")
    return header


def file_type(headers: dict[str, str]) -> str:
    """The type of a body that is a picture, a sound or a film; empty if it is something else."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind if kind.startswith(_FILES) else ""


def read_raw(info: ModelInfo, upload: Upload, headers: dict[str, str]) -> tuple[InferRequest, dict[str, object]]:
    """A body without JSON: the bytes of the only input, or a file as it is, for a model that takes one.

    Answers to a file are JSON unless raw tensors are asked for; who sends raw tensors is answered in the same way.
    """
    if len(info.inputs) != 1:
        raise BadRequest(f"a request without JSON needs a model with one input; {info.name!r} has {len(info.inputs)}")
    (port,) = info.inputs
    kind = file_type(headers)
    if kind and (port.datatype, port.shape) != ("BYTES", (1,)):
        raise HttpError(
            415,
            f"{info.name!r} takes {port.datatype} {list(port.shape)}, and no {kind}; send tensors, or declare its "
            'input as tensor("bytes", 1) and let its first stage open the file',
        )
    binary = not kind or "application/octet-stream" in headers.get("accept", "")
    header = InferRequest([], parameters={"binary_data_output": binary})
    return header, {port.name: decode_raw(port, upload)}


def inputs_of(
    info: ModelInfo, header: InferRequest, upload: Upload, regions: Regions | None = None
) -> dict[str, object]:
    """The values of all inputs, each exactly once; binary ones lie behind the JSON in the order they are listed.

    `regions` is None where shared memory is off.
    """
    specs = {spec.name: spec for spec in info.inputs}
    values: dict[str, object] = {}
    at = upload.json_bytes
    elements = Elements()
    for tensor in header.inputs:
        if tensor.name not in specs:
            raise BadRequest(f"unknown input {tensor.name!r}; {info.name!r} takes {_names(info.inputs)}")
        if tensor.name in values:
            raise BadRequest(f"input {tensor.name!r} is given twice")
        place = shared_place(tensor.parameters)
        if place is None:
            values[tensor.name], nbytes = decode(specs[tensor.name], tensor, upload, at, elements)
            at += nbytes
        else:
            body = _copied(place, upload, turned_on(regions))
            tensor.parameters = {"binary_data_size": place.nbytes}
            values[tensor.name], _ = decode(specs[tensor.name], tensor, body, 0, elements)
    missing = [name for name in specs if name not in values]
    if missing:
        raise BadRequest(f"missing input {', '.join(map(repr, missing))}; {info.name!r} takes {_names(info.inputs)}")
    if at != len(upload.view):
        raise BadRequest(f"{len(upload.view) - at} bytes are left over after the last binary tensor")
    return values


def _copied(place: SharedPlace, upload: Upload, regions: Regions) -> Body:
    """A tensor of a client's shared memory, in ours."""
    held = regions.hold(place)
    try:
        body = upload.more(place.nbytes)
        held.read_into(body.view)
        return body
    finally:
        held.release()


def wanted_of(info: ModelInfo, header: InferRequest) -> Wanted:
    """The requested outputs and how each goes out; empty if all are wanted."""
    datatypes = {spec.name: spec.datatype for spec in info.outputs}
    shapes = {spec.name: spec.shape for spec in info.outputs}
    everything = _flag(header.parameters, "binary_data_output", False)
    wanted: Wanted = {}
    for output in header.outputs:
        if output.name not in datatypes:
            raise BadRequest(f"unknown output {output.name!r}; {info.name!r} gives {_names(info.outputs)}")
        if output.name in wanted:
            raise BadRequest(f"output {output.name!r} is requested twice")
        place = shared_place(output.parameters)
        wanted[output.name] = place or _flag(output.parameters, "binary_data", everything)
    for name, in_binary in (wanted or dict.fromkeys(datatypes, everything)).items():
        if datatypes[name] == "FP16" and not in_binary:  # said now rather than after the work is done
            raise BadRequest(f"output {name!r} is FP16, which has no JSON form; ask for binary_data")
        count = math.prod(shapes[name])
        if count > MAX_JSON_ELEMENTS and min(shapes[name]) > 0 and not in_binary:
            raise BadRequest(
                f"output {name!r} has {count} elements, more than {MAX_JSON_ELEMENTS} in JSON; ask for binary_data"
            )
    return wanted


def _names(specs: tuple[Port, ...]) -> str:
    return ", ".join(repr(spec.name) for spec in specs)


def _flag(parameters: Parameters, name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise BadRequest(f"the parameter {name} must be true or false, got {value!r}")
    return value


def claimed(headers: dict[str, str]) -> int:
    """The class that the head of a request claims; 0 if none."""
    text = headers.get("x-dovetail-priority")
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadRequest(f"X-Dovetail-Priority must be a class from 1 (highest) on, got {text!r}")
    return int(text)


def peek(text: bytes) -> int:
    """The class that the JSON of a request claims; 0 if none, or if it is not sound, as will be told later."""
    try:
        priority = msgspec.json.decode(text, type=Peek).parameters.get("priority", 0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return priority if type(priority) is int and priority >= 0 else 0


def call_of(info: ModelInfo, header: InferRequest, inputs: dict[str, object], headers: dict[str, str]) -> Call:
    numbers: dict[str, int] = {}
    for name in ("priority", "timeout"):
        value = header.parameters.get(name, 0)
        if type(value) is not int or not 0 <= value < 2**63:
            raise BadRequest(f"the parameter {name} must be an integer from 0 on, got {value!r}")
        numbers[name] = value
    numbers["priority"] = claimed(headers) or numbers["priority"]
    slo = headers.get("x-dovetail-slo-ms", header.parameters.get("slo_ms", 0.0))
    try:
        slo_ms = math.nan if isinstance(slo, bool) else float(slo)
    except ValueError:
        slo_ms = math.nan
    if not 0 <= slo_ms < math.inf:
        raise BadRequest(f"slo_ms must be a number of milliseconds, got {slo!r}")
    tenant = headers.get("x-dovetail-tenant", header.parameters.get("tenant", ""))
    if not isinstance(tenant, str) or len(tenant) > MAX_NAME_CHARS:
        raise BadRequest(f"tenant must be a text of at most {MAX_NAME_CHARS} characters")
    slo_ms = min(slo_ms, LONGEST_MS)
    return Call(info.name, inputs, header.id, numbers["priority"], numbers["timeout"], slo_ms, tenant)
