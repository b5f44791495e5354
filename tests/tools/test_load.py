"""The load generator against a server in memory: one answer for each shot, and time counted from when it was due."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from itertools import count, pairwise

import numpy as np
import pytest
from tests.serve.support import HOST, MemoryBackend, Server

from dovetail.tools.load import Answer, Client, Shot, infer_shot
from dovetail.units import MS

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def shot(number: int, due_ns: int = 0, model: str = "add_one", **parameters: int) -> Shot:
    tensor = np.full((2, 4), number, np.float32)
    return infer_shot(f"/v2/models/{model}/infer", f"id-{number}", due_ns, {"x": tensor}, **parameters)


def with_client(port: int, use: Callable[[Client], Awaitable[None]], **options: float) -> None:
    async def main() -> None:
        client = Client(HOST, port, **options)  # type: ignore[arg-type]
        try:
            await use(client)
        finally:
            client.close()

    asyncio.run(main())


def test_every_shot_has_one_answer_with_its_own_result(server: Server) -> None:
    answers: list[Answer] = []
    shots = [shot(i, i * MS) for i in range(20)]
    with_client(server.port, lambda client: client.open_loop(shots, answers.append))
    assert sorted(a.ident for a in answers) == sorted(s.ident for s in shots)
    for answer in answers:
        number = int(answer.ident.removeprefix("id-"))
        reply = answer.json()
        assert (answer.status, answer.error, reply["id"]) == (200, "", answer.ident)
        assert reply["outputs"][0]["data"] == [number + 1.0] * 8  # type: ignore[index]
        assert answer.due_ns <= answer.sent_ns <= answer.done_ns


def test_parameters_reach_the_server(server: Server) -> None:
    backend: MemoryBackend = server.backend
    backend.calls.clear()
    with_client(
        server.port, lambda client: client.open_loop([shot(1, priority=2, timeout=5_000_000)], lambda _: None)
    )
    (call,) = backend.calls
    assert (call.priority, call.timeout_us, call.request_id) == (2, 5_000_000, "id-1")


def test_waiting_for_a_connection_counts(server: Server) -> None:
    # Three are due at once and there is one connection: each but the first is sent after the one before was answered.
    answers: list[Answer] = []
    with_client(
        server.port, lambda client: client.open_loop([shot(i) for i in range(3)], answers.append), connections=1
    )
    for before, after in pairwise(answers):
        assert after.sent_ns >= before.done_ns
        assert after.latency_ns >= before.latency_ns


def test_refusals_are_answers(server: Server) -> None:
    answers: list[Answer] = []
    two = np.ones(2, np.float32)
    shots = [infer_shot(f"/v2/models/{m}/infer", m, 0, {"x": two}) for m in ("shed", "expired", "failed", "nowhere")]
    with_client(server.port, lambda client: client.open_loop(shots, answers.append))
    assert {a.ident: a.status for a in answers} == {"shed": 429, "expired": 504, "failed": 500, "nowhere": 404}


def test_a_closed_loop_keeps_so_many_open_and_ends(server: Server) -> None:
    answers: list[Answer] = []
    with_client(
        server.port,
        lambda client: client.closed_loop((shot(i) for i in count()), answers.append, at_a_time=3, seconds=0.05),
    )
    assert len(answers) >= 3
    assert all(a.status == 200 for a in answers)
    assert len({a.ident for a in answers}) == len(answers)
    moments = sorted([(a.sent_ns, 1) for a in answers] + [(a.done_ns, -1) for a in answers])
    open_now, most = 0, 0
    for _, change in moments:
        open_now += change
        most = max(most, open_now)
    assert most <= 3


def test_a_closed_loop_ends_with_its_shots(server: Server) -> None:
    answers: list[Answer] = []
    with_client(
        server.port,
        lambda client: client.closed_loop(iter([shot(1), shot(2)]), answers.append, at_a_time=5, seconds=60.0),
    )
    assert len(answers) == 2


def test_nobody_there_is_said(unused_port: int) -> None:
    answers: list[Answer] = []
    with_client(unused_port, lambda client: client.open_loop([shot(1)], answers.append))
    assert answers[0].status == 0
    assert "ConnectionRefusedError" in answers[0].error


def test_silence_is_given_up_and_said() -> None:
    answers: list[Answer] = []
    with socket.create_server((HOST, 0)) as listener:  # takes the connection and never answers
        port = listener.getsockname()[1]
        with_client(port, lambda client: client.open_loop([shot(1)], answers.append), timeout_s=0.05)
    assert (answers[0].status, answers[0].error) == (0, "no answer within 0.05 s")


@pytest.fixture
def unused_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
