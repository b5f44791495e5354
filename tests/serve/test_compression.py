"""Bodies that come and go compressed, and files as they are."""

from __future__ import annotations

import gzip
import json
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.support import Server, Wire, infer, infer_body, request

from dovetail.serve.compression import CODINGS, accepted, compressed, inflated
from dovetail.serve.framing import HttpError, HttpResponse, Limits

PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
CPU = pytest.mark.cpu


@given(st.binary(max_size=5000), st.sampled_from(sorted(PACK)))
def test_what_is_unpacked_is_what_was_packed(data: bytes, coding: str) -> None:
    assert inflated(memoryview(PACK[coding](data)), coding, len(data)) == data
    response = compressed(HttpResponse(200, [data[:7], memoryview(data)[7:]]), coding)
    assert inflated(memoryview(b"".join(response.parts)), coding, len(data)) == data


@given(st.binary(max_size=300), st.sampled_from(sorted(PACK)))
def test_noise_is_refused(data: bytes, coding: str) -> None:
    for attempt in (data, PACK[coding](data)[:-1], PACK[coding](data) + b"x"):
        try:
            inflated(memoryview(attempt), coding, 1000)
        except HttpError as error:
            assert error.status in (400, 413)
        else:
            assert attempt is data


@pytest.mark.parametrize("coding", sorted(PACK))
def test_a_bomb_is_found_before_it_is_unpacked(coding: str) -> None:
    bomb = PACK[coding](bytes(50_000_000))
    assert len(bomb) < 60_000
    with pytest.raises(HttpError, match="larger than 1000000 bytes") as caught:
        inflated(memoryview(bomb), coding, 1_000_000)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("header", "kind", "size", "coding"),
    [
        ("gzip", "application/json", 5000, "gzip"),
        ("gzip", "application/json", 500, ""),
        ("gzip", "application/octet-stream", 5000, "gzip"),
        ("gzip, deflate", "application/octet-stream", 5000, ""),
        ("gzip, deflate, br", "application/json", 5000, "gzip"),
        ("gzip;q=0.2, deflate;q=0.8", "application/json", 5000, "deflate"),
        ("gzip;q=0, identity", "application/json", 5000, ""),
        ("gzip;q=nonsense", "application/json", 5000, ""),
        ("br", "application/json", 5000, ""),
        ("", "application/json", 5000, ""),
        (None, "application/json", 5000, ""),
    ],
)
def test_which_coding(header: str | None, kind: str, size: int, coding: str) -> None:
    headers = {} if header is None else {"accept-encoding": header}
    assert accepted(headers, HttpResponse(200, [bytes(size)], content_type=kind)) == coding


@CPU
@pytest.mark.parametrize("coding", sorted(CODINGS))
@pytest.mark.parametrize("count", [200, 3_000_000])
def test_both_ways(wire: Wire, server: Server, coding: str, count: int) -> None:
    """A small one is compressed at once, a large one by a thread."""
    values = np.arange(count, dtype=np.uint8)
    tensor = {"name": "x", "datatype": "UINT8", "shape": [count], "parameters": {"binary_data_size": count}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body = PACK[coding](head + values.tobytes())
    headers = {
        "Content_Encoding": coding,
        "Inference_Header_Content_Length": str(len(head)),
        "Accept_Encoding": coding,
    }
    for _ in range(2):
        reply = wire.send(infer("copy", body, **headers)).reply()
        assert reply.status == 200
        small = count < 1000
        assert reply.headers.get("content-encoding") == (None if small else coding)
        plain = reply.body if small else inflated(memoryview(reply.body), coding, 1 << 30)
        assert plain.endswith(values.tobytes())
        assert json.loads(plain[: int(reply.headers["inference-header-content-length"])])["model_name"] == "copy"


@CPU
def test_answers_in_json(wire: Wire) -> None:
    reply = wire.ask("GET", "/openapi.json", Accept_Encoding="gzip, deflate")
    assert json.loads(gzip.decompress(reply.body))["openapi"] == "3.1.0"
    plain = wire.ask("POST", "/v2/repository/index", Accept_Encoding="gzip, deflate")
    assert plain.json[0]["name"] == "add_one"
    assert (reply.headers["content-encoding"], reply.headers["vary"]) == ("gzip", "Accept-Encoding")


@CPU
@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (b"nonsense", {}, 400, "not gzip"),
        (gzip.compress(infer_body())[:-3], {}, 400, "ends before its end"),
        (gzip.compress(infer_body()) + b"x", {}, 400, "bytes follow the end"),
        (gzip.compress(b"{"), {}, 400, "JSON"),
        (gzip.compress(infer_body()), {"Inference_Header_Content_Length": "9999"}, 400, "within the body"),
        (gzip.compress(bytes(70 << 20)), {}, 413, "larger than 67108864 bytes once"),
        (gzip.compress(b" " * (3 << 20)), {}, 413, "bytes of JSON are more than"),
        (infer_body(), {"Content_Encoding": "br"}, 415, "send gzip, deflate"),
    ],
)
def test_bad_bodies(wire: Wire, body: bytes, headers: dict[str, str], status: int, says: str) -> None:
    reply = wire.send(infer("late", body, **{"Content_Encoding": "gzip", **headers})).reply()
    assert (reply.status, says in reply.error) == (status, True), reply.error
    assert wire.send(infer("late")).reply().status == 200


@CPU
def test_a_client_that_goes_while_its_body_is_unpacked(make_server) -> None:
    server: Server = make_server(Limits())
    body = gzip.compress(bytes(60 << 20), 1)
    for _ in range(3):
        with server.wire() as wire:
            wire.send(infer("copy", body, Content_Encoding="gzip", Inference_Header_Content_Length="0"))
    with server.wire() as wire:
        assert wire.send(infer("late")).reply().status == 200


# -- files --------------------------------------------------------------------------------------------------------

FILE = b"\x89PNG\r\n\x1a\n not really"


@CPU
@pytest.mark.parametrize("kind", ["image/png", "IMAGE/JPEG", "audio/wav", "video/mp4; codecs=x"])
def test_a_file_is_one_element(wire: Wire, server: Server, kind: str) -> None:
    reply = wire.send(request("POST", "/v2/models/reverse/infer", FILE, Content_Type=kind)).reply()
    assert server.backend.calls[-1].inputs == {"text": FILE}
    assert reply.status == 400 and "not UTF-8 text" in reply.error  # of the answer: it is the file reversed
    accept = "application/octet-stream"
    reply = wire.send(request("POST", "/v2/models/reverse/infer", FILE, Content_Type=kind, Accept=accept)).reply()
    assert reply.status == 200 and reply.body.endswith(FILE[::-1])
    packed = gzip.compress(b"plain")
    coded = {"Content_Type": kind, "Content_Encoding": "gzip"}
    reply = wire.send(request("POST", "/v2/models/reverse/infer", packed, **coded)).reply()
    assert reply.json["outputs"][0]["data"] == ["nialp"]


@CPU
def test_files_for_models_that_take_none(wire: Wire) -> None:
    reply = wire.send(request("POST", "/v2/models/copy/infer", FILE, Content_Type="image/png")).reply()
    assert reply.status == 415 and 'tensor("bytes", 1)' in reply.error
    reply = wire.send(request("POST", "/v2/models/mixed/infer", FILE, Content_Type="image/png")).reply()
    assert reply.status == 400 and "has 3" in reply.error
