"""HTTP/1.1 on asyncio: how one client asks. `answering` has the other half. This file knows nothing of inference.

Rules of this file
- Where a message ends is decided by `framing`, once, and strictly.
- Nothing grows without a bound: head, body, chunk lines, trailers, chunked bodies of all clients together, number of
  connections, and the time a client may take for each step. What would be too large is refused before it is read.
- A body of known length is received straight into the memory that the application gives; only what came in the same
  packet as the head is copied. That memory is asked for when the body begins to arrive, and there is room for it
  (`bodies`). An application that refuses a request does so before its body is read.
- A body has to arrive at a steady pace. Who rests gives way when there are too many (`crowd`).
- One request at a time per connection, so answers keep their order. What a client sends ahead waits in the head
  buffer, and when that is full, in the socket.
- The end of a client's stream means that the client is gone, as nginx takes it: its request is cancelled.

    HEAD -> BODY | CHUNKS -> HANDLING -> SENDING -> HEAD ... -> CLOSING
                                      -> STREAMING -> CLOSING
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from .answering import Answering, as_http_error
from .application import Phase
from .bodies import RESERVE_FROM_BYTES
from .framing import Chunks, HttpError, HttpRequest, Limits

if TYPE_CHECKING:
    from .http import HttpServer

__all__ = ["Connection"]

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Named once: compiled code would look each of them up in its class every time.
_BODY: Final = Phase.BODY
_CHUNKS: Final = Phase.CHUNKS
_CLOSING: Final = Phase.CLOSING
_HEAD: Final = Phase.HEAD
_STREAMING: Final = Phase.STREAMING


class Connection(Answering):
    """One client. `_advance` moves it on; it is called last by whatever asyncio reports."""

    def __init__(self, server: HttpServer, client: str = "") -> None:
        super().__init__(server, client)
        self.waiting = False  # for room for its body
        self._buffer = bytearray(server.limits.max_head_bytes)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0  # what is unread in the buffer
        self._received = 0  # bytes of the body
        self._reserved = False  # room for the body was asked for, and found or refused
        self._unreceived = 0  # bytes of it that are reserved and have not come
        self._urgency = 0
        self._began_s = 0.0  # when the body did
        self._beyond = False  # one too many: only for questions after our health
        self._chunks: Chunks | None = None
        self._deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # asyncio's TLS counts as full what has as much as this, all else what has more.
        self._transport.set_write_buffer_limits(high=0 if self._server.tls is None else 1, low=0)
        limits = self._server.limits
        self._server.came(self)
        standing = self._server.crowd.admit(self)
        if standing == "refused":
            self._transport.abort()
            return
        self._beyond = standing == "beyond"
        self._rest(min(limits.head_timeout_s, limits.idle_timeout_s) if self._beyond else limits.idle_timeout_s)

    def _rest(self, timeout_s: float) -> None:
        self._wait(_HEAD, timeout_s)
        self._server.crowd.rests(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.waiting = False
        self._server.forget(self)
        self._wait(_CLOSING)
        if self._cancel is None:
            self._finish()
        else:
            self._cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._phase is _BODY and self._request and self._request.body is not None:
            return cast(memoryview, self._request.body.view)[self._received :]
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._phase is _BODY and self._request and self._request.body is not None:
            self._received += nbytes
        else:
            self._end += nbytes
        self._advance()

    def expire(self) -> None:
        """The client took too long for what it is doing."""
        if self.waiting:
            self._refuse(HttpError(503, "too many bodies at once: no room for this one", ("Retry-After", "1")))
            self._advance()
        elif self._phase in (_BODY, _CHUNKS) or (self._phase is _HEAD and self._end):
            self._refuse(HttpError(408, "the request did not arrive in time"))
            self._advance()
        else:
            self._transport.abort()

    def give_way(self) -> None:
        self._transport.abort()

    def room_found(self, nbytes: int) -> None:
        self._unreceived = nbytes
        self._server.loop.call_soon(self._go_on_with_body)

    def _go_on_with_body(self) -> None:
        if self._phase is _BODY and not self._reserved and not self._transport.is_closing():
            self._begin_body()
            self._take_room()
            self._advance()

    def close_if_idle(self) -> None:
        if self._phase is _STREAMING or (self._phase is _HEAD and not self._end):
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
        if self._cancel is not None:
            self._cancel()

    def _advance(self) -> None:
        """Goes on as far as the bytes in the buffer allow, then makes room in it or stops listening."""
        try:
            while not self._transport.is_closing() and (
                (self._phase is _HEAD and self._take_head())
                or (self._phase is _BODY and self._take_body())
                or (self._phase is _CHUNKS and self._take_chunks())
            ):
                pass
        except HttpError as error:
            self._refuse(error)
        if self._start == self._end or self._phase is _CLOSING:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            self._end -= self._start
            self._buffer[: self._end] = self._buffer[self._start :]
            self._start = 0
        if (self.waiting or self._end == len(self._buffer)) is not self._deaf:
            self._deaf = not self._deaf
            (self._transport.pause_reading if self._deaf else self._transport.resume_reading)()

    def _take_head(self) -> bool:
        if self._start == self._end:
            return False
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
            self.deadline = min(self.deadline, monotonic() + limits.head_timeout_s)
            return False
        data = bytes(self._view[self._start : stop])
        self._start = stop
        self._open(self._server.heads.parse(data), limits)
        return True

    def _open(self, request: HttpRequest, limits: Limits) -> None:
        """Prepares for the body of a request whose head is sound."""
        self._request = request
        self._asked_s = request.asked_s = monotonic()
        self._server.crowd.works(self)
        if self._beyond:
            request.keep_alive = False
            if not self._server.application.vital(request):
                raise HttpError(503, "too many connections", ("Retry-After", "1"))
        length = request.content_length
        expects = request.headers.get("expect", "").lower() if request.version == "1.1" else ""
        if expects not in ("", "100-continue"):
            raise HttpError(417, "the only supported expectation is 100-continue")
        if length == 0:
            self._handle()
            return
        self._phase = _BODY
        if length is None:
            self._chunks = Chunks(limits)
            self._phase = _CHUNKS
        elif length > limits.max_body_bytes:
            raise HttpError(413, f"the body of {length} bytes is larger than {limits.max_body_bytes} bytes")
        else:
            self._received, self._reserved = 0, False
            try:
                self._urgency = self._server.application.check(request, length)
            except Exception as error:
                self._refusal, self._reserved = as_http_error(error), True
            if expects and not self._reserved:
                self._reserve(length)
            if self._refusal is not None and expects:
                raise self._refusal  # the client waits to hear whether it should send the body at all
        self._began_s = self._asked_s
        self._pace(0)
        if expects and length is None and self._start == self._end:
            self._transport.write(_CONTINUE)

    def _begin_body(self) -> None:
        self._began_s = monotonic()
        self._pace(0)

    def _pace(self, nbytes: int) -> None:
        """The client has sent so much of a body: that gives it so much time for the rest."""
        limits = self._server.limits
        assert self._request is not None
        length = self._request.content_length
        if length is None:
            more_s = min(limits.body_timeout_s, nbytes / limits.min_chunked_bytes_per_s)
        else:
            more_s = limits.body_timeout_s * nbytes / length
        self.deadline = self._began_s + min(limits.body_grace_s, limits.body_timeout_s) + more_s

    def _reserve(self, length: int) -> bool:
        """Asks for room for the body; False if it has to wait."""
        rest = max(0, length - (self._end - self._start))  # what follows may be the next request
        if self._server.bodies.ask(self, rest, self._urgency):
            self._unreceived = rest
            self._take_room()
            return True
        self.deadline = monotonic() + self._server.limits.body_grace_s
        return False

    def _take_room(self) -> None:
        """There may be so many bytes under way; now for their memory."""
        assert self._request is not None and self._request.content_length is not None
        self._reserved = True
        begun = self._view[self._start : self._end]
        self._find_room(self._request, self._request.content_length, begun)
        if self._refusal is not None:
            self._arrived(self._unreceived)
        if "expect" in self._request.headers and self._start == self._end and self._refusal is None:
            self._transport.write(_CONTINUE)

    def _arrived(self, nbytes: int) -> None:
        """So many of the reserved bytes are here, or will not come."""
        if not self._unreceived:
            return
        nbytes = max(0, min(nbytes, self._unreceived))
        self._unreceived -= nbytes
        self._server.bodies.came(self.client, nbytes)

    def _find_room(self, request: HttpRequest, nbytes: int, begun: memoryview) -> None:
        try:
            body = self._server.application.body(request, nbytes, begun)
            if body is not None and len(body.view) != nbytes:
                body.release()
                raise ValueError(f"the application gave {len(body.view)} bytes for a body of {nbytes}")
            request.body = body
        except Exception as error:
            self._refusal = as_http_error(error)

    def _take_body(self) -> bool:
        assert self._request is not None and self._request.content_length is not None
        length, here = self._request.content_length, self._end - self._start
        if not self._reserved:
            if self.waiting or here < min(length, RESERVE_FROM_BYTES):
                if not self.waiting:
                    self._pace(here)
                return False
            if not self._reserve(length):
                return False
        taken = min(here, length - self._received)
        body = self._request.body
        if body is not None:
            body.view[self._received : self._received + taken] = self._view[self._start : self._start + taken]
        self._start += taken
        self._received += taken
        self._arrived(self._unreceived - (length - self._received))
        if self._received < length:
            self._pace(self._received)
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
            self._pace(nbytes)
            return False
        if nbytes:
            self._find_room(self._request, nbytes, memoryview(self._chunks.data))
            if self._request.body is not None:
                self._request.body.view[:] = self._chunks.data
        self._drop_chunks()
        self._handle()
        return True

    def _let_go(self) -> None:
        self.waiting = False
        self._arrived(self._unreceived)
        self._drop_chunks()

    def _drop_chunks(self) -> None:
        if self._chunks is not None:
            self._server.chunked_bytes -= len(self._chunks.data)
            self._chunks = None
