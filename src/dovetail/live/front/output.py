"""What a worker prints: read by the front as it comes, so that a stage that prints never waits for our stderr.

Rules of this file
- The event loop reads a piece a turn. What is read beyond the budget is thrown away unread, and its size is said.
- A line is said with the worker's name. What of a worker's output is no line yet is bounded, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

__all__ = ["WorkerOutput", "never_raises"]

#: Read in one turn of the event loop: about what a pipe holds.
PIECE_BYTES = 64 << 10
#: What a worker may say per second, and at once after silence [our choice]. Lines cost some microseconds each.
LINES_PER_SECOND, MOST_LINES = 200, 2000
#: Longest line [our choice]; a longer one is told in pieces.
MAX_LINE_BYTES = 4 << 10


class WorkerOutput:
    """The reading end of a pipe; `write_fd` is for the worker, to be closed once it has it."""

    def __init__(self, name: str, say: Callable[[str], None], loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._say = say
        self._loop = loop
        self._rest = b""
        self._lines = float(MOST_LINES)
        self._filled_s = loop.time()
        self._skipped_bytes = 0
        self._read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_fd, False)
        loop.add_reader(self._read_fd, self._take)

    def _take(self) -> bool:
        """Read one piece; False if there is none."""
        try:
            data = os.read(self._read_fd, PIECE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        now_s = self._loop.time()
        self._lines = min(float(MOST_LINES), self._lines + (now_s - self._filled_s) * LINES_PER_SECOND)
        self._filled_s = now_s
        if self._lines < 1:
            self._skipped_bytes += len(self._rest) + len(data)
            self._rest = b""
            return True
        self._tell_skipped()
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        allowed = int(self._lines)
        for line in lines[:allowed]:
            self._tell(line)
        self._lines -= min(allowed, len(lines))
        self._skipped_bytes += sum(map(len, lines[allowed:]))
        return True

    def _tell(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode(errors="backslashreplace").rstrip()
        self._say(f"worker {self._name}: {text}")

    def _tell_skipped(self) -> None:
        if self._skipped_bytes:
            self._say(f"worker {self._name}: ... {self._skipped_bytes} bytes of its output were left out")
            self._skipped_bytes = 0

    def close(self) -> None:
        """Nobody writes any more, or nobody reads. What is still in the pipe is taken."""
        if self._read_fd < 0:
            return
        self._loop.remove_reader(self._read_fd)
        fd, self._read_fd = self._read_fd, -1
        with contextlib.suppress(OSError):
            self._rest += os.read(fd, PIECE_BYTES)
        os.close(fd)
        self._tell_skipped()
        lines = [line for line in self._rest.split(b"\n") if line]
        for line in lines[: max(1, int(self._lines))]:
            self._tell(line)
        self._rest = b""


def never_raises(say: Callable[[str], None]) -> Callable[[str], None]:
    """Whoever listens may have gone; that must not reach what is being told of."""

    def told(text: str) -> None:
        with contextlib.suppress(Exception):
            say(text)

    return told
