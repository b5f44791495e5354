"""What ran on a worker's device, kernel by kernel, in a file that `dovetail trace --log` shows.

Several workers may add to one file: whole lines, in one write. It is bounded: a worker writes so many lines and says
that it stops.
"""

from __future__ import annotations

import os
import sys
import threading

from ...record.kernels import KernelRecord, encode_record

__all__ = ["MOST_RECORDS", "KernelLog"]

#: Records that a worker writes, about 200 bytes each.
MOST_RECORDS = 250_000
#: Records that are kept until they are written together.
MOST_KEPT = 500


class KernelLog:
    """Adds to a file; safe to use from any thread."""

    def __init__(self, path: str, most: int = MOST_RECORDS) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._lines: list[bytes] = []
        self._left = most
        self._writing = threading.Lock()

    def add(self, record: KernelRecord) -> None:
        """Keep a record, and write when there are many."""
        with self._writing:
            if not self._left:
                return
            self._left -= 1
            self._lines.append(encode_record(record))
            many = len(self._lines) >= MOST_KEPT or not self._left
        if many:
            self.flush()

    def flush(self) -> None:
        """Write what was kept."""
        try:
            with self._writing:
                lines, self._lines = self._lines, []
                os.write(self._fd, b"".join(lines))
        except OSError as error:  # a full disk is no reason to stop serving
            self._left = 0
            print(f"kernels are no longer written to {self._path}: {error.strerror}", file=sys.stderr, flush=True)
            return
        if lines and not self._left:
            print(f"{self._path} is full: later kernels are not written", file=sys.stderr, flush=True)
