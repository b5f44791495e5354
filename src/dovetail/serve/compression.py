"""Bodies that come or go compressed: gzip and deflate (RFC 9110, 8.4.1).

Rules of this file
- What a compressed body becomes is bounded before it is made, however well it was compressed.
- Whatever takes more than a moment is done by a thread of its own: zlib lets go of the interpreter, and others are
  served meanwhile. There are two such threads, so two bodies at most lie unpacked on the heap.
- An answer in JSON is compressed if the client takes that. Raw tensors are compressed only if it takes nothing else:
  most clients say by default that they take gzip, and numbers hardly become smaller.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from .framing import HttpError, HttpResponse

__all__ = ["CODINGS", "INLINE_BYTES", "Threads", "accepted", "compressed", "inflated"]

CODINGS = {"gzip": 31, "deflate": 15}  # and the `wbits` of zlib
#: Smaller answers are left as they are; so much is compressed at once, in about 1 ms; the fastest level.
LEAST_BYTES, INLINE_BYTES, LEVEL = 1024, 64 << 10, 1
_PIECE = 1 << 20


class Threads:
    """Two threads for all connections, started when they are needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def run(self, then: Callable[[Any], None], function: Callable[..., Any], *args: Any) -> None:
        """Call a function in a thread, and `then` in this one with what it returned or raised."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(2, thread_name_prefix="compression")

        def ended(future: asyncio.Future[Any]) -> None:
            error = future.exception()
            then(future.result() if error is None else error)

        asyncio.get_running_loop().run_in_executor(self._pool, function, *args).add_done_callback(ended)


def inflated(data: memoryview, coding: str, most_bytes: int) -> bytearray:
    """The body that was compressed; raises `HttpError` if it is not sound, or too large."""
    found = bytearray()
    machine = zlib.decompressobj(CODINGS[coding])
    at = 0
    try:
        while not machine.eof:
            piece = machine.unconsumed_tail or data[at : at + _PIECE]
            if not machine.unconsumed_tail:
                at += len(piece)
            if not piece:
                raise HttpError(400, f"the {coding} body ends before its end")
            found += machine.decompress(piece, min(_PIECE, most_bytes + 1 - len(found)))
            if len(found) > most_bytes:
                raise HttpError(413, f"the body is larger than {most_bytes} bytes once it is unpacked")
    except zlib.error as error:
        raise HttpError(400, f"the body is not {coding}: {error}") from None
    if machine.unused_data or at < len(data):
        raise HttpError(400, f"bytes follow the end of the {coding} body")
    return found


@lru_cache(64)
def _taken(header: str) -> tuple[str, bool]:
    """The coding of ours that a client likes best, or none, and whether it takes no other at all."""
    codings: dict[str, float] = {}
    for part in header.lower().split(","):
        name, _, weight = part.partition(";")
        try:
            codings[name.strip()] = float(weight.partition("=")[2]) if weight.strip() else 1.0
        except ValueError:
            codings[name.strip()] = 0.0
    taken = {name: weight for name, weight in codings.items() if weight > 0 and name != "identity"}
    best = max((name for name in CODINGS if name in taken), key=lambda name: taken[name], default="")
    return best, len(taken) == 1


def accepted(headers: dict[str, str], response: HttpResponse) -> str:
    """The coding in which an answer goes out; empty if as it is."""
    header = headers.get("accept-encoding")
    if header is None or sum(map(len, response.parts)) < LEAST_BYTES:
        return ""
    best, only = _taken(header)
    return best if only or response.content_type != "application/octet-stream" else ""


def compressed(response: HttpResponse, coding: str) -> HttpResponse:
    """The same answer, smaller; what it held is let go of when that is sent."""
    machine = zlib.compressobj(LEVEL, zlib.DEFLATED, CODINGS[coding])
    parts: list[bytes | memoryview] = [machine.compress(part) for part in response.parts]
    parts.append(machine.flush())
    headers = (*response.headers, ("Content-Encoding", coding), ("Vary", "Accept-Encoding"))
    return HttpResponse(
        response.status, [b"".join(parts)], headers, response.content_type, response.close, response.release
    )
