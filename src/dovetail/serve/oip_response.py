"""What clients of the Open Inference Protocol are answered: results, refusals, and what is known of models.

Rule of this file: the status tells a client what to do. 400 to 421 change the request, 429 and 503 come back after
`Retry-After`, 504 it is too late, 500 tell us.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from ..errors import BadRequest, Forbidden, Overloaded
from ..workflow.graph import Port
from .backend import Answer, Call, ModelInfo, SliceWanted
from .framing import HttpError, HttpResponse
from .tensors import Elements, OutputTensor, Parameters, encode

__all__ = [
    "HEADER_LENGTH",
    "MODEL_VERSION",
    "Question",
    "as_refusal",
    "config_of",
    "index_of",
    "json_of",
    "metadata_of",
    "response_of",
    "slice_of",
]

MODEL_VERSION = "1"  # a workflow is deployed as a whole; there is never a second version beside it
HEADER_LENGTH = "Inference-Header-Content-Length"
_BINARY = "application/octet-stream"
#: Nobody knows further ahead than this when there will be room. [our choice]
MOST_RETRY_MS = 60_000
_REFUSALS = {"shed": 429, "expired": 504, "failed": 500, "cancelled": 499}


class _InferResponse(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    parameters: Parameters
    id: str = ""


class Question:
    """A small body that is read as a whole."""

    def __init__(self, nbytes: int) -> None:
        self.data = bytearray(nbytes)
        self.view = memoryview(self.data)

    def release(self) -> None:
        """It is on the heap, and goes by itself."""


class _Which(msgspec.Struct):
    """The body of a question for the index."""

    ready: bool = False


def response_of(
    info: ModelInfo, call: Call, wanted: dict[str, bool], binary: bool, answer: Answer | Exception
) -> HttpResponse | Exception:
    """What a call is answered, however it ended."""
    if isinstance(answer, Exception):
        return as_refusal(answer)
    try:
        return _success(info, call, wanted, binary, answer) if answer.outcome in ("ok", "late") else _failure(answer)
    except Exception as error:
        if answer.release is not None:
            answer.release()
        return as_refusal(error)


def as_refusal(error: Exception) -> Exception:
    """What a client is told of an error; what it should not know is left as it is."""
    if isinstance(error, Forbidden):
        return HttpError(403, str(error))
    if isinstance(error, BadRequest):
        return HttpError(400, str(error))
    if isinstance(error, Overloaded):
        return HttpError(503, str(error), *_come_back(error.retry_after_ms), more=_numbered(error.request))
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


def index_of(models: Mapping[str, ModelInfo], question: Question | None) -> list[dict[str, str]]:
    """All workflows, or those that are ready if that is asked."""
    try:
        which = msgspec.json.decode(question.data, type=_Which) if question is not None else _Which()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f'a question for the index is {{"ready": true}}, or nothing: {error}') from None
    return [
        {
            "name": info.name,
            "version": MODEL_VERSION,
            "state": "READY" if info.ready else "UNAVAILABLE",
            "reason": "" if info.ready else "a stage has no worker",
        }
        for info in models.values()
        if info.ready or not which.ready
    ]


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


def _success(info: ModelInfo, call: Call, wanted: dict[str, bool], binary: bool, answer: Answer) -> HttpResponse:
    wanted = wanted or dict.fromkeys(answer.outputs, binary)
    missing = [name for name in wanted if name not in answer.outputs]
    if missing:
        raise HttpError(500, f"{call.model!r} gave no output {', '.join(map(repr, missing))}")
    elements = Elements()
    declared = {spec.name: spec.datatype for spec in info.outputs}
    outputs = [
        encode(name, answer.outputs[name], in_binary, elements, declared.get(name, ""))
        for name, in_binary in wanted.items()
    ]
    parameters = {**answer.parameters, "dovetail_outcome": answer.outcome}
    tensors = [tensor for tensor, _ in outputs]
    head = msgspec.json.encode(_InferResponse(call.model, MODEL_VERSION, tensors, parameters, call.request_id))
    blobs = [raw for _, parts in outputs if parts is not None for raw in parts]
    if all(parts is None for _, parts in outputs):
        return HttpResponse(200, [head], release=answer.release)
    return HttpResponse(200, [head, *blobs], ((HEADER_LENGTH, str(len(head))),), _BINARY, release=answer.release)


def _failure(answer: Answer) -> HttpResponse:
    status = _REFUSALS[answer.outcome]
    headers = _come_back(answer.retry_after_ms) if answer.outcome == "shed" else ()
    reason = answer.reason or f"the request was {answer.outcome}"
    number = _numbered(int(answer.parameters.get("dovetail_request", 0)))
    response = HttpError(status, reason, *headers, close=answer.outcome == "cancelled", more=number).response()
    response.release = answer.release
    return response
