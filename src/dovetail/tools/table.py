"""The outcome table: one row per workflow and class, the same for simulated, replayed and live runs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..record.ledger import Summary
from ..state import OUTCOMES

__all__ = ["OutcomeTable", "render", "results_console"]

GOOD, BAD, FAINT = "green", "bold red", "dim"
#: Outcomes that somebody should look into; to shed a request or to cancel it was a decision.
_ALARMING = ("late", "expired", "failed")
#: Columns that a narrow terminal can do without, the first to go first.
_SPARE = ("p50", "good/s", "$/1000", "requests", "p99")
#: A workflow's name is cut short to so many characters before the next column is left out.
_SHORT_NAMES = (20, 12)
#: Width of a table that goes into a file or a pipe.
_FILE_WIDTH = 160


class OutcomeTable:
    """A table for the terminal, as wide as the terminal allows. Times are in milliseconds.

    A percentile above its objective and a hit rate below `target` are red. Outcomes that nobody met have no column.
    """

    def __init__(self, summaries: Sequence[Summary], target: float) -> None:
        self._summaries = summaries
        self._target = target

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [self._row(summary) for summary in self._summaries]
        boundless = options.update(max_width=10_000)
        longest = max((len(s.workflow) for s in self._summaries), default=0)
        for spared in range(len(_SPARE) + 1):
            for name_chars in (longest, *_SHORT_NAMES):
                table = _table(rows, _SPARE[:spared], name_chars)
                if Measurement.get(console, boundless, table).maximum <= options.max_width:
                    yield table
                    return
        yield table

    def _row(self, s: Summary) -> dict[str, Text]:
        answered = s.outcomes.get("ok", 0) + s.outcomes.get("late", 0)
        outcomes = [name for name in OUTCOMES if name == "ok" or any(t.outcomes.get(name) for t in self._summaries)]

        def latency(ms: float) -> Text:
            return Text(_figure(ms), BAD if ms > s.objective_ms else "") if answered else Text("-", FAINT)

        return {
            "workflow": Text(s.workflow),
            "class": Text(str(s.priority)),
            "requests": Text(f"{s.requests:,}"),
            **{name: _count(name, s.outcomes.get(name, 0)) for name in outcomes},
            "p50": latency(s.p50_ms),
            "p95": latency(s.p95_ms),
            "p99": latency(s.p99_ms),
            "goal": Text(_figure(s.objective_ms)),
            "hits": Text(_percent(s.hit_rate), GOOD if s.hit_rate >= self._target else BAD),
            "good/s": Text(_figure(s.goodput_per_s)),
            "$/1000": Text(_figure(s.cost_usd_per_1000)),
        }


def render(summaries: Sequence[Summary], *, target: float = 0.95) -> OutcomeTable:
    """The table of these rows; `target` is the share of requests that should be answered within their objective."""
    return OutcomeTable(summaries, target)


def results_console() -> Console:
    """Where results go: stdout, and a file or a pipe is as wide as need be."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_FILE_WIDTH)


def _table(rows: Sequence[dict[str, Text]], left_out: Sequence[str], name_chars: int) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1), collapse_padding=True)
    heads = [head for head in (rows[0] if rows else ("workflow",)) if head not in left_out]
    for head in heads:
        table.add_column(head, justify="left" if head == "workflow" else "right", no_wrap=True)
    for row in rows:
        name = row["workflow"].plain
        short = name if len(name) <= name_chars else f"…{name[1 - name_chars :]}"
        table.add_row(*(Text(short) if head == "workflow" else row[head] for head in heads))
    return table


def _count(outcome: str, count: int) -> Text:
    return Text(f"{count:,}", FAINT if not count else "red" if outcome in _ALARMING else "")


def _figure(value: float) -> str:
    """Three figures or more: ``"0.012"``, ``"2.62"``, ``"41.5"``, ``"1,230"``."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def _percent(share: float) -> str:
    """Rounded down, so that 100 % means all of them and 95.0 % is no less."""
    return f"{int(share * 1000) / 10:.1f}%"
