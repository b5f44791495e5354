"""What the verbs that read a log share: a progress bar over it, and how a table looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..record.log import LogReader, Step

__all__ = ["new_table", "printable", "reading", "watched"]

#: Steps between two looks at the bar.
_STRIDE = 2048


@contextmanager
def reading(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, if that is a terminal; it is fed with bytes done and bytes in all, and leaves no trace."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None, visible=False)  # a short log is read before a bar is worth drawing
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def watched(log: LogReader, progress: Callable[[int, int], None]) -> Iterator[Step]:
    """The steps of a log, with the bar moving along."""
    for step in log:
        if not log.steps % _STRIDE:
            progress(log.read_bytes, log.size_bytes)
        yield step


def new_table(*heads: str) -> Table:
    """An empty table; a head that begins with ``>`` is a column of figures, one with ``~`` may be folded."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for head in heads:
        justify: JustifyMethod = "right" if head.startswith(">") else "left"
        table.add_column(head.lstrip(">~"), justify=justify, overflow="fold", no_wrap=not head.startswith("~"))
    return table


def printable(text: str, style: str = "") -> Text:
    """Text from a client or an exception, fit for a terminal: one line, no escape sequences, no markup."""
    clean = (c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return Text("".join(clean), style)
