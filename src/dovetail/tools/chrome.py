"""Chrome trace events: the JSON that ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format" (Chromium), as Perfetto's JSON importer reads it. What that importer is strict about:
slices of one track must nest, an arrow binds to the slice that covers its time, both halves of an async event must
be there. Times come in as nanoseconds and go out as microseconds, exact up to 104 days.

Memory: events are kept as compressed JSON, about 20 bytes for each.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

__all__ = ["ChromeTrace", "Place"]

_PIECE_BYTES = 1 << 20


class Place(NamedTuple):
    """A time on a track."""

    pid: int
    tid: int
    at_ns: int


class ChromeTrace:
    """A growing list of events."""

    def __init__(self, first_id: int = 1) -> None:
        self.events = 0
        self._next_id = first_id
        self._encode = msgspec.json.Encoder().encode
        self._packed: list[bytes] = []
        self._tail = bytearray()

    def branch(self) -> ChromeTrace:
        """An empty trace whose ids go on from here, for events that may be left out again."""
        return ChromeTrace(self._next_id)

    def process(self, pid: int, name: str) -> None:
        """Name a process; processes are shown in the order of their numbers."""
        self._meta("process_name", pid, 0, {"name": name})
        self._meta("process_sort_index", pid, 0, {"sort_index": pid})

    def track(self, pid: int, tid: int, name: str) -> None:
        """Name a track of a process; tracks are shown in the order of their numbers."""
        self._meta("thread_name", pid, tid, {"name": name})
        self._meta("thread_sort_index", pid, tid, {"sort_index": tid})

    def slice(self, begin: Place, end_ns: int, cat: str, name: str, args: Mapping[str, Any]) -> None:
        """Something that has a track to itself from `begin` to `end_ns`."""
        dur = (end_ns - begin.at_ns) / 1000
        self._add("X", begin, {"cat": cat, "name": name, "dur": dur, "args": args})

    def span(self, begin: Place, end_ns: int, cat: str, name: str, args: Mapping[str, Any]) -> None:
        """Something that may overlap with others; spans of one process and name are shown as one group."""
        common = {"cat": cat, "name": name, "id": self._ident()}
        self._add("b", begin, {**common, "args": args})
        self._add("e", begin._replace(at_ns=end_ns), common)

    def arrow(self, start: Place, end: Place, cat: str, name: str) -> None:
        """An arrow between the slices that cover two places."""
        common = {"cat": cat, "name": name, "id": self._ident()}
        self._add("s", start, common)
        # "e": bind to the slice that encloses the place, not to the one that begins next.
        self._add("f", end, {**common, "bp": "e"})

    def instant(self, pid: int, at_ns: int, name: str, args: Mapping[str, Any]) -> None:
        """Something that happened to a whole process."""
        self._add("i", Place(pid, 0, at_ns), {"cat": "instant", "name": name, "s": "p", "args": args})

    def counter(self, pid: int, at_ns: int, name: str, values: Mapping[str, int]) -> None:
        """The values of a counter from this time on."""
        self._add("C", Place(pid, 0, at_ns), {"name": name, "args": values})

    def write(self, path: Path, tail: ChromeTrace, other: Mapping[str, Any]) -> None:
        """Write these events and those of `tail`; a name that ends in ``.gz`` is compressed (Perfetto opens it)."""
        with path.open("wb") as file:
            if path.suffix == ".gz":
                # No name and no time inside: the same trace is the same file.
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                    packed.writelines(self._document(tail, other))
            else:
                file.writelines(self._document(tail, other))

    def _document(self, tail: ChromeTrace, other: Mapping[str, Any]) -> Iterator[bytes]:
        yield b'{"displayTimeUnit":"ms","otherData":' + self._encode(other) + b',"traceEvents":[\n'
        before = b""
        for piece in (*self._pieces(), *tail._pieces()):
            yield before + piece
            before = b",\n"
        yield b"\n]}\n"

    def _pieces(self) -> Iterator[bytes]:
        for piece in self._packed:
            yield zlib.decompress(piece)[:-2]
        if self._tail:
            yield bytes(self._tail[:-2])

    def _ident(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _meta(self, what: str, pid: int, tid: int, args: Mapping[str, Any]) -> None:
        self._add("M", Place(pid, tid, 0), {"name": what, "args": args})

    def _add(self, phase: str, place: Place, rest: Mapping[str, Any]) -> None:
        self.events += 1
        pid, tid, at_ns = place
        self._tail += self._encode({"ph": phase, "ts": at_ns / 1000, "pid": pid, "tid": tid, **rest})
        self._tail += b",\n"
        if len(self._tail) >= _PIECE_BYTES:
            # Level 1: events are so alike that more effort gains little and takes time from the run.
            self._packed.append(zlib.compress(self._tail, 1))
            self._tail.clear()
