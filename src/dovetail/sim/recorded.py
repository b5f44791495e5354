"""Recorded arrivals: traces that others have published, and plain lists of times.

    timestamps              one time in seconds per line (first column), in order; a header is skipped
    azure-functions-2021    app,func,end_timestamp,duration in seconds; a request arrives at end - duration
    azure-llm               TIMESTAMP,ContextTokens,GeneratedTokens; TIMESTAMP is ISO 8601, in order

The two Azure formats are those of github.com/Azure/AzurePublicDataset. Times count from the first arrival.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, islice

import msgspec
import numpy as np

from ..errors import ScenarioError
from ..units import SECOND, US

__all__ = ["Recorded"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

#: (line of the file, its cells)
_Rows = Iterator[tuple[int, list[str]]]


class Recorded(msgspec.Struct, frozen=True):
    """A trace file."""

    path: str
    #: One of the formats above; empty to tell by the header.
    format: str = ""
    #: How many times as fast as it was recorded.
    speed: float = 1.0
    #: At most so many arrivals; None is all.
    limit: int | None = None

    def times_ns(self, rng: np.random.Generator | None = None) -> Iterator[int]:
        """As recorded; nothing is random."""
        times = islice(self._raw_ns(), self.limit)
        first = next(times, None)
        if first is None:
            raise ScenarioError(f"the trace {self.path} has no arrivals")
        for at_ns in chain([first], times):
            since_ns = at_ns - first
            yield since_ns if self.speed == 1.0 else round(since_ns / self.speed)

    def _raw_ns(self) -> Iterator[int]:
        """Times as they stand in the file, in order."""
        try:
            with open(self.path, newline="", encoding="utf-8") as file:
                reader = csv.reader(file)
                head = next(reader, [])
                rows = ((reader.line_num, row) for row in reader if row)
                form = self.format or _format_of(head)
                if form == "azure-functions-2021":
                    yield from self._by_end(head, rows)
                elif form == "azure-llm":
                    yield from self._in_order(rows, self._column(head, "timestamp"), _iso_ns)
                else:
                    headless = chain([(1, head)], rows) if _is_number(head) else rows
                    yield from self._in_order(headless, 0, _seconds_ns)
        except OSError as error:
            raise ScenarioError(f"cannot read the trace {self.path}: {error.strerror}") from None
        except (UnicodeDecodeError, csv.Error):
            raise ScenarioError(f"the trace {self.path} is not comma-separated text in UTF-8") from None

    def _in_order(self, rows: _Rows, column: int, parse: Callable[[str], int]) -> Iterator[int]:
        last_ns: int | None = None
        for line, row in rows:
            at_ns = self._cell(row, column, line, parse)
            if last_ns is not None and at_ns < last_ns:
                raise ScenarioError(f"{self.path}:{line}: the time goes back; sort the trace by time")
            last_ns = at_ns
            yield at_ns

    def _by_end(self, head: list[str], rows: _Rows) -> Iterator[int]:
        """Lines are in order of their ends if at all, and a long run began long before: all are read and sorted."""
        end, duration = self._column(head, "end_timestamp"), self._column(head, "duration")
        begins = array(
            "q",
            (
                self._cell(row, end, line, _seconds_ns) - self._cell(row, duration, line, _seconds_ns)
                for line, row in rows
            ),
        )
        times = np.frombuffer(begins, np.int64) if begins else np.empty(0, np.int64)
        for at_ns in np.sort(times):
            yield int(at_ns)

    def _column(self, head: list[str], name: str) -> int:
        names = [cell.strip().lower() for cell in head]
        if name not in names:
            raise ScenarioError(f"{self.path}:1: there is no column {name!r}; the columns are: {', '.join(head)}")
        return names.index(name)

    def _cell(self, row: list[str], column: int, line: int, parse: Callable[[str], int]) -> int:
        try:
            return parse(row[column])
        except (ValueError, OverflowError, IndexError):
            got = repr(row[column]) if column < len(row) else "nothing"
            raise ScenarioError(f"{self.path}:{line}: there should be a time, not {got}") from None


def _format_of(head: list[str]) -> str:
    names = {cell.strip().lower() for cell in head}
    if {"end_timestamp", "duration"} <= names:
        return "azure-functions-2021"
    return "azure-llm" if {"timestamp", "contexttokens"} <= names else "timestamps"


def _is_number(head: list[str]) -> bool:
    try:
        return bool(head) and float(head[0]) is not None
    except ValueError:
        return False


def _seconds_ns(text: str) -> int:
    return round(float(text) * SECOND)


def _iso_ns(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // _MICROSECOND * US
