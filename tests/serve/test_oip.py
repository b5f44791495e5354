"""Routes, errors and outcomes, as raw requests see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.serve.support import MODELS, Server, Wire, infer, infer_body, until

from dovetail.serve.backend import BODY_ALIGN_BYTES
from dovetail.serve.oip import MAX_JSON_BYTES, MAX_KNOWN, OpenInference

pytestmark = pytest.mark.cpu
TENSOR: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}


def dump(**content: Any) -> bytes:
    return json.dumps({"inputs": [TENSOR], **content}).encode()


def binary(tensors: list[dict[str, Any]], data: bytes, **content: Any) -> tuple[bytes, str]:
    head = json.dumps({"inputs": tensors, **content}).encode()
    return head + data, str(len(head))


@pytest.mark.parametrize(
    "path",
    [
        "/v2", "/v2/", "/v2?x=1", "/v2/health/live", "/v2/health/ready", "/v2/models/stats",
        "/v2/models/add_one", "/v2/models/add_one/",
        "/v2/models/add_one/versions/1", "/v2/models/add_one/ready", "/v2/models/add_one/versions/1/ready",
        "/v2/models/add_one/config", "/v2/models/add_one/versions/1/config", "/v2/models/add_one/stats",
        "/v2/models/add_one/versions/1/stats", "/v2/models/no%20room", "http://elsewhere/v2",
    ],
)  # fmt: skip
def test_paths(wire: Wire, path: str) -> None:
    reply = wire.ask("GET", path)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.json
    refused = wire.ask("POST", path, b"x")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    [
        "/", "//", "/v1", "/v2/health", "/v2/health/deep", "/v2/models", "/v2/models/add_one//x",
        "/v2/models/add_one/versions", "/v2/models/add_one/versions/2", "/v2/models/add_one/versions/1/x",
        "/v2/models/absent", "/v2/models/%ff", "/v2/models/add_one%2fready", "/v2/models/add_one/versions/01/infer",
        "/v2/models//infer",
    ],
)  # fmt: skip
def test_unknown_paths(wire: Wire, path: str) -> None:
    assert wire.ask("GET", path).status == 404
    assert wire.ask("POST", path, infer_body()).status == 404
    assert wire.ask("GET", path).error


def test_unknown_names_say_what_is_known(wire: Wire) -> None:
    assert ", ".join(sorted(MODELS)) in wire.ask("GET", "/v2/models/absent").error
    assert "only version 1" in wire.ask("GET", "/v2/models/add_one/versions/2").error


def test_readiness(wire: Wire, make_server: Callable[..., Server]) -> None:
    reply = wire.ask("GET", "/v2/models/asleep/ready")
    assert (reply.status, reply.json) == (503, {"name": "asleep", "ready": False})
    with make_server(room_bytes=0).wire() as other:
        assert other.ask("GET", "/v2/health/ready").status == 503
        assert other.ask("GET", "/v2/health/live").status == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "needs a body"),
        (b"{", "truncated, in 1 bytes"),
        (b'{"inputs": [}', r"malformed: invalid character (byte 12)"),
        (b'{"inputs": []} x', "trailing characters (byte 1"),
        (b"\xff", "malformed"),
        (b'{"inputs": [{"name": "\xff"}]}', "not UTF-8"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `inputs`"),
        (b'{"inputs": 5}', "Expected `array`, got `int` - at `$.inputs`"),
        (b'{"inputs": [], "x": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"inputs": []}', "missing input 'x'; 'late' takes 'x'"),
        (dump(inputs=[TENSOR, TENSOR]), "input 'x' is given twice"),
        (dump(inputs=[TENSOR | {"name": "z"}]), "unknown input 'z'; 'late' takes 'x'"),
        (dump(inputs=[TENSOR] * 65), "length <= 64"),
        (dump(inputs=[TENSOR | {"datatype": "FP64"}]), "input 'x' has datatype FP32, got FP64"),
        (dump(inputs=[TENSOR | {"datatype": "BF16"}]), "got BF16"),
        (
            dump(inputs=[TENSOR | {"shape": [1, 2]}]),
            "has shape [2] (-1 is any length), got [1, 2]; a request carries",
        ),
        (dump(inputs=[TENSOR | {"shape": [3]}]), "has shape [2]"),
        (dump(inputs=[TENSOR | {"shape": [-2]}]), "Expected `int` >= 0 - at `$.inputs[0].shape[0]`"),
        (dump(inputs=[TENSOR | {"shape": [10**30]}]), "at `$.inputs[0].shape[0]`"),
        (dump(inputs=[TENSOR | {"shape": [1] * 17}]), "length <= 16"),
        (dump(inputs=[TENSOR | {"shape": 2}]), "Expected `array`"),
        (dump(inputs=[TENSOR | {"data": [1]}]), "has 2 elements, data has 1"),
        (dump(inputs=[{**TENSOR, "data": None}]), "flat list or nested"),
        (dump(inputs=[TENSOR | {"parameters": {"binary_data_size": 8}}]), "both data and binary_data_size"),
        (
            dump(inputs=[TENSOR | {"parameters": {"shared_memory_region": "r"}}]),
            "shared_memory_byte_size are numbers from 0 on; got 'r', 0 and None",
        ),
        (dump(parameters={"sequence_id": 1}), "sequence_id is not supported"),
        (dump(parameters={"deep": {}}), "at `$.parameters"),
        (dump(parameters={"priority": -1}), "priority must be an integer from 0 on, got -1"),
        (dump(parameters={"priority": True}), "priority must be"),
        (dump(parameters={"priority": 1.5}), "priority must be"),
        (dump(parameters={"timeout": "1"}), "timeout must be"),
        (dump(parameters={"slo_ms": -1}), "slo_ms must be"),
        (dump(parameters={"slo_ms": "soon"}), "slo_ms must be"),
        (dump(parameters={"slo_ms": True}), "slo_ms must be"),
        (dump(parameters={"tenant": 5}), "tenant must be"),
        (dump(parameters={"tenant": "t" * 257}), "tenant must be"),
        (dump(parameters={"binary_data_output": 1}), "binary_data_output must be true or false, got 1"),
        (dump(id=5), "Expected `str`, got `int` - at `$.id`"),
        (dump(id="i" * 257), "length <= 256"),
        (dump(outputs=[{"name": "z"}]), "unknown output 'z'; 'late' gives 'y'"),
        (dump(outputs=[{"name": "y"}, {"name": "y"}]), "requested twice"),
        (dump(outputs=[{"name": "y"}] * 65), "length <= 64"),
        (dump(outputs=[{"name": "y", "parameters": {"binary_data": "no"}}]), "binary_data must be true or false"),
        (dump(outputs=[{"name": "y", "parameters": {"classification": 3}}]), "classification is not supported"),
    ],
)
def test_bad_requests(wire: Wire, server: Server, body: bytes, says: str) -> None:
    before = len(server.backend.calls)
    reply = wire.send(infer("late", body)).reply()
    assert (reply.status, says in reply.error) == (400, True), reply.error
    assert len(server.backend.calls) == before
    assert wire.send(infer("late")).reply().status == 200  # on the same connection


@pytest.mark.parametrize(
    ("size", "data", "length", "says"),
    [
        (8, b"12345678", "5", "truncated"),
        (8, b"12345678", "9999", "must be a number within the body"),
        (8, b"12345678", "-1", "must be a number within the body"),
        (8, b"12345678", "5, 5", "must be a number within the body"),
        (8, b"12345678", "9" * 30, "must be a number within the body"),
        (8, b"1234567", None, "binary_data_size 8 does not fit the 7 bytes left"),
        (7, b"12345678", None, "FP32 [2] takes 8 bytes, got 7 bytes"),
        (8, b"123456789", None, "1 bytes are left over"),
        (-8, b"12345678", None, "binary_data_size -8 does not fit"),
        (True, b"12345678", None, "binary_data_size True does not fit"),
        ("8", b"12345678", None, "binary_data_size '8' does not fit"),
    ],
)
def test_bad_binary_requests(wire: Wire, size: Any, data: bytes, length: str | None, says: str) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": size}}
    body, right = binary([tensor], data)
    reply = wire.send(infer("late", body, Inference_Header_Content_Length=length or right)).reply()
    assert (reply.status, says in reply.error) == (400, True), reply.error


@pytest.mark.parametrize("padding", [0, 1, 31, 63, 200])
def test_the_first_binary_tensor_is_aligned(wire: Wire, server: Server, padding: int) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    body, length = binary([tensor], np.array([3, 4], np.float32).tobytes(), id="i" * padding)
    reply = wire.send(infer("late", body, Inference_Header_Content_Length=length)).reply()
    assert reply.json["outputs"][0]["data"] == [3, 4]
    received = server.backend.calls[-1].inputs["x"]
    assert isinstance(received, np.ndarray)
    assert received.ctypes.data % BODY_ALIGN_BYTES == 0


def test_the_same_json_again_is_read_with_its_own_data_length_and_headers(wire: Wire, server: Server) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
    for number in range(3):
        body, length = binary([tensor], np.full(4, number, np.float32).tobytes())
        reply = wire.send(infer("add_one", body, Inference_Header_Content_Length=length)).reply()
        assert reply.json["outputs"][0]["data"] == [number + 1] * 4
    reply = wire.send(infer("add_one", body + b"1", Inference_Header_Content_Length=length)).reply()
    assert reply.status == 400 and "1 bytes are left over" in reply.error
    reply = wire.send(infer("copy", body, Inference_Header_Content_Length=length)).reply()
    assert reply.status == 400 and "datatype UINT8" in reply.error
    hurried = infer("add_one", body, Inference_Header_Content_Length=length, X_Dovetail_Slo_Ms="5")
    assert wire.send(hurried).reply().status == 200
    assert [call.slo_ms for call in server.backend.calls[-4:]] == [0, 0, 0, 5]
    until(server.everything_returned)


def test_what_is_looked_into_is_looked_into_each_time(wire: Wire) -> None:
    shapes = [("pixels", "UINT8", [1, 3], 3), ("words", "BYTES", [1], 5), ("flags", "BOOL", [2], 2)]
    tensors = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": nbytes}}
        for name, datatype, shape, nbytes in shapes
    ]
    for flags, status in ((b"\0\1", 200), (b"\0\2", 400), (b"\1\1", 200)):
        body, length = binary(tensors, b"123" + b"\1\0\0\0w" + flags)
        assert wire.send(infer("mixed", body, Inference_Header_Content_Length=length)).reply().status == status


def test_as_many_requests_are_remembered_as_are_allowed(wire: Wire, server: Server) -> None:
    tensor = {"name": "x", "datatype": "UINT8", "parameters": {"binary_data_size": 1}}
    application = server.http.application
    assert isinstance(application, OpenInference)
    for number in range(MAX_KNOWN + 5):
        body, length = binary([tensor | {"shape": [1]}], b"1", parameters={"priority": number})
        assert wire.send(infer("copy", body, Inference_Header_Content_Length=length)).reply().status == 200
        assert len(application._known) <= MAX_KNOWN
    assert len(application._known) < MAX_KNOWN


def test_raw_binary_requests(wire: Wire) -> None:
    data = np.arange(8, dtype=np.float32).tobytes()
    reply = wire.send(infer("add_one", data, Inference_Header_Content_Length="0")).reply()
    length = int(reply.headers["inference-header-content-length"])
    assert json.loads(reply.body[:length])["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [2, 4], "parameters": {"binary_data_size": 32}}
    ]
    assert reply.headers["content-type"] == "application/octet-stream"
    assert np.frombuffer(reply.body[length:], np.float32).tolist() == list(range(1, 9))
    reply = wire.send(infer("reverse", b"abc", Inference_Header_Content_Length="0")).reply()
    assert reply.body.endswith(b"\x03\0\0\0cba")
    assert (
        "one input; 'mixed' has 3"
        in wire.send(infer("mixed", b"x", Inference_Header_Content_Length="0")).reply().error
    )
    assert (
        "takes 48 bytes"
        not in wire.send(infer("add_one", b"x" * 33, Inference_Header_Content_Length="0")).reply().error
    )


def test_half_floats_need_binary_outputs(wire: Wire, server: Server) -> None:
    before = len(server.backend.calls)
    tensor = {"name": "x", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}}
    body, length = binary([tensor], b"1234")
    assert "no JSON form" in wire.send(infer("half", body, Inference_Header_Content_Length=length)).reply().error
    assert len(server.backend.calls) == before
    body, length = binary([tensor], b"1234", outputs=[{"name": "y", "parameters": {"binary_data": True}}])
    reply = wire.send(infer("half", body, Inference_Header_Content_Length=length)).reply()
    assert reply.body.endswith(b"1234")
    body, length = binary(
        [tensor],
        b"1234",
        parameters={"binary_data_output": True},
        outputs=[{"name": "y", "parameters": {"binary_data": False}}],
    )
    assert wire.send(infer("half", body, Inference_Header_Content_Length=length)).reply().status == 400


@pytest.mark.parametrize(
    ("model", "status", "says", "close"),
    [
        ("shed", 429, "the request was shed", False),
        ("expired", 504, "the request was expired", False),
        ("failed", 500, "the request was failed", False),
        ("cancelled", 499, "the request was cancelled", True),
        ("refused", 400, "x must be sorted", False),
        ("no room", 503, "the queue is full", False),
        ("crash", 500, "internal error", False),
        ("forgetful", 200, None, False),
    ],
)
def test_outcomes(server: Server, model: str, status: int, says: str | None, close: bool) -> None:
    with server.wire() as wire:
        reply = wire.send(infer(model)).reply()
        assert reply.status == status
        assert says is None or says in reply.error
        assert "secret" not in reply.body.decode()
        assert reply.headers.get("connection") == ("close" if close else None)
        if status == 429:
            assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("2", "1500")
        if status == 503:
            assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("1", "20")
        assert wire.ended() if close else wire.send(infer("late")).reply().status == 200


def test_late_is_an_answer(wire: Wire) -> None:
    reply = wire.send(infer("late", infer_body(id="7"))).reply()
    assert reply.json == {
        "model_name": "late",
        "model_version": "1",
        "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}],
        "parameters": {"note": 7, "dovetail_outcome": "late"},
    }


def test_an_output_that_never_came(wire: Wire) -> None:
    reply = wire.send(infer("forgetful", infer_body(outputs=[{"name": "y"}]))).reply()
    assert (reply.status, reply.error) == (500, "'forgetful' gave no output 'y'")


def test_no_room_for_the_body(make_server: Callable[..., Server]) -> None:
    server = make_server(room_bytes=10_000)
    with server.wire() as wire:
        reply = wire.send(infer("copy", bytes(20_000), Inference_Header_Content_Length="0")).reply()
        assert (reply.status, reply.error) == (503, "no room for the body")
        assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("2", "1500")
        assert wire.send(infer("late")).reply().status == 200  # under pressure, a new connection would cost more


def test_json_is_bounded(wire: Wire) -> None:
    reply = wire.send(infer("late", b" " * (MAX_JSON_BYTES + 1))).reply()
    assert (reply.status, "send tensors in binary" in reply.error) == (413, True)
