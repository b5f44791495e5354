"""What is declared is what clients get: datatype and shape of every output, or a failure that says what differs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.serve.live_support import LiveServer, triton_inputs
from tests.serve.support import until

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def server():
    server = LiveServer("tests.live.declared_app:app", device="cpu:1")
    yield server
    until(server.clean)
    server.stop()


@pytest.mark.parametrize(
    ("model", "kind", "given"),
    [
        ("vector", 1, "FP64 [3] as output 'output', which is declared as FP32 [3]"),
        ("vector", 2, "FP32 [4] as output 'output', which is declared as FP32 [3]"),
        ("vector", 3, "FP32 [1, 3] as output"),
        ("vector", 4, "a Python list as output"),
        ("vector", 5, "FP32 [1] as output"),
        ("number", 9, "FP64 [1] as output"),
        ("small", 7, "a Python int as output 'output', which is declared as UINT8 [1]"),
        ("small", 8, "a Python bool as output"),
        ("pair", 1, "FP64 [3] as output 'second', which is declared as FP32 [3]"),
        ("mapped", 1, "FP64 [3] as output 'output', which is declared as FP32 [3] for each element"),
    ],
)
def test_another_output_than_declared_fails(server, model, kind, given):
    before = server.outcomes().get("failed", 0)
    reply = server.ask(model, kind)
    assert reply.status == 500
    assert f"gave {given}" in reply.error
    assert server.outcomes()["failed"] == before + 1


@pytest.mark.parametrize(
    ("model", "kind", "dtype", "value"),
    [
        ("vector", 0, np.float32, [1, 1, 1]),
        ("number", 5, np.float32, [1.5]),
        ("number", 6, np.float32, [1.5]),
        ("number", 7, np.float32, [300]),
        ("undeclared", 1, np.float64, [1, 1, 1]),
        ("mapped", 0, np.float32, [[1, 1, 1]] * 3),
    ],
)
@pytest.mark.parametrize("binary", [True, False])
def test_what_is_declared_is_served(server, model, kind, dtype, value, binary):
    with server.client() as client:
        import tritonclient.http as triton

        name = client.get_model_metadata(model)["outputs"][0]["name"]
        inputs = triton_inputs({"x": np.full(3, kind, np.float32)})
        answer = client.infer(model, inputs, outputs=[triton.InferRequestedOutput(name, binary_data=binary)])
        got = answer.as_numpy(name)
    assert got.dtype == dtype
    assert got.tolist() == value
