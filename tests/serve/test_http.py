"""The life of a connection, on real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest
from tests.serve.support import Server, Wire, infer, infer_body, request, until

from dovetail.serve.answering import PIECE_BYTES
from dovetail.serve.application import Application
from dovetail.serve.connection import Connection
from dovetail.serve.framing import HttpRequest, HttpResponse, Limits
from dovetail.serve.http import HttpServer
from dovetail.serve.oip import start

pytestmark = pytest.mark.cpu
Make = Callable[..., Server]
LIVE = request("GET", "/v2/health/live")


def test_keep_alive_and_close(wire: Wire) -> None:
    for _ in range(3):
        reply = wire.send(LIVE).reply()
        assert (reply.status, reply.json) == (200, {"live": True})
        assert "connection" not in reply.headers
        assert reply.headers["date"].endswith("GMT")
    assert wire.ask("GET", "/v2", Connection="close").headers["connection"] == "close"
    assert wire.ended()


def test_http_1_0(server: Server) -> None:
    with server.wire() as wire:
        reply = wire.send(b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").reply()
        assert (reply.status, reply.headers["connection"]) == (200, "keep-alive")
        assert wire.send(b"GET /v2 HTTP/1.0\r\n\r\n").reply().headers["connection"] == "close"
        assert wire.ended()


def test_head_has_the_length_but_no_body(wire: Wire) -> None:
    full = wire.ask("GET", "/v2")
    bare = wire.ask("HEAD", "/v2")
    assert bare.headers["content-length"] == full.headers["content-length"]
    assert wire.send(LIVE).reply().status == 200


def test_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    bodies = [infer_body(shape=[1, 4], data=[[i, 0, 0, 0]], id=str(i)) for i in range(50)]
    wire.send(b"".join(infer("add_one", body) + LIVE for body in bodies))
    for i in range(50):
        answer = wire.reply().json
        assert (answer["id"], answer["outputs"][0]["data"][0]) == (str(i), i + 1)
        assert wire.reply().json == {"live": True}


def test_more_is_pipelined_than_the_buffer_holds(make_server: Make) -> None:
    server = make_server(Limits(max_head_bytes=512))
    with server.wire() as wire:
        wire.send(infer("wait") + LIVE * 500)
        assert server.backend.entered.wait(20)
        server.open_gate()
        assert [wire.reply().status for _ in range(501)] == [200] * 501


def test_a_head_may_come_in_pieces(wire: Wire) -> None:
    for byte in b"\r\n\r\n" + infer("late"):
        wire.send(bytes([byte]))
    assert wire.reply().status == 200


def test_a_body_larger_than_the_head_buffer(wire: Wire) -> None:
    data = bytes(range(256)) * 4000
    raw = infer("copy", data, Inference_Header_Content_Length="0")
    for part in (raw[:100], raw[100:70_000], raw[70_000:] + LIVE):
        wire.send(part)
    reply = wire.reply()
    assert reply.body[int(reply.headers["inference-header-content-length"]) :] == data
    assert wire.reply().json == {"live": True}


def test_chunked_bodies(wire: Wire) -> None:
    body = infer_body()
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    start = request("POST", "/v2/models/late/infer", Transfer_Encoding="Chunked")
    for _ in range(2):
        wire.send(start + chunks + b"0\r\nTrailer: x\r\n\r\n" + LIVE)
        assert wire.reply().json["outputs"][0]["data"] == [1, 2]
        assert wire.reply().json == {"live": True}
    assert "needs a body" in wire.send(start + b"0\r\n\r\n").reply().error
    assert wire.send(start + b"1\r\nab\r\n").reply().status == 400
    assert wire.ended()


def test_expect_100_continue(wire: Wire) -> None:
    raw = infer("late", Expect="100-continue")
    stop = raw.index(b"\r\n\r\n") + 4
    wire.send(raw[:stop])
    assert wire.reply().status == 100
    assert wire.send(raw[stop:]).reply().status == 200
    assert wire.send(raw).reply().status == 200  # the body is there already: nothing to continue
    refused = infer("absent", Expect="100-continue")
    assert wire.send(refused[: refused.index(b"\r\n\r\n") + 4]).reply().status == 404
    assert wire.ended()


def test_other_expectations(wire: Wire) -> None:
    assert wire.ask("POST", "/v2/models/late/infer", infer_body(), Expect="a miracle").status == 417
    assert wire.ended()


def test_a_refused_body_is_read_past(wire: Wire) -> None:
    """So that a client which gets an error keeps its connection."""
    big = b"x" * 300_000
    assert wire.ask("POST", "/v2/models/absent/infer", big).status == 404
    assert wire.ask("POST", "/v2/models/late/infer", big, Content_Encoding="br").status == 415
    assert wire.ask("GET", "/v2", big).status == 200
    reply = wire.ask("DELETE", "/v2/models/late/infer", big)
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert wire.send(LIVE).reply().status == 200


def test_too_large_is_refused_before_it_is_read(make_server: Make) -> None:
    server = make_server(Limits(max_body_bytes=1000))
    with server.wire() as wire:
        reply = wire.send(infer("copy", b"x" * 1001)[:200]).reply()  # most of it is never sent
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        assert wire.ended()
    with server.wire() as wire:  # a client that does not listen before it has sent everything sees the answer too
        assert wire.send(infer("copy", b"x" * 5_000_000)).reply().status == 413
    with server.wire() as wire:
        wire.send(request("POST", "/v2/models/copy/infer", Transfer_Encoding="chunked") + b"400\r\n")
        assert wire.reply().status == 413
        assert wire.ended()


def test_chunked_bodies_are_bounded_together(make_server: Make) -> None:
    server = make_server(Limits(max_chunked_bytes=100_000))
    start = request("POST", "/v2/models/copy/infer", Transfer_Encoding="chunked") + b"ffff\r\n" + b"x" * 60_000
    with server.wire() as first:
        first.send(start)
        until(lambda: server.http.chunked_bytes == 60_000)
        with server.wire() as second:
            assert second.send(start).reply().status == 503
        until(lambda: server.http.chunked_bytes == 60_000)
    until(lambda: server.http.chunked_bytes == 0)


def test_header_limits(make_server: Make) -> None:
    server = make_server(Limits(max_head_bytes=1024))
    with server.wire() as wire:
        assert wire.ask("GET", "/v2", X="x" * 900).status == 200
        reply = wire.ask("GET", "/v2", X="x" * 5000)
        assert (reply.status, reply.headers["connection"]) == (431, "close")
        assert wire.ended()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS, and no end of a head will come
        (b"\r\rGET / HTTP/1.1\r\n\r\n", 400),
        (b"\xe9", 400),
        (b"BREW /pot HTTP/1.1\r\nHost: h\r\n\r\n", 405),
        (b"GET /v2 HTTP/3.0\r\n\r\n", 505),
        (b"GET /v2 HTTP/1.1\r\n\r\n", 400),
        (infer("late", Transfer_Encoding="chunked"), 400),
        (infer("late", **{"content-length": "5"}), 400),
        (request("POST", "/v2/models/late/infer", Transfer_Encoding="gzip, chunked"), 501),
        (request("POST", "/v2/models/late/infer", Transfer_Encoding="chunked") + b"zz\r\n", 400),
    ],
)
def test_what_cannot_be_framed_is_refused_and_closed(wire: Wire, data: bytes, status: int) -> None:
    """What follows is not read as a request: it could be the smuggled one."""
    reply = wire.send(data + LIVE).reply()
    assert (reply.status, reply.headers["connection"]) == (status, "close")
    assert reply.error
    assert wire.ended()


def test_idle_connections_are_closed(make_server: Make) -> None:
    server = make_server(Limits(idle_timeout_s=0.05))
    with server.wire() as idle:
        assert idle.ended()
    with server.wire() as idle:
        assert idle.send(LIVE).reply().status == 200
        assert idle.ended()


@pytest.mark.parametrize(
    "begun",
    [b"GET /v2 HT", b"\r", infer("late")[:-3], request("POST", "/v2", Transfer_Encoding="chunked") + b"5\r\nab"],
)
def test_requests_have_to_arrive_in_time(make_server: Make, begun: bytes) -> None:
    server = make_server(Limits(head_timeout_s=0.05, body_timeout_s=0.05, linger_s=0.05))
    with server.wire() as slow:
        assert slow.send(begun).reply().status == 408
        assert slow.ended()


def test_a_request_in_the_works_is_not_timed_out(make_server: Make) -> None:
    server = make_server(Limits(head_timeout_s=0.02, body_timeout_s=0.02, idle_timeout_s=0.02, send_timeout_s=0.02))
    with server.wire() as wire:
        wire.send(infer("wait"))
        assert server.backend.entered.wait(20)
        assert not server.backend.cancelled.wait(0.3)
        server.open_gate()
        assert wire.reply().status == 200


def test_a_client_that_does_not_read_is_dropped(make_server: Make) -> None:
    server = make_server(Limits(send_timeout_s=0.1))
    with server.wire() as wire:
        wire.send(infer("copy", bytes(30_000_000), Inference_Header_Content_Length="0"))
        until(lambda: server.backend.calls)
        until(server.everything_returned)  # the server gives up and takes its memory back
        with pytest.raises((ConnectionResetError, AssertionError)):
            wire.reply()  # is cut short


def test_a_slow_reader_gets_everything(make_server: Make) -> None:
    server = make_server()
    data = bytes(range(250)) * 40_000
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        slow.settimeout(20)
        slow.sendall(infer("copy", data, Inference_Header_Content_Length="0", Connection="close"))
        received = bytearray()
        while part := slow.recv(1 << 20):
            received += part
    assert received.endswith(data)


@pytest.mark.parametrize("abruptly", [True, False])
def test_a_client_that_leaves_cancels_its_request(make_server: Make, abruptly: bool) -> None:
    server = make_server()
    wire = server.wire().send(infer("wait"))
    assert server.backend.entered.wait(20)
    if abruptly:  # a reset instead of an end
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()
    assert server.backend.cancelled.wait(20)
    until(server.everything_returned)


def test_a_client_that_leaves_amid_its_body(make_server: Make) -> None:
    server = make_server()
    wire = server.wire().send(infer("copy", bytes(200_000))[:100_000])
    until(lambda: not server.everything_returned())
    wire.close()
    until(server.everything_returned)
    assert not server.backend.calls


def test_drain_lets_requests_finish(make_server: Make) -> None:
    server = make_server()
    with server.wire() as idle, server.wire() as busy, server.wire() as begun:
        assert idle.send(LIVE).reply().status == 200
        begun.send(infer("late")[:-5])
        busy.send(infer("wait") + LIVE)
        assert server.backend.entered.wait(20)
        assert begun.socket.fileno() >= 0
        drained = server.submit(server.http.drain())
        assert idle.ended()
        with pytest.raises(ConnectionRefusedError):
            server.wire()
        assert not drained.done()
        reply = begun.send(infer("late")[-5:]).reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        server.open_gate()
        reply = busy.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert busy.ended()  # what was pipelined behind it is not begun
        drained.result(20)


def test_drain_has_an_end(make_server: Make) -> None:
    server = make_server()
    with server.wire() as wire:
        wire.send(infer("wait"))
        assert server.backend.entered.wait(20)
        server.run(server.http.drain(grace_s=0.05))
        assert server.backend.cancelled.is_set()
        assert wire.ended()


def test_close_cancels_at_once(make_server: Make) -> None:
    server = make_server()
    with server.wire() as wire:
        wire.send(infer("wait"))
        assert server.backend.entered.wait(20)
        server.run(server.http.close())
        assert server.backend.cancelled.is_set()
        assert wire.ended()


def test_memory_of_the_wrong_size_is_not_written_to(make_server: Make) -> None:
    """An application that gives less memory than was asked for is a bug; it must not become a hole."""
    server = make_server()
    lend = server.backend.body
    server.backend.body = lambda nbytes: lend(nbytes - 1)  # type: ignore[method-assign]
    with server.wire() as wire:
        assert "internal error" in wire.send(infer("late")).reply().error
        assert wire.send(LIVE).reply().status == 200


def test_a_port_that_is_taken(server: Server) -> None:
    with pytest.raises(OSError, match="Address already in use"):
        server.run(start(server.backend, port=server.port))


class Socket(asyncio.Transport):
    """A transport that takes what a test lets it take."""

    def __init__(self, application: Application) -> None:
        super().__init__()
        self.taken: list[bytes] = []
        self.full = self.gone = False
        self.connection = Connection(HttpServer(application, Limits()))
        self.connection._server.date = ""
        self.connection.connection_made(self)

    def receive(self, data: bytes) -> None:
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.taken.append(bytes(data))
        if self.full:
            self.connection.pause_writing()

    def is_closing(self) -> bool:
        return self.gone

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0


class Lender:
    """An application whose one response is memory that it wants back."""

    def __init__(self, nbytes: int) -> None:
        self.lent = memoryview(bytes(nbytes))
        self.returned = 0

    def check(self, request: HttpRequest, nbytes: int) -> int:
        return 1

    def vital(self, request: HttpRequest) -> bool:
        return True

    def body(self, request: HttpRequest, nbytes: int, begun: memoryview) -> None:
        return None

    def respond(self, request: HttpRequest, done: Callable[[HttpResponse | Exception], None]) -> HttpResponse:
        def release() -> None:
            self.returned += 1

        return HttpResponse(200, [self.lent], release=release)


def test_memory_is_returned_when_the_socket_has_taken_it_all() -> None:
    async def scenario() -> None:
        lender = Lender(PIECE_BYTES + 1)
        socket = Socket(lender)
        socket.full = True
        socket.receive(LIVE + LIVE)
        for pieces in (1, 2, 3):  # the head, a whole piece, the rest
            assert (len(socket.taken), lender.returned) == (pieces, 0)
            socket.full = pieces < 3
            socket.connection.resume_writing()
        assert lender.returned == 2  # and the second request was answered then
        assert len(b"".join(socket.taken)) > 2 * len(lender.lent)
        socket.connection.connection_lost(None)
        assert lender.returned == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("full", [True, False])
def test_memory_is_returned_when_the_client_is_gone(full: bool) -> None:
    async def scenario() -> None:
        lender = Lender(10 * PIECE_BYTES)
        socket = Socket(lender)
        socket.full, socket.gone = full, False
        take = socket.write

        def write(data: bytes | bytearray | memoryview) -> None:
            take(data)
            socket.gone = True

        socket.write = write  # type: ignore[method-assign]
        socket.receive(LIVE + LIVE)
        assert (len(socket.taken), lender.returned) == (1, 0)  # no use in writing more
        socket.connection.connection_lost(ConnectionResetError())
        assert lender.returned == 1

    asyncio.run(scenario())
