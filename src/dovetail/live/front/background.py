"""A file that is written by a thread of its own: a slow or hanging disk holds up nobody.

Rules of this file
- `write`, `flush` and `close` have the meaning of a file's, but only `close` may wait, and that for a bounded time.
- What waits to be written is bounded. Beyond that, and after an error of the thread, `write` and `flush` raise
  OSError: whoever writes decides what that means.
- A path that is a pipe without a reader is refused, not waited for.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from ...errors import LogError

__all__ = ["BackgroundFile", "keep_earlier"]

#: Bytes that wait to be written [our choice: half a minute of the log at ten thousand steps a second].
MAX_WAITING_BYTES = 64 << 20
#: How long `close` waits for the rest [our choice].
CLOSE_SECONDS = 5.0


#: Earlier files that are kept [our choice].
EARLIER = 5


def keep_earlier(path: Path) -> Path | None:
    """Renames a file that is about to be overwritten, and says where it is: FILE.1, what was that to FILE.2, ..."""
    try:
        if not path.is_file() or path.stat().st_size == 0:
            return None
        for number in range(EARLIER - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.is_file():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        return path.replace(path.with_name(f"{path.name}.1"))
    except OSError as error:
        raise LogError(f"cannot keep the earlier log {path}: {error.strerror or error}") from None


class BackgroundFile:
    """A new file for writing, without a position."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        os.set_blocking(self._fd, True)
        self.closed = False
        self._data = bytearray()
        self._error: OSError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="dovetail-log", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> int:
        """Take it; it is written later."""
        with self._changed:
            self._check()
            if len(self._data) + len(data) > MAX_WAITING_BYTES:
                self._error = OSError(errno.ENOBUFS, "the disk is too slow for it")
                self._check()
            self._data += data
        return len(data)

    def flush(self) -> None:
        """Have it written soon; raises what went wrong before."""
        with self._changed:
            self._check()
            self._changed.notify()

    def close(self) -> None:
        """Write the rest, within a moment."""
        if self.closed:
            return
        with self._changed:
            self.closed = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)
        if self._error is not None:
            raise self._error

    def _check(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._data and not self.closed:
                        self._changed.wait()
                    data, self._data = self._data, bytearray()
                    over = self.closed
                view = memoryview(data)
                while view:
                    view = view[os.write(self._fd, view) :]
                if over and not self._data:
                    return
        except OSError as error:
            self._error = error
        finally:
            os.close(self._fd)
