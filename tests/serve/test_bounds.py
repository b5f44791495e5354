"""No single request takes what is everybody's: fan-out, elements and JSON are bounded, and said to be."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from tests.serve.live_support import LiveServer
from tests.serve.support import Wire, infer, until

from dovetail.errors import BadRequest
from dovetail.live.front.checks import MAX_RESULT_WEIGHT
from dovetail.serve.answering import TURN_BYTES
from dovetail.serve.oip_records import InputTensor
from dovetail.serve.tensors import MAX_JSON_ELEMENTS, MAX_TEXTS, decode
from dovetail.workflow.graph import Port

FAN_OUT = 64


@pytest.fixture(scope="module")
def bounded():
    server = LiveServer("tests.live.bounds_app:app", device="cpu:1", max_fan_out=FAN_OUT)
    yield server
    until(server.clean)
    server.stop()


def binary(name, datatype, shape, data, **more):
    tensor = {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], **more}).encode()
    return head, head + data


def send(server, model, name, datatype, shape, data, **more):
    head, body = binary(name, datatype, shape, data, **more)
    with Wire(server.port) as wire:
        wire.socket.settimeout(60)
        return wire.send(infer(model, body, Inference_Header_Content_Length=str(len(head)))).reply("POST")


@pytest.mark.cpu
def test_a_shape_without_bytes_does_not_fan_out_into_billions(bounded):
    reply = send(bounded, "each", "rows", "FP32", [2147483647, 0], b"")
    assert reply.status == 400
    assert f"a list of 2147483647 to run a stage for each; a request may have {FAN_OUT}" in reply.error
    rows = np.ones((FAN_OUT, 3), np.float32)
    assert send(bounded, "each", "rows", "FP32", [FAN_OUT, 3], rows.tobytes()).status == 200


@pytest.mark.cpu
def test_a_stage_that_gives_too_long_a_list_fails_and_the_books_say_so(bounded):
    before = bounded.outcomes().get("failed", 0)
    reply = bounded.ask("fan", FAN_OUT + 1)
    assert reply.status == 500
    assert f"stage 'split' gave a list of {FAN_OUT + 1}" in reply.error
    assert bounded.ask("fan", FAN_OUT).status == 200
    assert bounded.outcomes()["failed"] == before + 1


@pytest.mark.cpu
def test_an_answer_of_too_many_values_fails(bounded):
    reply = bounded.ask("tree", MAX_RESULT_WEIGHT)
    assert reply.status == 500
    assert "stage 'numbers' gave too many values" in reply.error
    assert bounded.ask("tree", 1000).status == 200


@pytest.mark.cpu
def test_an_output_that_is_too_large_for_json_goes_in_binary(bounded):
    for model in ("pixels", "document"):
        reply = bounded.ask(model, MAX_JSON_ELEMENTS + 1)
        assert reply.status == 400
        assert f"{MAX_JSON_ELEMENTS + 1} elements are more than the {MAX_JSON_ELEMENTS} of JSON" in reply.error
        assert bounded.ask(model, 1000).status == 200
    count = 3 * TURN_BYTES // 4  # takes several turns
    reply = bounded.ask("pixels", count, parameters={"binary_data_output": True})
    assert reply.status == 200
    head = int(reply.headers["inference-header-content-length"])
    assert len(reply.body) - head == 4 * count


@pytest.mark.parametrize("form", ["binary", "json"])
def test_bytes_elements_are_bounded(server, form):
    most, more = MAX_TEXTS, MAX_TEXTS + 1
    words = {"name": "words", "datatype": "BYTES", "shape": [more]}
    pixels = {"name": "pixels", "datatype": "UINT8", "shape": [1, 3], "data": [1, 2, 3]}
    flags = {"name": "flags", "datatype": "BOOL", "shape": [2], "data": [True, False]}
    for count, status in ((most, 200), (more, 400)):
        words["shape"] = [count]
        data = b""
        if form == "binary":
            words["parameters"] = {"binary_data_size": 4 * count}
            data = bytes(4 * count)
        else:
            words["data"] = [""] * count
        head = json.dumps({"inputs": [pixels, words, flags], "outputs": [{"name": "count"}]}).encode()
        with server.wire() as wire:
            reply = wire.send(infer("mixed", head + data, Inference_Header_Content_Length=str(len(head)))).reply(
                "POST"
            )
        assert reply.status == status
    assert reply.error == f"input 'words': {more} BYTES elements are more than the {most} of a request"


def test_elements_of_json_are_bounded(server):
    with server.wire() as wire:
        count = MAX_JSON_ELEMENTS // 4 + 1
        body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d,4],"data":[%s]}]}'
        reply = wire.send(infer("add_one", body % (count, b",".join([b"1"] * count * 4)))).reply("POST")
    assert reply.status == 400
    assert "use binary data" in reply.error


@pytest.mark.cpu
@pytest.mark.parametrize("slo_ms", [1e305, 1.7e308, 5e-324])
def test_any_number_may_be_an_objective(bounded, slo_ms):
    reply = bounded.ask("tree", 3, parameters={"slo_ms": slo_ms})
    assert reply.status in (200, 429), reply.body


@pytest.mark.cpu
@pytest.mark.parametrize("shape", [[0, 2147483647], [2147483647, 0], [0, 0], [0, 4]])
@pytest.mark.parametrize("form", ["json", "binary"])
@pytest.mark.parametrize("model", ["each", "one_by_one"])
def test_no_empty_shape_is_a_server_error(bounded, shape, form, model):
    if form == "binary":
        reply = send(bounded, model, "rows", "FP32", shape, b"")
    else:
        tensor = {"name": "rows", "datatype": "FP32", "shape": shape, "data": []}
        with Wire(bounded.port) as wire:
            reply = wire.send(infer(model, json.dumps({"inputs": [tensor]}).encode())).reply("POST")
    assert reply.status in (200, 400), reply.body
    if shape[0] == 0:
        assert reply.status == 200, "nothing was to be done for it"


def test_an_empty_shape_that_numpy_cannot_make_is_refused():
    spec = Port("x", "FP64", (-1, -1, -1))
    sent = InputTensor("x", "FP64", [0, 2**31 - 1, 2**31 - 1], {}, msgspec.Raw(b"[]"))
    with pytest.raises(BadRequest, match="is too large, though it has no elements"):
        decode(spec, sent, None, 0)
