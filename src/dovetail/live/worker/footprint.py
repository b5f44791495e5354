"""What this process has in memory, measured, and how memory that was freed goes back to the machine.

Rules of this file: only anonymous memory counts. Files that are mapped belong to everybody, and arenas are shared and
have a bound of their own. Figures are the kernel's (`/proc/self`); nothing is taken from the size of a file.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["Peak", "anonymous_bytes", "blocks_apart", "one_heap", "quick_bytes", "trim", "weigh"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None)
#: glibc's `mallopt` numbers.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Blocks from this size on are mapped one by one while a model is loaded, so that its copies go back at once. With
#: OpenNSFW (23.6 MB) that lowers the peak of a load from 67 to 55 MB; 1 MiB lowers it to 60 MB.
_APART_BYTES = 256 << 10
#: The same while batches run. Pages of a mapped block have to be cleared each time: with 256 KiB that costs the text
#: detector 50 % of its time, with 1 MiB 25 %, with 4 MiB nothing that can be measured. With 32 MiB, which is where
#: glibc would arrive by itself, 21 MB instead of 3 MB stay in the heap after it.
_HEAP_BYTES = 4 << 20
#: The heap is cut at its end when so much is free there; otherwise only by `trim`.
_TRIM_BYTES = 64 << 20
#: How much more than it keeps a model takes while it loads, where that cannot be measured: 2.3 times was the most.
_TRANSIENT_FACTOR = 2.5

_apart_lock = threading.Lock()
_apart = 0


def anonymous_bytes() -> int:
    """Anonymous memory, exactly. Walks all pages, which takes about a millisecond."""
    with open("/proc/self/smaps_rollup", "rb", buffering=0) as file:
        return _value(file.read(1 << 14), b"Anonymous:")


def quick_bytes() -> int:
    """About the same from counters, in a few microseconds."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        fields = file.read(256).split()
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES


def one_heap() -> None:
    """Call before there are threads: glibc gives each a heap of its own, and `trim` cuts but the first at its end."""
    with suppress(AttributeError):
        _libc.mallopt(_M_ARENA_MAX, 1)
    _set_apart(0)


def trim() -> None:
    """Give back what the heap does not use: 0.1 to 10 ms."""
    with suppress(AttributeError):  # another C library than glibc, which has its own ways
        _libc.malloc_trim(0)


@contextmanager
def blocks_apart() -> Iterator[None]:
    """While a model is loaded: large blocks are mapped one by one, so that none stays behind in the heap."""
    _set_apart(+1)
    try:
        yield
    finally:
        _set_apart(-1)


def _set_apart(change: int) -> None:
    global _apart
    with _apart_lock, suppress(AttributeError):
        _apart += change
        _libc.mallopt(_M_MMAP_THRESHOLD, _APART_BYTES if _apart else _HEAP_BYTES)
        _libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


class Peak:
    """The most memory that was used since it was made; only one at a time means anything."""

    def __init__(self) -> None:
        self.known = True
        try:
            with open("/proc/self/clear_refs", "wb", buffering=0) as file:
                file.write(b"5")
        except OSError:  # some sandboxes forbid it
            self.known = False
        self._before, self._files = _fields(b"VmRSS:", b"RssFile:")

    def above_bytes(self) -> int:
        """How far memory went above what it was at the beginning, but for files; shared pages count."""
        most, files = _fields(b"VmHWM:", b"RssFile:")
        return max(0, most - self._before - max(0, files - self._files)) if self.known else 0

    def kept_bytes(self) -> int:
        """How far memory is above that now."""
        now, files = _fields(b"VmRSS:", b"RssFile:")
        return max(0, now - self._before - max(0, files - self._files))


def weigh(load: Callable[[], object]) -> tuple[int, int, int]:
    """Load something alone and let it go: bytes that it keeps, bytes beyond that at the peak, and nanoseconds."""
    trim()
    before = anonymous_bytes()
    peak = Peak()
    begin_ns = time.monotonic_ns()
    with blocks_apart():
        loaded = load()
    load_ns = time.monotonic_ns() - begin_ns
    above = peak.above_bytes()
    trim()
    kept = max(_PAGE_BYTES, anonymous_bytes() - before)
    del loaded
    trim()
    return kept, max(0, above - kept) if peak.known else round((_TRANSIENT_FACTOR - 1) * kept), load_ns


def _fields(*names: bytes) -> list[int]:
    with open("/proc/self/status", "rb", buffering=0) as file:
        text = file.read(1 << 14)
    return [_value(text, name) for name in names]


def _value(text: bytes, name: bytes) -> int:
    return int(text[text.index(name) + len(name) :].split(None, 1)[0]) * 1024
