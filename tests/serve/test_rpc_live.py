"""gRPC and shared memory through the whole server, workers and all."""

from __future__ import annotations

import uuid
import warnings

import grpc
import numpy as np
import pytest
from tests.live import apps
from tests.serve.live_support import PATIENCE_SECONDS, LiveServer, at_once
from tests.serve.support import HOST, Wire, until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.grpc as triton
    import tritonclient.utils.shared_memory as shm
    from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.cpu
#: Numbers of gates that no other file uses.
GATE = 4000


@pytest.fixture(scope="module")
def server():
    server = LiveServer("tests.live.apps:app", grpc_port=0, shared_memory=True, serve_stages=True)
    yield server
    assert server.stop()


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(f"{HOST}:{server.served.grpc.port}") as client:
        yield client
    until(server.clean)


def item(first: float) -> triton.InferInput:
    tensor = triton.InferInput("x", [3], "FP32")
    tensor.set_data_from_numpy(np.full(3, first, np.float32))
    return tensor


def test_answers(client, server):
    answers = at_once([lambda v=v: client.infer("plain", [item(v)]) for v in range(20)])
    for value, answer in zip(range(20), answers, strict=True):
        (name,) = [each.name for each in answer.get_response().outputs]
        np.testing.assert_array_equal(answer.as_numpy(name), np.full(3, 2 * value, np.float32))
    stats = client.get_inference_statistics("plain", as_json=True)["model_stats"][0]
    assert int(stats["inference_count"]) >= 20
    assert {each.name for each in client.get_model_repository_index().models} >= {"plain", "heavy", "gated"}
    with Wire(server.port) as wire:
        assert b"dovetail_grpc_requests_total" in wire.ask("GET", "/metrics").body


def test_ends_of_a_request(client, server):
    with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
        client.infer("gated", [item(GATE)], timeout=50_000)
    apps.open_gate(GATE)
    with pytest.raises(InferenceServerException, match="INTERNAL"):
        client.infer("breakable", [item(apps.POISON)])
    with pytest.raises(InferenceServerException, match=r"INVALID_ARGUMENT.*must be from 1 \(highest\) to 10"):
        client.infer("plain", [item(1)], priority=11)


def test_a_client_that_goes_away(client, server):
    before = server.outcomes().get("cancelled", 0)
    call = client.async_infer("gated", [item(GATE + 1)], callback=lambda result, error: None)
    until(lambda: server.open_requests())
    call.cancel()
    until(lambda: server.outcomes().get("cancelled", 0) == before + 1)
    apps.open_gate(GATE + 1)


def test_shared_memory(client, server):
    key = f"/live-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region("ours", key, 256)
    try:
        shm.set_shared_memory_region(handle, [np.full(3, 4, np.float32)])
        client.register_system_shared_memory("region", key, 256)
        given = triton.InferInput("x", [3], "FP32")
        given.set_shared_memory("region", 12)
        name = client.get_model_metadata("plain").outputs[0].name
        wanted = triton.InferRequestedOutput(name)
        wanted.set_shared_memory("region", 12, offset=128)
        client.infer("plain", [given], outputs=[wanted])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [3], 128), np.full(3, 8))
        client.unregister_system_shared_memory("region")
    finally:
        shm.destroy_shared_memory_region(handle)


def test_stages_by_their_own_names(client, server):
    """Models of stages, beside the workflows; Python stages have no types, and are not there."""
    models = {each.name for each in client.get_model_repository_index().models}
    assert {"double", "slow"} <= models and "add" not in models
    said = client.get_model_metadata("double")
    given = triton.InferInput(said.inputs[0].name, [3], "FP32")
    given.set_data_from_numpy(np.arange(3, dtype=np.float32))
    answer = client.infer("double", [given])
    np.testing.assert_array_equal(answer.as_numpy(said.outputs[0].name), 2 * np.arange(3, dtype=np.float32))
    with Wire(server.port) as wire:
        assert wire.ask("GET", "/v2/models/double").json["inputs"][0]["shape"] == [3]


def test_the_end():
    """What was admitted is answered, then nobody listens."""
    server = LiveServer("tests.live.apps:hosted", grpc_port=0)
    with Wire(server.port) as wire:
        assert wire.ask("GET", "/v2/models/double").status == 404  # stages are not served unless that is asked for
    address = f"{HOST}:{server.served.grpc.port}"
    with triton.InferenceServerClient(address) as client:
        answers = []
        client.async_infer("gated", [item(GATE + 2)], callback=lambda result, error: answers.append((result, error)))
        until(lambda: server.open_requests())
        ending = server.submit(server.served.stop(PATIENCE_SECONDS, None))
        until(lambda: server.call(lambda: server.system.controller.draining))
        apps.open_gate(GATE + 2)
        assert ending.result(PATIENCE_SECONDS)
        until(lambda: answers)
        assert answers[0][1] is None
    server._stopped = True
    server._end()
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=PATIENCE_SECONDS)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
