"""What verbs share: a progress bar, how a table and JSON look, and what is said of a file that cannot be written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..errors import DovetailError
from ..record.log import LogReader, Step

__all__ = ["new_table", "print_json", "printable", "progress_bar", "watched", "writing"]

#: A bar is not worth drawing for less.
_BAR_AFTER_S = 1.0
#: Steps between two looks at the bar.
_STRIDE = 2048


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float, float], None]]:
    """A bar on stderr, if that is a terminal and it takes long enough; it is fed with what is done and what there is.

    It leaves no trace.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None, visible=False)
        begin_s = time.perf_counter()

        def progress(done: float, total: float) -> None:
            worth = time.perf_counter() - begin_s > _BAR_AFTER_S
            bar.update(task, completed=done, total=total, visible=worth)

        yield progress


@contextmanager
def writing(path: Path, what: str = "to") -> Iterator[None]:
    """A file that cannot be written is refused by name."""
    try:
        yield
    except OSError as error:
        raise DovetailError(f"cannot write {what} {path}: {error.strerror}") from None


def watched(log: LogReader, progress: Callable[[float, float], None]) -> Iterator[Step]:
    """The steps of a log, with the bar moving along."""
    for step in log:
        if not log.steps % _STRIDE:
            progress(log.read_bytes, log.size_bytes)
        yield step


def new_table(*heads: str) -> Table:
    """An empty table; a head that begins with ``>`` is a column of figures, one with ``~`` (``>~``) may be folded."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for head in heads:
        justify: JustifyMethod = "right" if head.startswith(">") else "left"
        table.add_column(head.lstrip(">~"), justify=justify, overflow="fold", no_wrap="~" not in head[:2])
    return table


def print_json(value: object, order: Literal["sorted"] | None = None) -> None:
    """A result for programs, on stdout."""
    print(msgspec.json.format(msgspec.json.encode(value, order=order).decode()))


def printable(text: str, style: str = "") -> Text:
    """Text from a client or an exception, fit for a terminal: one line, no escape sequences, no markup."""
    clean = (c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return Text("".join(clean), style)
