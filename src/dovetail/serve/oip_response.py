"""What clients of the Open Inference Protocol are answered: results, refusals, and what is known of models.

Rule of this file: the status tells a client what to do. 400 to 421 change the request, 429 and 503 come back after
`Retry-After`, 504 it is too late, 500 tell us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from urllib.parse import unquote

import msgspec

from ..errors import BadRequest, Forbidden, Overloaded, QuotaExceeded, Unauthorized
from ..workflow.graph import Port
from .backend import Answer, Call, ModelInfo, SliceWanted
from .framing import HttpError, HttpResponse
from .oip_records import InferResponse, OutputTensor, Parameters, Region, Which
from .shared_memory import Held
from .tensors import Elements, encode

__all__ = [
    "HEADER_LENGTH",
    "MODEL_VERSION",
    "Outputs",
    "Question",
    "as_refusal",
    "config_of",
    "http_of",
    "index_of",
    "json_of",
    "metadata_of",
    "outcome_of",
    "ready_asked",
    "region_asked",
    "region_of",
    "slice_of",
]

MODEL_VERSION = "1"  # a workflow is deployed as a whole; there is never a second version beside it
HEADER_LENGTH = "Inference-Header-Content-Length"
_BINARY = "application/octet-stream"
#: Nobody knows further ahead than this when there will be room. [our choice]
MOST_RETRY_MS = 60_000
_REFUSALS = {"shed": 429, "expired": 504, "failed": 500, "cancelled": 499}


class Question:
    """A small body that is read as a whole."""

    def __init__(self, nbytes: int) -> None:
        self.data = bytearray(nbytes)
        self.view = memoryview(self.data)

    def release(self) -> None:
        """It is on the heap, and goes by itself."""


class Outputs(msgspec.Struct):
    """A call that was answered: its outputs as clients read them, and the raw bytes of what goes out in binary."""

    call: Call
    tensors: list[OutputTensor]
    raw: list[list[bytes | memoryview] | None]  # for each tensor; None: its data are in it
    parameters: Parameters
    release: Callable[[], None] | None  # once nothing of `raw` is read any more


def outcome_of(
    info: ModelInfo, call: Call, wanted: dict[str, bool | Held], binary: bool, answer: Answer | Exception
) -> Outputs | Exception:
    """What a call is answered, however it ended; outputs that go to shared memory are there then."""
    if isinstance(answer, Exception):
        return as_refusal(answer)
    try:
        if answer.outcome in ("ok", "late"):
            return _outputs(info, call, wanted, binary, answer)
        refusal: Exception = _failure(answer)
    except Exception as error:
        refusal = as_refusal(error)
    if answer.release is not None:
        answer.release()
    return refusal


def as_refusal(error: Exception) -> Exception:
    """What a client is told of an error; what it should not know is left as it is."""
    if isinstance(error, Unauthorized):
        return HttpError(401, str(error), ("WWW-Authenticate", 'Bearer realm="dovetail"'))
    if isinstance(error, Forbidden):
        return HttpError(403, str(error))
    if isinstance(error, BadRequest):
        return HttpError(400, str(error))
    if isinstance(error, Overloaded):
        status = 429 if isinstance(error, QuotaExceeded) else 503
        return HttpError(status, str(error), *_come_back(error.retry_after_ms), more=_numbered(error.request))
    return error


def _numbered(request: int) -> dict[str, object]:
    """An answer without results to a request that the log has says under which number (`dovetail explain`)."""
    return {"dovetail_request": request} if request else {}


def _come_back(after_ms: int) -> tuple[tuple[str, str], ...]:
    """Whole seconds, which is all that `Retry-After` can say, and the exact time beside it.

    Nothing for a request that would be refused again whenever it came.
    """
    if after_ms <= 0:
        return ()
    after_ms = min(after_ms, MOST_RETRY_MS)
    return ("Retry-After", str(max(1, math.ceil(after_ms / 1000)))), ("retry-after-ms", str(after_ms))


def json_of(content: object, status: int = 200) -> HttpResponse:
    """An answer in JSON."""
    return HttpResponse(status, [msgspec.json.encode(content)])


def ready_asked(question: Question | None) -> bool:
    """Whether a question for the index is for those that are ready only."""
    try:
        return msgspec.json.decode(question.data, type=Which).ready if question is not None else False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f'a question for the index is {{"ready": true}}, or nothing: {error}') from None


def index_of(models: Mapping[str, ModelInfo], only_ready: bool) -> list[dict[str, str]]:
    """All workflows, or those that are ready."""
    return [
        {
            "name": info.name,
            "version": MODEL_VERSION,
            "state": "READY" if info.ready else "UNAVAILABLE",
            "reason": "" if info.ready else "a stage has no worker",
        }
        for info in models.values()
        if info.ready or not only_ready
    ]


def region_asked(question: Question | None) -> Region:
    """The object that a client wants to register."""
    try:
        return msgspec.json.decode(b"" if question is None else question.data, type=Region)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f'a region is {{"key": "/name", "offset": 0, "byte_size": 4096}}: {error}') from None


def region_of(path: str, rest: list[str]) -> tuple[str, str]:
    """The region that a path below /v2/systemsharedmemory names ("": all), and what is wanted of it."""
    match rest:
        case ["region", name, ("status" | "register" | "unregister") as action] if name:
            return unquote(name), action
        case [("status" | "unregister") as action]:
            return "", action
    raise HttpError(404, f"no such path: {path}")


def slice_of(question: Question | None) -> SliceWanted:
    """The slice that a body asks for."""
    try:
        return msgspec.json.decode(b"{}" if question is None else question.data, type=SliceWanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        form = '{"share": 50, "quota": 30, "worker": "cpu-0"}'
        raise HttpError(400, f"a slice is {form}, or part of it: {error}") from None


def metadata_of(info: ModelInfo) -> dict[str, object]:
    """A model as the protocol describes it."""
    return {
        "name": info.name,
        "versions": [MODEL_VERSION],
        "platform": info.platform,
        "inputs": info.inputs,
        "outputs": info.outputs,
    }


def config_of(info: ModelInfo) -> dict[str, object]:
    """As Triton prints a model configuration; batching is ours and clients see none of it."""

    def tensors(specs: tuple[Port, ...]) -> list[dict[str, object]]:
        kinds = {"BYTES": "STRING"}
        return [
            {"name": spec.name, "data_type": f"TYPE_{kinds.get(spec.datatype, spec.datatype)}", "dims": spec.shape}
            for spec in specs
        ]

    return {
        "name": info.name,
        "platform": info.platform,
        "backend": "dovetail",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": tensors(info.inputs),
        "output": tensors(info.outputs),
        **info.config,
    }


def _outputs(info: ModelInfo, call: Call, wanted: dict[str, bool | Held], binary: bool, answer: Answer) -> Outputs:
    if not wanted:
        wanted = dict.fromkeys(answer.outputs, binary)
    elif missing := [name for name in wanted if name not in answer.outputs]:
        raise HttpError(500, f"{call.model!r} gave no output {', '.join(map(repr, missing))}")
    elements = Elements()
    declared = {spec.name: spec.datatype for spec in info.outputs}
    tensors: list[OutputTensor] = []
    raws: list[list[bytes | memoryview] | None] = []
    for name, how in wanted.items():
        datatype = declared.get(name, "")
        tensor, raw = encode(name, answer.outputs[name], how is not False, elements, datatype)
        tensors.append(tensor)
        raws.append(raw)
    for index, how in enumerate(wanted.values()):  # after all of them were found sound
        if type(how) is Held:
            tensors[index], raws[index] = _shared(how, tensors[index], raws[index])
    parameters = {**answer.parameters, "dovetail_outcome": answer.outcome}
    return Outputs(call, tensors, raws, parameters, answer.release)


def _shared(held: Held, tensor: OutputTensor, raw: list[bytes | memoryview] | None) -> tuple[OutputTensor, None]:
    """An output that went to a client's shared memory."""
    place = held.place
    tensor.parameters = {
        "shared_memory_region": place.region,
        "shared_memory_offset": place.offset,
        "shared_memory_byte_size": held.write(raw or []),
    }
    return tensor, None


def http_of(outcome: Outputs | Exception) -> HttpResponse | Exception:
    """The same over HTTP: JSON, and behind it what goes out in binary."""
    if isinstance(outcome, Exception):
        return outcome
    call = outcome.call
    head = msgspec.json.encode(
        InferResponse(call.model, MODEL_VERSION, outcome.tensors, outcome.parameters, call.request_id)
    )
    parts: list[bytes | memoryview] = [head]
    in_json = True
    for raw in outcome.raw:
        if raw is not None:
            in_json = False
            parts += raw
    if in_json:
        return HttpResponse(200, parts, release=outcome.release)
    return HttpResponse(200, parts, ((HEADER_LENGTH, str(len(head))),), _BINARY, release=outcome.release)


def _failure(answer: Answer) -> HttpError:
    status = _REFUSALS[answer.outcome]
    headers = _come_back(answer.retry_after_ms) if answer.outcome == "shed" else ()
    reason = answer.reason or f"the request was {answer.outcome}"
    number = _numbered(int(answer.parameters.get("dovetail_request", 0)))
    return HttpError(status, reason, *headers, close=answer.outcome == "cancelled", more=number)
