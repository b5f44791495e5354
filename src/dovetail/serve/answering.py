"""The answering half of a connection: ask the application, and write what it answers.

Rules of this file
- An answer is written in the turn of the event loop in which it is known: neither tasks nor futures are in between.
- Memory lent for a body or a response is given back exactly once, and only when neither the handler nor the socket
  reads it any more. For that the transport keeps no backlog: it counts as full as soon as the socket takes no more.
- After an answer to a client that may still be sending we read on for a moment: closing a socket with unread bytes
  resets it, and the client might never see the answer (RFC 9112, 9.6).
- However fast a client reads, others have their turn.
- An answer without an end (`HttpResponse.stream`) is not kept for a client that reads too slowly: it misses pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from abc import abstractmethod
from collections import deque
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Final

from .application import Cancel, Phase
from .framing import HttpError, HttpRequest, HttpResponse

if TYPE_CHECKING:
    from .http import HttpServer

__all__ = ["JOIN_BYTES", "PIECE_BYTES", "TURN_BYTES", "Answering", "as_http_error"]

JOIN_BYTES = 64 << 10  # smaller parts of a response are joined: one system call costs as much as copying this
PIECE_BYTES = 256 << 10  # handed to the transport at once; CPython 3.11 copies what the socket does not take of it
TURN_BYTES = 4 << 20  # handed to the transport in one turn of the event loop
_PHRASES = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed HttpRequest"}
_LOG = logging.getLogger(__name__)
# Named once: compiled code would look each of them up in its class every time.
_CLOSING: Final = Phase.CLOSING
_HANDLING: Final = Phase.HANDLING
_HEAD: Final = Phase.HEAD
_SENDING: Final = Phase.SENDING
_STREAMING: Final = Phase.STREAMING


class Answering(asyncio.BufferedProtocol):
    """What one client is answered; `connection` has how it asks."""

    _transport: asyncio.Transport

    def __init__(self, server: HttpServer, client: str) -> None:
        self.client = client  # its address
        self.deadline = math.inf  # of the event loop's clock
        self._server = server
        self._phase = _HEAD
        self._request: HttpRequest | None = None
        self._asked_s = 0.0  # when its head had come
        self._refusal: HttpError | None = None  # sent once the body has been read past
        self._cancel: Cancel | None = None  # of the request that is being handled
        self._asking = False  # the application is being asked, so an answer is early
        self._early: HttpResponse | None = None
        self._response: HttpResponse | None = None
        self._queue: deque[bytes | memoryview] = deque()
        self._keep_alive = self._lingers = self._stalled = False

    @abstractmethod
    def _advance(self) -> None:
        """Go on with what the client has sent."""

    @abstractmethod
    def _rest(self, timeout_s: float) -> None:
        """Wait for the next request."""

    @abstractmethod
    def _let_go(self) -> None:
        """Give back what was reserved to receive the request."""

    def _wait(self, phase: Phase, timeout_s: float | None = None) -> None:
        self._phase = phase
        self.deadline = math.inf if timeout_s is None else monotonic() + timeout_s

    def pause_writing(self) -> None:
        self._stalled = True

    def resume_writing(self) -> None:
        self._stalled = False
        if self._phase is _STREAMING:
            self._wait(_STREAMING)
        self._pump()
        self._advance()

    def _go_on(self) -> None:
        """Others had their turn."""
        if not self._stalled:
            self._pump()
            self._advance()

    def _handle(self) -> None:
        assert self._request is not None
        self._wait(_HANDLING)
        self._asking = True
        answer: HttpResponse | Cancel | None
        try:
            if self._refusal is not None:
                raise self._refusal
            answer = self._server.application.respond(self._request, self._handled)
        except Exception as error:
            answer = as_http_error(error).response()
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
        response = answer if isinstance(answer, HttpResponse) else as_http_error(answer).response()
        if self._asking:
            self._early = response
            return
        self._cancel = None
        self._server.handling.discard(self)
        if self._phase is _CLOSING:  # nobody to tell
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
        if response.stream is not None and not (request and request.method == "HEAD"):
            self._begin_stream(response)
            return
        parts = [] if request and request.method == "HEAD" else response.parts
        nbytes = sum(map(len, response.parts))
        head = (
            f"HTTP/1.1 {response.status} {_PHRASES.get(response.status, '')}\r\n"
            f"Date: {self._server.date}\r\n"
            f"Content-Type: {response.content_type}\r\n"
            f"Content-Length: {nbytes}\r\n"
        )
        for name, value in response.headers:
            head += f"{name}: {value}\r\n"
        if not self._keep_alive or (request and request.version == "1.0"):
            head += f"Connection: {'keep-alive' if self._keep_alive else 'close'}\r\n"
        joined: list[bytes | memoryview] = [f"{head}\r\n".encode("latin-1")]
        if nbytes <= JOIN_BYTES:
            self._queue.append(b"".join(joined + parts))
        else:
            for index, part in enumerate(parts):
                if len(part) > JOIN_BYTES:
                    self._queue.extend([b"".join(joined), *parts[index:]])
                    break
                joined.append(part)
            else:
                self._queue.append(b"".join(joined))
        self._server.answers += 1
        if (log := self._server.access_log) is not None:
            took_s = monotonic() - self._asked_s if request is not None else 0.0
            log.answered(self.client, request, response.status, took_s, sum(map(len, parts)))
        self._wait(_SENDING)
        self._pump()

    def _begin_stream(self, response: HttpResponse) -> None:
        """Sends the head of an answer without an end; the connection ends with it."""
        assert response.stream is not None
        lines = [f"HTTP/1.1 {response.status} OK", f"Date: {self._server.date}", "Connection: close"]
        lines += [f"Content-Type: {response.content_type}", *(f"{name}: {value}" for name, value in response.headers)]
        self._keep_alive = False
        self._server.answers += 1
        self._wait(_STREAMING)
        self._transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        ended = response.stream(self._push)

        def end() -> None:
            self._cancel = None
            ended()
            self._finish()

        self._cancel = end

    def _push(self, data: bytes) -> bool:
        """Sends a piece of an answer without an end; False if the client is gone or has not read the last."""
        if self._phase is not _STREAMING or self._transport.is_closing() or self._stalled:
            return False
        self._transport.write(data)
        self._wait(_STREAMING, self._server.limits.send_timeout_s if self._stalled else None)
        return True

    def _pump(self) -> None:
        """Hands the response to the transport for as long as the socket takes it all."""
        if self._phase is not _SENDING:
            return  # the client read our 100 Continue late, or is gone
        written = 0
        while self._queue and not self._stalled:
            if written >= TURN_BYTES:
                self._wait(_SENDING, self._server.limits.send_timeout_s)
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
            self._wait(_SENDING, self._server.limits.send_timeout_s)
            return
        self._finish()
        if self._keep_alive and not self._server.draining:
            self._rest(self._server.limits.idle_timeout_s)
            return
        self._wait(_CLOSING, self._server.limits.linger_s)
        if not self._lingers:
            self._transport.close()
            return
        # The client may be gone already; and TLS has no half of a connection to close.
        with contextlib.suppress(OSError, NotImplementedError):
            self._transport.write_eof()

    def _finish(self) -> None:
        """Gives back everything that the request held."""
        request, response = self._request, self._response
        self._request = self._response = self._refusal = None
        self._queue.clear()
        self._let_go()
        if response is not None and response.release is not None:
            response.release()
        if request is not None and request.body is not None:
            request.body.release()


def as_http_error(error: BaseException) -> HttpError:
    """What a client is told; what it should not know goes to the log."""
    if isinstance(error, HttpError):
        return error
    _LOG.error("a request failed unexpectedly", exc_info=error)
    return HttpError(500, "internal error; the server's log has the cause")
