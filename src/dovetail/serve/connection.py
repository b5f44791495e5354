"""HTTP/1.1 on asyncio: bodies and the life of one connection. This file knows nothing of inference.

Rules of this file
- Where a message ends is decided by `framing`, once, and strictly.
- Nothing grows without a bound: head, body, chunk lines, trailers, chunked bodies of all clients together, number of
  connections, and the time a client may take for each step. What would be too large is refused before it is read.
- A body of known length is received straight into the memory that the application gives; only what came in the same
  packet as the head is copied. An application that refuses a request does so before its body is read.
- An answer is written in the turn of the event loop in which it is known: neither tasks nor futures are in between.
- One request at a time per connection, so answers keep their order. What a client sends ahead waits in the head
  buffer, and when that is full, in the socket.
- The end of a client's stream means that the client is gone, as nginx takes it: its request is cancelled.
- Memory lent for a body or a response is given back exactly once, and only when neither the handler nor the socket
  reads it any more. For that the transport keeps no backlog: it counts as full as soon as the socket takes no more.
- After an answer to a client that may still be sending we read on for a moment: closing a socket with unread bytes
  resets it, and the client might never see the answer (RFC 9112, 9.6).

    HEAD -> BODY | CHUNKS -> HANDLING -> SENDING -> HEAD ... -> CLOSING
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, cast

from .framing import Chunks, HttpError, HttpRequest, HttpResponse, Limits

if TYPE_CHECKING:
    from .http import HttpServer

__all__ = ["Application", "Buffer", "Cancel", "Connection"]

JOIN_BYTES = 64 << 10  # smaller parts of a response are joined: one system call costs as much as copying this
MAX_TURNED_AWAY = 128  # connections beyond the limit that are told so; the next ones are just closed
PIECE_BYTES = 256 << 10  # handed to the transport at once; CPython 3.11 copies what the socket does not take of it
TURN_BYTES = 4 << 20  # handed to the transport in one turn of the event loop, however fast the client reads
_PHRASES = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed HttpRequest"}
_LOG = logging.getLogger(__name__)

Cancel = Callable[[], object]


class Buffer(Protocol):
    """Memory for one request body."""

    @property
    def view(self) -> memoryview: ...
    def release(self) -> None: ...


class Application(Protocol):
    """What is served. Both methods may refuse with `HttpError`."""

    def body(self, request: HttpRequest, nbytes: int) -> Buffer | None:
        """Memory of exactly `nbytes` for the body that follows; None: it is read and thrown away."""

    def respond(
        self, request: HttpRequest, done: Callable[[HttpResponse | Exception], None]
    ) -> HttpResponse | Cancel:
        """The answer, or a call that cancels it, used when the client goes away.

        In the second case `done` is called with the answer or an error, once, be it cancelled or not, and perhaps
        before this returns.
        """


class _Phase(enum.Enum):
    HEAD = enum.auto()
    BODY = enum.auto()
    CHUNKS = enum.auto()
    HANDLING = enum.auto()
    SENDING = enum.auto()
    CLOSING = enum.auto()


class Connection(asyncio.BufferedProtocol):
    """One client. `_advance` moves it on; it is called last by whatever asyncio reports."""

    def __init__(self, server: HttpServer) -> None:
        self.deadline = math.inf  # of the event loop's clock
        self._cancel: Cancel | None = None  # of the request that is being handled
        self._asking = False  # the application is being asked, so an answer is early
        self._early: HttpResponse | None = None
        self._server = server
        self._phase = _Phase.HEAD
        self._buffer = bytearray(server.limits.max_head_bytes)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0  # what is unread in the buffer
        self._received = 0  # bytes of the body
        self._request: HttpRequest | None = None
        self._refusal: HttpError | None = None  # sent once the body has been read past
        self._chunks: Chunks | None = None
        self._response: HttpResponse | None = None
        self._queue: deque[bytes | memoryview] = deque()
        self._keep_alive = self._lingers = self._stalled = self._deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        self._wait(_Phase.HEAD, self._server.limits.idle_timeout_s)
        too_many = self._server.admit(self) - self._server.limits.max_connections
        if too_many > MAX_TURNED_AWAY:
            self._transport.abort()
        elif too_many > 0:
            self._refuse(HttpError(503, "too many connections", ("Retry-After", "1")))

    def connection_lost(self, error: Exception | None) -> None:
        self._server.forget(self)
        self._wait(_Phase.CLOSING)
        if self._cancel is None:
            self._finish()
        else:
            self._cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._phase is _Phase.BODY and self._request and self._request.body is not None:
            return cast(memoryview, self._request.body.view)[self._received :]
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._phase is _Phase.BODY and self._request and self._request.body is not None:
            self._received += nbytes
        else:
            self._end += nbytes
        self._advance()

    def pause_writing(self) -> None:
        self._stalled = True

    def resume_writing(self) -> None:
        self._stalled = False
        self._pump()
        self._advance()

    def _go_on(self) -> None:
        """Others had their turn."""
        if not self._stalled:
            self._pump()
            self._advance()

    def expire(self) -> None:
        """The client took too long for what it is doing."""
        if self._phase in (_Phase.BODY, _Phase.CHUNKS) or (self._phase is _Phase.HEAD and self._end):
            self._refuse(HttpError(408, "the request did not arrive in time"))
            self._advance()
        else:
            self._transport.abort()

    def close_if_idle(self) -> None:
        if self._phase is _Phase.HEAD and not self._end:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
        if self._cancel is not None:
            self._cancel()

    def _wait(self, phase: _Phase, timeout_s: float | None = None) -> None:
        self._phase = phase
        self.deadline = math.inf if timeout_s is None else self._server.loop.time() + timeout_s

    def _advance(self) -> None:
        """Goes on as far as the bytes in the buffer allow, then makes room in it or stops listening."""
        try:
            while not self._transport.is_closing() and (
                (self._phase is _Phase.HEAD and self._take_head())
                or (self._phase is _Phase.BODY and self._take_body())
                or (self._phase is _Phase.CHUNKS and self._take_chunks())
            ):
                pass
        except HttpError as error:
            self._refuse(error)
        if self._start == self._end or self._phase is _Phase.CLOSING:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            self._end -= self._start
            self._buffer[: self._end] = self._buffer[self._start :]
            self._start = 0
        if (self._end == len(self._buffer)) is not self._deaf:
            self._deaf = not self._deaf
            (self._transport.pause_reading if self._deaf else self._transport.resume_reading)()

    def _take_head(self) -> bool:
        limits = self._server.limits
        while self._buffer.startswith(b"\r\n", self._start, self._end):  # RFC 9112, 2.2
            self._start += 2
        unread = self._end - self._start
        if not unread:
            return False
        first = self._buffer[self._start : self._start + 1]
        if not first.isalpha() and (unread > 1 or first != b"\r"):
            raise HttpError(400, "this is not HTTP")
        stop = self._buffer.find(b"\r\n\r\n", self._start, self._end) + 4
        if stop < 4:
            if unread == len(self._buffer):
                raise HttpError(431, f"the request head is larger than {limits.max_head_bytes} bytes")
            self.deadline = min(self.deadline, self._server.loop.time() + limits.head_timeout_s)
            return False
        data = bytes(self._view[self._start : stop])
        self._start = stop
        self._open(self._server.heads.parse(data), limits)
        return True

    def _open(self, request: HttpRequest, limits: Limits) -> None:
        """Prepares for the body of a request whose head is sound."""
        self._request = request
        length = request.content_length
        expects = request.headers.get("expect", "").lower() if request.version == "1.1" else ""
        if expects not in ("", "100-continue"):
            raise HttpError(417, "the only supported expectation is 100-continue")
        if length == 0:
            self._handle()
            return
        if length is None:
            self._chunks = Chunks(limits)
        elif length > limits.max_body_bytes:
            raise HttpError(413, f"the body of {length} bytes is larger than {limits.max_body_bytes} bytes")
        else:
            self._received = 0
            self._find_room(request, length)
            if self._refusal is not None and expects:
                raise self._refusal  # the client waits to hear whether it should send the body at all
        self._wait(_Phase.CHUNKS if length is None else _Phase.BODY, limits.body_timeout_s)
        if expects and self._start == self._end:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _find_room(self, request: HttpRequest, nbytes: int) -> None:
        try:
            body = self._server.application.body(request, nbytes)
            if body is not None and len(body.view) != nbytes:
                body.release()
                raise ValueError(f"the application gave {len(body.view)} bytes for a body of {nbytes}")
            request.body = body
        except Exception as error:
            self._refusal = _as_http_error(error)

    def _take_body(self) -> bool:
        assert self._request is not None and self._request.content_length is not None
        taken = min(self._end - self._start, self._request.content_length - self._received)
        body = self._request.body
        if body is not None:
            body.view[self._received : self._received + taken] = self._view[self._start : self._start + taken]
        self._start += taken
        self._received += taken
        if self._received < self._request.content_length:
            return False
        self._handle()
        return True

    def _take_chunks(self) -> bool:
        assert self._request is not None and self._chunks is not None
        before = len(self._chunks.data)
        try:
            self._start = self._chunks.feed(self._buffer, self._start, self._end)
        finally:  # also what came before a bad chunk is held until the refusal is sent
            nbytes = len(self._chunks.data)
            self._server.chunked_bytes += nbytes - before
        if self._server.chunked_bytes > self._server.limits.max_chunked_bytes:
            raise HttpError(503, "too many chunked bodies at once; send a Content-Length", ("Retry-After", "1"))
        if not self._chunks.done:
            return False
        if nbytes:
            self._find_room(self._request, nbytes)
            if self._request.body is not None:
                self._request.body.view[:] = self._chunks.data
        self._drop_chunks()
        self._handle()
        return True

    def _handle(self) -> None:
        assert self._request is not None
        self._wait(_Phase.HANDLING)
        self._asking = True
        answer: HttpResponse | Cancel | None
        try:
            if self._refusal is not None:
                raise self._refusal
            answer = self._server.application.respond(self._request, self._handled)
        except Exception as error:
            answer = _as_http_error(error).response()
        self._asking = False
        if self._early is not None:
            answer, self._early = self._early, None
        if isinstance(answer, HttpResponse):
            self._send(answer)
        else:
            self._cancel = answer
            self._server.handling.add(self)

    def _handled(self, answer: HttpResponse | Exception) -> None:
        """The answer is known."""
        response = answer if isinstance(answer, HttpResponse) else _as_http_error(answer).response()
        if self._asking:
            self._early = response
            return
        self._cancel = None
        self._server.handling.discard(self)
        if self._phase is _Phase.CLOSING:  # nobody to tell
            self._response = response
            self._finish()
            self._server.check_empty()
        else:
            self._send(response)
            self._advance()

    def _refuse(self, error: HttpError) -> None:
        """Answers a request that was not read to its end."""
        error.close = self._lingers = True
        self._send(error.response())

    def _send(self, response: HttpResponse) -> None:
        request = self._request
        self._response = response
        self._keep_alive = bool(request and request.keep_alive and not response.close and not self._server.draining)
        parts = [] if request and request.method == "HEAD" else response.parts
        head = (
            f"HTTP/1.1 {response.status} {_PHRASES.get(response.status, '')}\r\n"
            f"Date: {self._server.date}\r\n"
            f"Content-Type: {response.content_type}\r\n"
            f"Content-Length: {sum(map(len, response.parts))}\r\n"
        )
        for name, value in response.headers:
            head += f"{name}: {value}\r\n"
        if not self._keep_alive or (request and request.version == "1.0"):
            head += f"Connection: {'keep-alive' if self._keep_alive else 'close'}\r\n"
        joined: list[bytes | memoryview] = [f"{head}\r\n".encode("latin-1")]
        for index, part in enumerate(parts):
            if len(part) > JOIN_BYTES:
                self._queue.extend([b"".join(joined), *parts[index:]])
                break
            joined.append(part)
        else:
            self._queue.append(b"".join(joined))
        self._wait(_Phase.SENDING)
        self._pump()

    def _pump(self) -> None:
        """Hands the response to the transport for as long as the socket takes it all."""
        if self._phase is not _Phase.SENDING:
            return  # the client read our 100 Continue late, or is gone
        written = 0
        while self._queue and not self._stalled:
            if written >= TURN_BYTES:
                self._wait(_Phase.SENDING, self._server.limits.send_timeout_s)
                self._server.loop.call_soon(self._go_on)
                return
            piece = self._queue.popleft()
            if len(piece) > PIECE_BYTES:
                view = memoryview(piece)
                self._queue.appendleft(view[PIECE_BYTES:])
                piece = view[:PIECE_BYTES]
            written += len(piece)
            self._transport.write(piece)
            if self._transport.is_closing():
                break  # the client is gone, and `connection_lost` is about to come
        if self._stalled or self._queue:
            self._wait(_Phase.SENDING, self._server.limits.send_timeout_s)
            return
        self._finish()
        if self._keep_alive and not self._server.draining:
            self._wait(_Phase.HEAD, self._server.limits.idle_timeout_s)
            return
        self._wait(_Phase.CLOSING, self._server.limits.linger_s)
        if not self._lingers:
            self._transport.close()
            return
        with contextlib.suppress(OSError):  # the client may be gone already
            self._transport.write_eof()

    def _finish(self) -> None:
        """Gives back everything that the request held."""
        request, response = self._request, self._response
        self._request = self._response = self._refusal = None
        self._queue.clear()
        self._drop_chunks()
        if response is not None and response.release is not None:
            response.release()
        if request is not None and request.body is not None:
            request.body.release()

    def _drop_chunks(self) -> None:
        if self._chunks is not None:
            self._server.chunked_bytes -= len(self._chunks.data)
            self._chunks = None


def _as_http_error(error: BaseException) -> HttpError:
    if isinstance(error, HttpError):
        return error
    _LOG.error("a request failed unexpectedly", exc_info=error)
    return HttpError(500, "internal error; the server's log has the cause")
