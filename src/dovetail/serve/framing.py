"""Where an HTTP/1.1 message begins and ends: heads, lengths and chunks. Pure: bytes in, records or refusals out.

Rules of this file
- Where a message ends is decided here, once, and strictly. A head ends at its first CRLF CRLF, and llhttp has to
  agree that just one head is in there. Its body has one Content-Length or the single coding "chunked", never both
  (RFC 9112, 6.3). Whatever is open to a second reading gets 400 and the connection is closed: that is how requests
  are smuggled past a proxy.
- What would be too large is refused before it is read: chunk lines, trailers, chunked bodies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import httptools
import msgspec
from msgspec.structs import replace

__all__ = ["DEFAULT_LIMITS", "Chunks", "Heads", "HttpError", "HttpRequest", "HttpResponse", "Limits", "parse_head"]

MAX_CHUNK_LINE_BYTES = 256  # a chunk's size and extensions, or one trailer
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\t\x20-\x7e]*)?")
MAX_KNOWN_HEADS = 64
MAX_KNOWN_BYTES = 2048  # of one head; those of Triton's clients have 200 to 300 bytes
_ONCE = frozenset({"content-length", "transfer-encoding", "host"})


class Limits(msgspec.Struct, frozen=True):
    """What one client, and all of them together, may take. The times are nginx's defaults or below."""

    max_head_bytes: int = 32 << 10
    max_body_bytes: int = 64 << 20
    max_chunked_bytes: int = 256 << 20  # of all connections: chunked bodies are gathered on the heap
    max_unreceived_bytes: int = 256 << 20  # of bodies that have begun to arrive, of all connections
    max_connections: int = 1024
    #: Of one address. It is not lower because the address may be a proxy's.
    max_client_connections: int = 512
    head_timeout_s: float = 10.0
    #: A body has to arrive evenly: after this grace, half of it within half of the timeout, and so on.
    body_grace_s: float = 5.0
    body_timeout_s: float = 60.0
    min_chunked_bytes_per_s: int = 64 << 10  # of a body whose length nobody knows
    send_timeout_s: float = 60.0  # without the client taking a piece
    idle_timeout_s: float = 75.0
    linger_s: float = 2.0


DEFAULT_LIMITS = Limits()


class HttpRequest(msgspec.Struct):
    """A request whose head is sound. Header names are lower case; `body` is None if it is empty or was refused."""

    method: str
    path: str
    version: str
    headers: dict[str, str]
    keep_alive: bool
    content_length: int | None  # None: chunked
    body: Any = None  # what `Application.body` gave
    known: Any = None  # what `Application.check` has found out, for `Application.body`
    asked_s: float = 0.0  # when its head had come, by the event loop's clock
    who: Any = None  # the key that came with it, where keys are needed
    #: What an application has read from the head; all requests with the same head have the same list.
    notes: Any = None


class HttpResponse(msgspec.Struct):
    """An answer; its parts are bytes or memoryviews of bytes, read until `release` is called."""

    status: int
    parts: list[bytes | memoryview]
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"
    close: bool = False
    release: Callable[[], None] | None = None
    #: An answer without an end: called once its head is out with what sends more, and gives what to call at the end.
    stream: Callable[[Callable[[bytes], bool]], Callable[[], None]] | None = None


class HttpError(Exception):
    """A refusal with its status. `close`: the connection cannot or should not go on after it."""

    def __init__(
        self,
        status: int,
        reason: str,
        *headers: tuple[str, str],
        close: bool = False,
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """`more` goes into the answer beside the reason."""
        super().__init__(reason)
        self.status, self.headers, self.close, self.more = status, headers, close, more

    def response(self) -> HttpResponse:
        """The same as an answer: `{"error": reason}`."""
        body = msgspec.json.encode({"error": str(self), **self.more})
        return HttpResponse(self.status, [body], self.headers, close=self.close)


def parse_head(data: bytes) -> HttpRequest:
    """A request from the bytes of its head, CRLF CRLF included. Raises `HttpError` if it is not sound."""
    words = data[: data.index(b"\r\n")].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/"):
        raise HttpError(400, "a request line is a method, a target and HTTP/1.1 with single spaces between them")
    method, target, version = words
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise HttpError(505, "the supported versions are HTTP/1.1 and HTTP/1.0")
    fields: list[tuple[bytes, bytes]] = []
    marks: list[object] = []
    report = SimpleNamespace(
        on_message_begin=lambda: marks.append("begin"),
        on_header=lambda name, value: fields.append((name, value)),
        on_headers_complete=lambda: marks.append("end"),
        on_body=marks.append,
    )
    try:
        httptools.HttpRequestParser(report).feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # an offer that a server may ignore (RFC 9110, 7.8); curl and Java's client make it
    except httptools.HttpParserInvalidMethodError:
        raise HttpError(405, "unknown method", ("Allow", "GET, HEAD, POST")) from None
    except httptools.HttpParserError as error:
        raise HttpError(400, f"the request head is malformed: {error}") from None
    if marks != ["begin", "end"]:
        raise HttpError(400, "the request head is malformed: it does not end where it should")
    headers: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip(" \t")
        if name in headers:
            if name in _ONCE:
                raise HttpError(400, f"several {name} headers")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    modern = version == b"HTTP/1.1"
    if modern and "host" not in headers:
        raise HttpError(400, "HTTP/1.1 needs a Host header")
    options = {option.strip() for option in headers.get("connection", "").lower().split(",")}
    return HttpRequest(
        method=method.decode(),
        path=_path(target),
        version=version[5:].decode(),
        headers=headers,
        keep_alive="close" not in options and (modern or "keep-alive" in options),
        content_length=_body_length(headers, modern),
        notes=[],
    )


class Heads:
    """Reads heads as `parse_head` does, but the same bytes only once: a client sends the same head each time."""

    def __init__(self, check: Callable[[HttpRequest], None] = lambda _: None) -> None:
        """`check` raises `HttpError` for heads that are sound, but refused."""
        self._check = check
        self._known: dict[bytes, HttpRequest] = {}

    def forget(self) -> None:
        """Who may ask has changed: look at every head anew."""
        self._known.clear()

    def parse(self, data: bytes) -> HttpRequest:
        """A request of its own; its headers are shared and not to be changed."""
        request = self._known.get(data)
        if request is None:
            request = parse_head(data)
            self._check(request)
            if len(data) <= MAX_KNOWN_BYTES:
                if len(self._known) == MAX_KNOWN_HEADS:
                    self._known.clear()
                self._known[data] = request
        return replace(request)


def _path(target: bytes) -> str:
    if target[:1] != b"/":  # a whole URL, as proxies get it, is to be understood too (RFC 9112, 3.2.2)
        try:
            url: Any = httptools.parse_url(target)
            path: bytes | None = url.path  # its own annotation says that there always is one
        except httptools.HttpParserError:
            raise HttpError(400, "the request target is neither a path nor a URL") from None
        target = path or b"/"
    return target.partition(b"?")[0].decode("latin-1")


def _body_length(headers: dict[str, str], modern: bool) -> int | None:
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is None:
        if length is None:
            return 0
        if not (length.isascii() and length.isdigit() and len(length) < 20):
            raise HttpError(400, "Content-Length must be a decimal number")
        return int(length)
    if length is not None or not modern:
        raise HttpError(400, "Transfer-Encoding goes neither with Content-Length nor with HTTP/1.0")
    if coding.lower() != "chunked":
        raise HttpError(501, "the only supported transfer coding is chunked")
    return None


class Chunks:
    """Gathers a chunked body (RFC 9112, 7.1): size, data and an empty line, over and over, then trailers."""

    def __init__(self, limits: Limits) -> None:
        self.data = bytearray()
        self.done = False
        self._limits = limits
        self._left = 0  # bytes still to come of the chunk
        self._next = "size"  # what the next line is
        self._trailer_bytes = 0

    def feed(self, buffer: bytearray, start: int, end: int) -> int:
        """Takes what it can of `buffer[start:end]` and says where the rest begins."""
        while not self.done:
            if taken := min(self._left, end - start):
                self.data += buffer[start : start + taken]
                self._left -= taken
                start += taken
            if self._left:
                break
            stop = buffer.find(b"\r\n", start, end)
            if (stop if stop >= 0 else end) - start > MAX_CHUNK_LINE_BYTES:
                raise HttpError(400, f"a line of the chunked body is longer than {MAX_CHUNK_LINE_BYTES} bytes")
            if stop < 0:
                break
            self._take_line(bytes(buffer[start:stop]))
            start = stop + 2
        return start

    def _take_line(self, line: bytes) -> None:
        if self._next == "size":
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise HttpError(400, "bad chunk size")
            self._left = int(match[1], 16)
            if len(self.data) + self._left > self._limits.max_body_bytes:
                raise HttpError(413, f"the body is larger than {self._limits.max_body_bytes} bytes")
            self._next = "end of chunk" if self._left else "trailer"
        elif self._next == "end of chunk":
            if line:
                raise HttpError(400, "a chunk is longer than its size")
            self._next = "size"
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > self._limits.max_head_bytes:
                raise HttpError(431, f"the trailers are larger than {self._limits.max_head_bytes} bytes")
            self.done = not line
