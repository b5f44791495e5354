"""What the server says to its operator: lines on stderr, with the time before each.

Rules of this file
- To say something neither raises nor waits, whatever stderr is: closed, full, or a pipe that nobody reads. A thread
  of its own writes. What it cannot write in time is dropped, and the number of lost lines is said later.
- What waits to be written is bounded, and so is what one source may say again and again (`Seldom`).
- The service never depends on this thread: it may hang in a write for ever, and ends with the process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["MAX_WAITING_BYTES", "LogToVoice", "Seldom", "Voice", "keep_standard_descriptors", "stamp"]

#: Lines that wait to be written, together [our choice: minutes of a talkative stage, little beside an arena].
MAX_WAITING_BYTES = 1 << 20
#: Longest line; the rest of it is cut off [our choice: a traceback of 100 frames].
MAX_LINE_BYTES = 16 << 10
#: How long the end of the process waits for its last words [our choice].
LAST_WORDS_SECONDS = 1.0
#: A message of one source that repeats itself is said again after this time [our choice].
SELDOM_SECONDS = 10.0


def keep_standard_descriptors() -> None:
    """Fills 0, 1 and 2 if they were closed: else the next file or socket would get the number, and our lines."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.dup(2), "w", errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.dup(1), "w", errors="backslashreplace")


def stamp(unix_s: float) -> str:
    """A moment as logs have it: UTC with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s))
    return f"{whole}.{int(unix_s * 1000) % 1000:03}Z"


class Voice:
    """Lines for one descriptor, written by a thread."""

    def __init__(
        self,
        fd: int = 2,
        now: Callable[[], float] = time.time,
        lost: Callable[[int], str] | None = None,
        as_json: bool = False,
    ) -> None:
        """`lost` words what is written in place of so many lines that were lost; `as_json`: each text is a record."""
        self.as_json = as_json
        self._fd = fd
        self._lost_text = lost or self._said_lost
        self._now = now
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._lost = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._closing = self._owns = False
        self._thread: threading.Thread | None = None

    def say(self, text: str, level: str = "") -> None:
        """A line for the operator; each line of a longer text has the time before it.

        As JSON it is one record, however many lines it has.
        """
        when = stamp(self._now())
        if self.as_json:
            level = level or ("warning" if text.startswith("WARNING") else "info")
            record = {"time": when, "level": level, "message": text[: MAX_LINE_BYTES // 8], "pid": os.getpid()}
            self._put(json.dumps(record))
            return
        for line in text.splitlines() or [""]:
            self._put(f"{when} dovetail: {line}")

    def line(self, text: str) -> None:
        """A line for programs, as it is."""
        self._put(text)

    def _put(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")[:MAX_LINE_BYTES] + b"\n"
        with self._lock:
            if self._closing or self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
                self._lost += 1
                return
            self._lines.append(data)
            self._waiting_bytes += len(data)
            self._idle.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="dovetail-voice", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads, or the interpreter ends
                    self._thread = None
        self._wake.set()

    def close(self, descriptor: bool = False) -> None:
        """Wait a moment until everything is written; nothing can be said after it.

        With `descriptor` that is closed, too, by the thread that may be writing to it.
        """
        self._owns = descriptor
        self._idle.wait(LAST_WORDS_SECONDS)
        with self._lock:
            self._closing = True
            if self._thread is None and descriptor:
                os.close(self._fd)
        self._wake.set()

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lines:
                with self._lock:
                    data = self._lines.popleft()
                    lost, self._lost = self._lost, 0
                if lost:
                    self._write(f"{self._lost_text(lost)}\n".encode())
                self._write(data)
                with self._lock:
                    self._waiting_bytes -= len(data)
            with self._lock:
                if not self._lines:
                    self._idle.set()
                    if self._closing:
                        if self._owns:
                            os.close(self._fd)
                        return

    def _said_lost(self, lost: int) -> str:
        if self.as_json:
            return json.dumps({"time": stamp(self._now()), "level": "warning", "lost_lines": lost})
        return f"{stamp(self._now())} dovetail: {lost} line(s) were lost here: nobody took them"

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # whoever shares it has made it so
                with contextlib.suppress(OSError):
                    select.select([], [self._fd], [], 1.0)
            except (OSError, ValueError):
                return  # closed, full, or nobody at the other end


class LogToVoice(logging.Handler):
    """What libraries log, the event loop among them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Hand it on."""
        try:
            text = self.format(record)
        except Exception:  # arguments that do not fit their format are no reason to fail
            text = str(record.msg)
        self._say(text)


class Seldom:
    """Lets a message through when it is new or has been silent for a while, with the number left out meanwhile."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._until = 0.0
        self._left_out = 0

    def __call__(self, text: str) -> None:
        now = self._clock()
        if now < self._until:
            self._left_out += 1
            return
        more = f" ({self._left_out} times more meanwhile)" if self._left_out else ""
        self._until, self._left_out = now + SELDOM_SECONDS, 0
        self._say(f"{text}{more}")
