"""What the server answers to over HTTP, described as OpenAPI 3.1 has it: GET /openapi.json.

Rules of this file
- It holds data only. Every route is here, and each refusal that its route can give.
- Inferences are described model by model, with the tensors that each takes and gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from .. import __version__
from ..workflow.graph import Port
from .backend import ModelInfo
from .oip_records import MAX_DIM, MAX_RANK
from .oip_response import HEADER_LENGTH, MODEL_VERSION

__all__ = ["description"]

MAX_EXAMPLE = 256  # elements
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_PARAMETERS = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
    "description": "priority, timeout (µs), slo_ms, tenant, binary_data_output",
}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return {**found, "required": list(required)} if required else found


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_DIM}, "maxItems": MAX_RANK}
_SCHEMAS = {
    "Error": _object(("error",), error=_TEXT, dovetail_request=_COUNT),
    "Tensor": _object(("name", "datatype", "shape"), name=_TEXT, datatype=_TEXT, shape={"type": "array"}),
    "OutputTensor": _object(
        ("name", "datatype", "shape"),
        name=_TEXT,
        datatype=_TEXT,
        shape={"type": "array", "items": {"type": "integer"}},
        parameters=_PARAMETERS,
        data={"type": "array"},
    ),
    "InferResponse": _object(
        ("model_name", "model_version", "outputs", "parameters"),
        model_name=_TEXT,
        model_version=_TEXT,
        id=_TEXT,
        parameters=_PARAMETERS,
        outputs={"type": "array", "items": _ref("OutputTensor")},
    ),
    "Region": _object(("key", "byte_size"), key=_TEXT, offset=_COUNT, byte_size=_COUNT),
}


def _json(schema: dict[str, Any], text: str = "The answer.") -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


_MEANING = {
    400: "The request is wrong; the text says what was expected.",
    401: "A key is needed, or another one.",
    403: "The client may not have what it asks for.",
    404: "There is no such model, version, region or path.",
    413: "The body is too large.",
    415: "The body is compressed in a way that is not supported, or a file for a model that takes none.",
    429: "Shed: come back after Retry-After.",
    500: "A stage failed; the text says why.",
    501: "This extension is not supported, or is off.",
    503: "Not ready, no memory, or no worker for a stage: come back after Retry-After.",
    504: "The timeout passed.",
}


def _refusals(*statuses: int) -> dict[str, Any]:
    return {str(status): _json(_ref("Error"), _MEANING[status]) for status in statuses}


def _get(summary: str, schema: dict[str, Any], *statuses: int, **more: Any) -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": {"200": _json(schema), **_refusals(*statuses)}, **more}}


def _post(summary: str, answer: dict[str, Any], body: dict[str, Any] | None, *statuses: int) -> dict[str, Any]:
    found = {"summary": summary, "responses": {"200": _json(answer), **_refusals(*statuses)}}
    if body is not None:
        found["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return {"post": found}


def _in_path(name: str, values: list[str] | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": {**schema, "enum": values} if values else schema}


def _tensor(port: Port) -> dict[str, Any]:
    """An input of a model in JSON."""
    dims = [_COUNT | {"maximum": MAX_DIM} if dim < 0 else {"const": dim} for dim in port.shape]
    shape = {"type": "array", "prefixItems": dims, "minItems": len(dims), "maxItems": len(dims)}
    return _object(
        ("name", "datatype", "shape"),
        name={"const": port.name},
        datatype={"const": port.datatype},
        shape=shape,
        parameters=_PARAMETERS,
        data={"type": "array", "description": "flat, or nested like the shape"},
    )


def _example(info: ModelInfo) -> dict[str, Any] | None:
    """The smallest request that a model takes, in JSON; None if that is long, or has no form."""
    inputs = []
    for port in info.inputs:
        shape = [max(dim, 1) for dim in port.shape]
        if port.datatype == "FP16" or math.prod(shape) > MAX_EXAMPLE:
            return None
        element: object = {"BYTES": "", "BOOL": False}.get(port.datatype, 0)
        data = [element] * math.prod(shape)
        inputs.append({"name": port.name, "datatype": port.datatype, "shape": shape, "data": data})
    return {"inputs": inputs}


def _infer(info: ModelInfo) -> dict[str, Any]:
    """The inference of one model."""
    count = len(info.inputs)
    tensors = {"anyOf": [_tensor(port) for port in info.inputs]}
    request = _object(
        ("inputs",),
        id={"type": "string", "maxLength": 256},
        parameters=_PARAMETERS,
        inputs={"type": "array", "items": tensors, "minItems": count, "maxItems": count},
        outputs={
            "type": "array",
            "items": _object(("name",), name={"enum": [port.name for port in info.outputs]}, parameters=_PARAMETERS),
        },
    )
    raw = {"schema": {"type": "string", "format": "binary"}}
    content: dict[str, Any] = {"application/json": {"schema": request}, "application/octet-stream": raw}
    if (example := _example(info)) is not None:
        content["application/json"]["examples"] = {"smallest": {"value": example}}
    if [(port.datatype, port.shape) for port in info.inputs] == [("BYTES", (1,))]:
        content |= {"image/*": raw, "audio/*": raw, "video/*": raw}
    answer = _json(_ref("InferResponse"), "Outputs; the outcome is ok or late.")
    answer["content"]["application/octet-stream"] = raw
    headers = [
        {"name": HEADER_LENGTH, "in": "header", "schema": _COUNT, "description": "bytes of JSON before raw tensors"},
        {"name": "X-Dovetail-Priority", "in": "header", "schema": {"type": "integer", "minimum": 0, "maximum": 10}},
        {"name": "X-Dovetail-Slo-Ms", "in": "header", "schema": {"type": "number", "minimum": 0}},
        {"name": "X-Dovetail-Tenant", "in": "header", "schema": {"type": "string", "maxLength": 256}},
    ]
    return {
        "post": {
            "summary": f"Run {info.name}: {_ports(info.inputs)} -> {_ports(info.outputs)}",
            "parameters": headers,
            "requestBody": {"required": True, "content": content},
            "responses": {"200": answer, **_refusals(400, 401, 403, 413, 415, 429, 500, 503, 504)},
        }
    }


def _ports(ports: tuple[Port, ...]) -> str:
    return ", ".join(f"{port.name} {port.datatype} {list(port.shape)}" for port in ports)


def description(models: Mapping[str, ModelInfo], shared_memory: bool) -> dict[str, Any]:
    """The whole server, with its models."""
    names, any_object = sorted(models), {"type": "object"}
    flag = {"type": "boolean"}
    metadata = _object(
        ("name", "versions", "platform", "inputs", "outputs"),
        inputs={"type": "array", "items": _ref("Tensor")},
        outputs={"type": "array", "items": _ref("Tensor")},
    )
    paths: dict[str, Any] = {
        "/v2": _get("What the server is", _object(("name", "version", "extensions"))),
        "/v2/health/live": _get("Whether it lives", _object(("live",), live=flag)),
        "/v2/health/ready": _get("Whether all models are ready", _object(("ready",), ready=flag), 503),
        "/v2/models/stats": _get("Statistics of all models", _object(("model_stats",))),
        "/v2/repository/index": _post("All models", {"type": "array"}, _object(ready=flag), 400),
        "/v2/slices": _get("What clients with a quota have", _object(("slices",))),
        "/v2/slices/{client}": {
            "parameters": [_in_path("client")],
            **_post(
                "Give a client another slice",
                any_object,
                _object(share=_COUNT, quota=_COUNT, worker=_TEXT),
                400,
                403,
                404,
            ),
        },
        "/openapi.json": _get("This description", any_object),
        "/metrics": {
            "get": {
                "summary": "Everything that is measured, in Prometheus' text form",
                "responses": {"200": {"description": "Metrics.", "content": {"text/plain": {"schema": _TEXT}}}},
            }
        },
    }
    of_model = {"": metadata, "/config": any_object, "/stats": any_object, "/ready": _object(("ready",), ready=flag)}
    for version in ("", "/versions/{version}"):
        given = [_in_path("model", names), *([_in_path("version", [MODEL_VERSION])] if version else [])]
        for what, schema in of_model.items():
            refusals = (404, 503) if what == "/ready" else (404,)
            path = f"/v2/models/{{model}}{version}{what}"
            paths[path] = {"parameters": given, **_get(what.strip("/") or "metadata", schema, *refusals)}
    for info in models.values():
        paths[f"/v2/models/{quote(info.name)}/infer"] = _infer(info)
    if shared_memory:
        region = {"parameters": [_in_path("region")]}
        below = "/v2/systemsharedmemory"
        register = _post("Register a region", any_object, _ref("Region"), 400)
        paths |= {
            f"{below}/status": _get("All regions", {"type": "array"}),
            f"{below}/unregister": _post("Forget all regions", any_object, None),
            f"{below}/region/{{region}}/status": region | _get("One region", {"type": "array"}, 404),
            f"{below}/region/{{region}}/register": region | register,
            f"{below}/region/{{region}}/unregister": region | _post("Forget a region", any_object, None),
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dovetail",
            "version": __version__,
            "description": "The Open Inference Protocol v2, with Triton's extensions that GET /v2 lists.",
        },
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }
