"""One server for all tests that leave it as it was, and servers with limits of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.serve.support import Server, Wire


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    yield shared_server
    assert shared_server.everything_returned()


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with server.wire() as wire:
        yield wire


@pytest.fixture
def make_server() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(*args: Any, **kwargs: Any) -> Server:
        servers.append(Server(*args, **kwargs))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()
        assert (server.backend.bodies, server.backend.answers, server.http.chunked_bytes) == ([], 0, 0)
