"""Answers without an end: pieces as they are pushed, none kept for who does not read, all closed by a drain."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.serve.support import HOST, Wire, request, until

from dovetail.serve.application import Cancel
from dovetail.serve.framing import HttpRequest, HttpResponse, Limits
from dovetail.serve.http import HttpServer, serve

pytestmark = pytest.mark.cpu
PIECE = b"x" * 65536


class Streams:
    """Every path is a stream; the test pushes."""

    def __init__(self) -> None:
        self.push: list[Callable[[bytes], bool]] = []
        self.ended = 0

    def check(self, request: HttpRequest, nbytes: int) -> int:
        return 1

    def body(self, request: HttpRequest, nbytes: int, begun: memoryview) -> None:
        return None

    def vital(self, request: HttpRequest) -> bool:
        return False

    def respond(
        self, request: HttpRequest, done: Callable[[HttpResponse | Exception], None]
    ) -> HttpResponse | Cancel:
        return HttpResponse(200, [], (("X-Kind", "endless"),), content_type="text/event-stream", stream=self._begin)

    def _begin(self, push: Callable[[bytes], bool]) -> Callable[[], None]:
        self.push.append(push)

        def end() -> None:
            self.ended += 1

        return end


class Running:
    """A server in a thread."""

    def __init__(self, limits: Limits) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.streams = Streams()
        self.http: HttpServer = self.run(serve(self.streams, HOST, 0, limits))

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def push(self, data: bytes, which: int = 0) -> bool:
        async def pushed() -> bool:
            return self.streams.push[which](data)

        return bool(self.run(pushed()))

    def stop(self) -> None:
        self.run(self.http.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the loop does not end"
        self.loop.close()


@pytest.fixture
def server() -> Iterator[Running]:
    running = Running(Limits(send_timeout_s=0.5))
    yield running
    running.stop()


def begun(server: Running, wire: Wire) -> bytes:
    wire.send(request("GET", "/"))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += wire.socket.recv(1)
    until(lambda: server.streams.push)
    return head


def test_pieces_arrive_as_they_are_pushed_and_the_end_is_told(server: Running) -> None:
    with Wire(server.http.port) as wire:
        head = begun(server, wire)
        assert b"200 OK" in head and b"text/event-stream" in head and b"X-Kind: endless" in head
        assert b"Content-Length" not in head and b"Connection: close" in head
        assert server.push(b"data: 1\n\n") and server.push(b"data: 2\n\n")
        assert wire.socket.recv(18, socket.MSG_WAITALL) == b"data: 1\n\ndata: 2\n\n"
    until(lambda: server.streams.ended == 1)
    assert not server.push(b"data: 3\n\n")


def test_a_viewer_that_does_not_read_misses_pieces_and_is_dropped(server: Running) -> None:
    with Wire(server.http.port) as wire:
        begun(server, wire)
        pushed = 0
        while server.push(PIECE):
            pushed += 1
            assert pushed < 1000, "it is kept in memory"
        assert not server.push(PIECE)
        until(lambda: server.streams.ended == 1)  # after `send_timeout_s` without a byte taken


def test_a_viewer_that_reads_again_gets_whole_pieces(server: Running) -> None:
    with Wire(server.http.port) as wire:
        begun(server, wire)
        pushed = 0
        while server.push(PIECE):
            pushed += 1
        got = 0
        while got < pushed * len(PIECE):
            got += len(wire.socket.recv(1 << 20))
        until(lambda: server.push(b"last"))
        while got < pushed * len(PIECE) + 4:
            got += len(wire.socket.recv(1 << 20))
        assert got == pushed * len(PIECE) + 4


def test_a_drain_ends_streams(server: Running) -> None:
    with Wire(server.http.port) as wire:
        begun(server, wire)
        server.run(server.http.drain(5.0))
        assert wire.ended()
    assert server.streams.ended == 1


def test_head_is_answered_without_a_stream(server: Running) -> None:
    with Wire(server.http.port) as wire:
        assert wire.ask("HEAD", "/").status == 200
    assert not server.streams.push
