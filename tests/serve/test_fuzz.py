"""Random bytes get an HTTP error or a closed connection, and the server goes on serving."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.support import Server, infer, infer_body, request

pytestmark = pytest.mark.cpu

SEEDS = [
    request("GET", "/v2"),
    infer("late"),
    infer("reverse", b"text", Inference_Header_Content_Length="0"),
    infer("absent", Expect="100-continue"),
    request("POST", "/v2/models/late/infer", Transfer_Encoding="chunked") + b"5\r\nhello\r\n0\r\n\r\n",
    infer("late", infer_body(outputs=[{"name": "y", "parameters": {"binary_data": True}}])),
]


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A few requests with some bytes changed, taken out or put in."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 6))] = draw(
            st.binary(max_size=4) | st.sampled_from([b"\r\n", b"\r\n\r\n", b":"])
        )
    return bytes(data)


def exchange(server: Server, data: bytes) -> list[int]:
    """The statuses that come back for `data` and the end of the stream; each answer must be well-formed."""
    statuses = []
    with server.wire() as wire, contextlib.suppress(ConnectionError):
        wire.send(data)
        wire.socket.shutdown(socket.SHUT_WR)
        while not wire.ended():
            statuses.append(wire.reply().status)
    return statuses


@pytest.mark.parametrize("kind", ["noise", "mutations"])
def test_nothing_upsets_the_server(server: Server, kind: str) -> None:
    noise = st.binary(max_size=400)

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(noise if kind == "noise" else mutations())
    def attempt(data: bytes) -> None:
        statuses = exchange(server, data)
        assert 500 not in statuses
        if kind == "noise":
            assert all(status >= 400 for status in statuses)

    attempt()
    with server.wire() as wire:
        assert wire.send(infer("late")).reply().status == 200


def test_a_short_run_of_the_fuzzer() -> None:
    """The long one is in docs/results/protocol.md."""
    file = Path(__file__).resolve().parents[2] / "scripts/fuzz.py"
    spec = importlib.util.spec_from_file_location("dovetail_fuzz", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    said: list[str] = []
    assert asyncio.run(module.fuzz(5000, 20261118, say=said.append)) == 0, said
    assert any("HTTP 200" in line for line in said) and any("gRPC: answered" in line for line in said)
