"""Where a message ends: heads and chunked bodies, without a socket."""

from __future__ import annotations

from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.serve.framing import MAX_KNOWN_HEADS, Chunks, Heads, HttpError, Limits, parse_head


def head(*lines: bytes, start: bytes = b"POST /v2 HTTP/1.1") -> bytes:
    return b"\r\n".join([start, b"Host: h", *lines, b"", b""])


def test_a_sound_head() -> None:
    request = parse_head(head(b"Content-Length: 12 ", b"X-Many: a", b"X-Empty:", b"x-many: b"))
    assert (request.method, request.path, request.version) == ("POST", "/v2", "1.1")
    assert request.headers == {"host": "h", "content-length": "12", "x-many": "a, b", "x-empty": ""}
    assert request.content_length == 12
    assert request.keep_alive


def test_a_head_that_comes_again_is_a_request_of_its_own() -> None:
    heads = Heads()
    first = heads.parse(head(b"Content-Length: 1"))
    first.body = "what the first one sent"
    again = heads.parse(head(b"Content-Length: 1"))
    assert again == parse_head(head(b"Content-Length: 1"))
    assert heads.parse(head(b"Content-Length: 2")).content_length == 2


def test_few_heads_are_remembered_and_none_that_is_long_or_bad() -> None:
    heads = Heads()
    for number in range(3 * MAX_KNOWN_HEADS):
        assert heads.parse(head(b"X: %d" % number)).headers["x"] == str(number)
        assert len(heads._known) <= MAX_KNOWN_HEADS
    before = len(heads._known)
    heads.parse(head(b"X: " + b"x" * 4000))
    for _ in range(2):
        with pytest.raises(HttpError, match="Content-Length"):
            heads.parse(head(b"Content-Length: 1", b"Content-Length: 1"))
    assert len(heads._known) == before


@pytest.mark.parametrize(
    ("start", "options", "keep_alive"),
    [
        (b"GET / HTTP/1.1", b"X: y", True),
        (b"GET / HTTP/1.1", b"Connection: close", False),
        (b"GET / HTTP/1.1", b"Connection: Foo, Close", False),
        (b"GET / HTTP/1.0", b"X: y", False),
        (b"GET / HTTP/1.0", b"Connection: Keep-Alive", True),
        (b"GET / HTTP/1.0", b"Connection: keep-alive, close", False),
    ],
)
def test_keep_alive(start: bytes, options: bytes, keep_alive: bool) -> None:
    assert parse_head(head(options, start=start)).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("target", "path"),
    [(b"/a/b?c=/d", "/a/b"), (b"http://h:80/a%20b?c", "/a%20b"), (b"http://h", "/"), (b"/%2e/x", "/%2e/x")],
)
def test_target(target: bytes, path: str) -> None:
    assert parse_head(head(start=b"GET " + target + b" HTTP/1.1")).path == path


def test_an_offer_to_upgrade_is_ignored() -> None:
    request = parse_head(head(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"Content-Length: 3"))
    assert request.content_length == 3


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
        [b"Content-Length: 5", b"Content-Length: 6"],
        [b"Content-Length: 5", b"Content-Length: 5"],
        [b"Content-Length: 5, 5"],
        [b"Content-Length: +5"],
        [b"Content-Length: -5"],
        [b"Content-Length: 5_0"],
        [b"Content-Length: 0x5"],
        [b"Content-Length: 99999999999999999999"],
        [b"Content-Length: " + b"0" * 5000],
        [b"Content-Length:"],
        [b"Content-Length : 5"],
        [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked, identity"],
        [b"Transfer-Encoding: xchunked"],
        [b"Transfer-Encoding: \x0bchunked"],
        [b"Transfer-Encoding:"],
        [b"Host: other"],
        [b" Folded: start"],
        [b"X: a", b" folded"],
        [b"X: a\nContent-Length: 5"],
        [b"X: a\rContent-Length: 5"],
        [b"X: a\0b"],
        [b"X\xff: a"],
        [b": a"],
        [b"no colon"],
        [b"X: a\r\n\nGET / HTTP/1.1"],
    ],
)
def test_two_readings_are_refused(lines: list[bytes]) -> None:
    with pytest.raises(HttpError) as refusal:
        parse_head(head(*lines))
    assert refusal.value.status == 400


@pytest.mark.parametrize("reports", [["on_headers_complete"] * 2, ["on_message_begin", "on_headers_complete"], []])
def test_the_parser_has_to_see_exactly_one_head(monkeypatch: pytest.MonkeyPatch, reports: list[str]) -> None:
    """Today's llhttp always does; another version may read the same bytes in another way."""

    class Other:
        def __init__(self, report: Any) -> None:
            self.report = report

        def feed_data(self, data: bytes) -> None:
            for name in ("on_message_begin", *reports):
                getattr(self.report, name)()

    monkeypatch.setattr(httptools, "HttpRequestParser", Other)
    with pytest.raises(HttpError, match="does not end where it should"):
        parse_head(head())


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b"GET /", 400),
        (b"GET / HTTP/1", 505),
        (b"GET / HTTP/2.0", 505),
        (b"PRI * HTTP/2.0", 505),
        (b"GET / RTSP/1.0", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"GET / x HTTP/1.1", 400),
        (b"GET x HTTP/1.1", 400),
        (b"GET /\xff HTTP/1.1", 400),
        (b"CONNECT h:80 HTTP/1.1", 400),
        (b"BREW / HTTP/1.1", 405),
        (b"get / HTTP/1.1", 405),
    ],
)
def test_bad_request_lines(start: bytes, status: int) -> None:
    with pytest.raises(HttpError) as refusal:
        parse_head(head(start=start))
    assert refusal.value.status == status


def test_more_refusals() -> None:
    for data, status in [
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (head(b"Transfer-Encoding: gzip, chunked"), 501),
    ]:
        with pytest.raises(HttpError) as refusal:
            parse_head(data)
        assert refusal.value.status == status


@given(st.binary(max_size=300))
def test_any_head_is_a_request_or_a_refusal(noise: bytes) -> None:
    for data in (noise + b"\r\n\r\n", head(noise), head(start=noise), head(b"Content-Length: " + noise)):
        try:
            request = parse_head(data)
        except HttpError as refusal:
            assert refusal.status in (400, 405, 501, 505)
        else:
            assert request.content_length is None or request.content_length >= 0


def chunked(pieces: list[bytes], extension: bytes = b"", trailers: bytes = b"") -> bytes:
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces if piece)
    return body + b"0\r\n" + trailers + b"\r\n"


@given(
    st.lists(st.binary(max_size=50), max_size=8),
    st.sampled_from([b"", b";a", b" ; name=value"]),
    st.sampled_from([b"", b"Checksum: 5\r\n"]),
    st.binary(max_size=9),
    st.integers(1, 40),
)
def test_chunks_in_any_pieces(pieces: list[bytes], extension: bytes, trailers: bytes, rest: bytes, step: int) -> None:
    data = bytearray(chunked(pieces, extension, trailers) + rest)
    chunks = Chunks(Limits())
    start = 0
    for end in range(step, len(data) + step, step):
        start = chunks.feed(data, start, min(end, len(data)))
    assert chunks.done
    assert bytes(chunks.data) == b"".join(pieces)
    assert bytes(data[start:]) == rest


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"x\r\n", 400),
        (b"\r\n", 400),
        (b"-1\r\n", 400),
        (b"+1\r\n", 400),
        (b"0x1\r\n", 400),
        (b"1_0\r\n", 400),
        (b" 1\r\n", 400),
        (b"1\n;\r\n", 400),
        (b"1;\n\r\n", 400),
        (b"100000000\r\n", 400),
        (b"1\r\nab\r\n", 400),
        (b"1\r\na\n0\r\n", 400),
        (b"1;" + b"x" * 300, 400),
        (b"65\r\n", 413),
        (b"60\r\n" + b"a" * 96 + b"\r\n5\r\n", 413),
        (b"0\r\n" + b"T: 1\r\n" * 200, 431),
    ],
)
def test_bad_chunks(data: bytes, status: int) -> None:
    with pytest.raises(HttpError) as refusal:
        Chunks(Limits(max_body_bytes=100, max_head_bytes=500)).feed(bytearray(data), 0, len(data))
    assert refusal.value.status == status
