"""Triton's own client, unchanged, against the front."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.serve.support import HOST, MODELS, Server

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.cpu


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"{HOST}:{server.port}", concurrency=4) as client:
        yield client


def tensor(name: str, datatype: str, value: np.ndarray[Any, Any], binary: bool = True) -> triton.InferInput:
    given = triton.InferInput(name, list(value.shape), datatype)
    given.set_data_from_numpy(value, binary_data=binary)
    return given


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_one")
    assert client.is_model_ready("add_one", "1")
    assert not client.is_model_ready("asleep")
    assert not client.is_model_ready("absent")
    assert client.get_server_metadata()["extensions"] == [
        "binary_tensor_data", "model_configuration", "model_repository", "statistics", "schedule_policy",
    ]  # fmt: skip
    assert client.get_model_metadata("add_one") == {
        "name": "add_one",
        "versions": ["1"],
        "platform": "dovetail_workflow",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    }


def test_config(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("mixed")
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("mixed", "dovetail", 0)
    assert config["input"][0] == {"name": "pixels", "data_type": "TYPE_UINT8", "dims": [-1, 3]}
    assert config["input"][1]["data_type"] == "TYPE_STRING"
    assert [output["name"] for output in config["output"]] == ["words", "mean", "count", "doc"]
    assert config["parameters"] == {"slo": {"string_value": "1s"}}  # what the backend adds


def test_statistics(client: triton.InferenceServerClient) -> None:
    one = client.get_inference_statistics("reverse")["model_stats"]
    assert [entry["name"] for entry in one] == ["reverse"]
    assert set(one[0]["inference_stats"]) >= {"success", "fail", "queue", "compute_infer"}
    everything = client.get_inference_statistics()["model_stats"]
    assert [entry["name"] for entry in everything] == list(MODELS)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_numbers(client: triton.InferenceServerClient, binary_in: bool, binary_out: bool | None) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
    outputs = None if binary_out is None else [triton.InferRequestedOutput("y", binary_data=binary_out)]
    result = client.infer("add_one", [tensor("x", "FP32", x, binary_in)], outputs=outputs, model_version="1")
    np.testing.assert_array_equal(result.as_numpy("y"), x + np.float32(1))
    assert result.get_response()["parameters"] == {"dovetail_outcome": "ok"}


@pytest.mark.parametrize("binary", [True, False])
def test_text(client: triton.InferenceServerClient, binary: bool) -> None:
    text = np.array([b"dovetail"], dtype=object)
    outputs = [triton.InferRequestedOutput("text", binary_data=binary)]
    result = client.infer("reverse", [tensor("text", "BYTES", text, binary)], outputs=outputs)
    assert [bytes(item) if binary else item for item in result.as_numpy("text")] in ([b"liatevod"], ["liatevod"])


def test_bytes_that_are_not_text(client: triton.InferenceServerClient) -> None:
    text = np.array([b"\xff\x00\xfe"], dtype=object)
    assert client.infer("reverse", [tensor("text", "BYTES", text)]).as_numpy("text")[0] == b"\xfe\x00\xff"
    with pytest.raises(InferenceServerException, match="not UTF-8"):
        outputs = [triton.InferRequestedOutput("text", binary_data=False)]
        client.infer("reverse", [tensor("text", "BYTES", text)], outputs=outputs)


@pytest.mark.parametrize("json_input", ["pixels", "words", "flags", ""])
def test_several_inputs_and_outputs(client: triton.InferenceServerClient, server: Server, json_input: str) -> None:
    given = {
        "pixels": ("UINT8", np.array([[0, 1, 2], [253, 254, 255]], np.uint8)),
        "words": ("BYTES", np.array(["ab", "", "c,d"], dtype=object)),
        "flags": ("BOOL", np.array([True, False])),
    }
    inputs = [tensor(name, kind, value, name != json_input) for name, (kind, value) in given.items()]
    result = client.infer("mixed", inputs)
    assert list(result.as_numpy("words")) == [b"AB", b"", b"C,D"]
    assert result.as_numpy("mean") == [127.5]
    assert result.as_numpy("count").dtype == np.int64 and result.as_numpy("count") == [3]
    assert result.as_numpy("doc")[0] == b'{"flags":[true,false],"shape":[2,3]}'
    wanted = [triton.InferRequestedOutput("count", binary_data=False), triton.InferRequestedOutput("words")]
    result = client.infer("mixed", inputs, outputs=wanted)
    assert [output["name"] for output in result.get_response()["outputs"]] == ["count", "words"]
    assert list(result.as_numpy("words")) == [b"AB", b"", b"C,D"]


def test_half_floats(client: triton.InferenceServerClient) -> None:
    x = np.array([0.5, -2], np.float16)
    np.testing.assert_array_equal(client.infer("half", [tensor("x", "FP16", x)]).as_numpy("y"), x)


def test_request_fields_reach_the_backend(client: triton.InferenceServerClient, server: Server) -> None:
    x = np.zeros((1, 4), np.float32)
    result = client.infer(
        "add_one",
        [tensor("x", "FP32", x)],
        request_id="request-7",
        priority=1,
        timeout=250_000,
        parameters={"slo_ms": 80, "tenant": "blue"},
    )
    assert result.get_response()["id"] == "request-7"
    call = server.backend.calls[-1]
    assert (call.request_id, call.priority, call.timeout_us) == ("request-7", 1, 250_000)
    assert (call.slo_ms, call.tenant) == (80.0, "blue")
    client.infer(
        "add_one", [tensor("x", "FP32", x)], headers={"x-dovetail-slo-ms": "12.5", "x-dovetail-tenant": "red"}
    )
    call = server.backend.calls[-1]
    assert (call.slo_ms, call.tenant, call.request_id, call.priority) == (12.5, "red", "", 0)


def test_many_at_once(client: triton.InferenceServerClient) -> None:
    xs = [np.full((2, 4), index, np.float32) for index in range(40)]
    pending = [client.async_infer("add_one", [tensor("x", "FP32", x)]) for x in xs]
    for x, each in zip(xs, pending, strict=True):
        np.testing.assert_array_equal(each.get_result().as_numpy("y"), x + 1)


def test_megabytes_both_ways(client: triton.InferenceServerClient) -> None:
    x = np.random.default_rng(0).integers(0, 255, 20_000_001, np.uint8)
    np.testing.assert_array_equal(client.infer("copy", [tensor("x", "UINT8", x)]).as_numpy("y"), x)


def test_errors_carry_their_text(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match=r"\[404\] unknown model 'absent'; known models: add_one"):
        client.infer("absent", [tensor("x", "FP32", np.zeros(2, np.float32))])
    with pytest.raises(InferenceServerException, match=r"\[400\] input 'x' has shape \[2\].*got \[3\]"):
        client.infer("late", [tensor("x", "FP32", np.zeros(3, np.float32))])


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compression(client: triton.InferenceServerClient, coding: str) -> None:
    x = np.random.default_rng(0).integers(0, 4, 200_000, np.uint8)
    result = client.infer(
        "copy",
        [tensor("x", "UINT8", x)],
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    np.testing.assert_array_equal(result.as_numpy("y"), x)
