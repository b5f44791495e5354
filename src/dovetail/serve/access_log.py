"""The access log: one line of JSON for each answer, written by a thread and never waited for.

    {"time":"2026-11-18T07:00:00.123Z","client":"127.0.0.1","method":"POST","path":"/v2/models/m/infer","status":200,
     "ms":12.3,"bytes_in":1024,"bytes_out":180,"agent":"curl/8.5.0"}

A request whose head was not sound has neither method nor path. A file is added to, so it can be rotated by copying
and cutting it. Neither bodies nor other headers are written.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from ..errors import LogError
from .framing import HttpRequest
from .voice import Voice, stamp

__all__ = ["AccessLog"]

#: Longest text of a client that is written [our choice].
MAX_CHARS = 256


class AccessLog:
    """Lines for a file, or for stderr if it is called "-"."""

    def __init__(self, path: Path) -> None:
        self._fd = 2
        if str(path) != "-":
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
            try:
                self._fd = os.open(path, flags, 0o640)
            except OSError as error:
                raise LogError(f"cannot write the access log {path}: {error.strerror}") from None
        self._voice = Voice(self._fd, lost=lambda count: f'{{"lost_lines":{count}}}')

    def answered(self, client: str, request: HttpRequest | None, status: int, took_s: float, sent_bytes: int) -> None:
        """One answer was given to the transport."""
        entry: dict[str, object] = {"time": stamp(time.time()), "client": client}
        if request is not None:
            entry |= {"method": request.method, "path": request.path[:MAX_CHARS]}
        entry |= {"status": status, "ms": round(took_s * 1000, 3)}
        if request is not None:
            entry |= {"bytes_in": request.content_length, "bytes_out": sent_bytes}
            entry["agent"] = request.headers.get("user-agent", "")[:MAX_CHARS]
        self._voice.line(msgspec.json.encode(entry).decode())

    def close(self) -> None:
        """Write the rest, within a moment."""
        self._voice.close(self._fd != 2)
