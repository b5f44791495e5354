"""The outcome table: one row per workflow and class, the same for simulated, replayed and live runs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..control.ledger import Summary
from ..state import OUTCOMES

__all__ = ["render"]

GOOD, BAD, FAINT = "green", "bold red", "dim"
#: Of the outcomes, what is bad news; a shed or cancelled request is a decision, a late one a miss.
_ALARMING = ("late", "expired", "failed")


def render(summaries: Sequence[Summary], *, target: float = 0.95) -> Table:
    """A table for the terminal. A percentile above the objective and a hit rate below `target` are red."""
    outcomes = [name for name in OUTCOMES if name == "ok" or any(s.outcomes.get(name) for s in summaries)]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("workflow", overflow="fold")
    for head in ("class", "requests", *outcomes, "p50", "p95", "p99", "objective", "hit rate", "good/s", "$/1000"):
        table.add_column(head, justify="right", no_wrap=True)
    for s in summaries:
        table.add_row(
            s.workflow,
            str(s.priority),
            f"{s.requests:,}",
            *(_count(name, s.outcomes.get(name, 0)) for name in outcomes),
            *(_latency(s, ms) for ms in (s.p50_ms, s.p95_ms, s.p99_ms)),
            _milliseconds(s.objective_ms),
            Text(_percent(s.hit_rate), GOOD if s.hit_rate >= target else BAD),
            f"{s.goodput_per_s:,.1f}",
            f"{s.cost_usd_per_1000:.4f}",
        )
    return table


def _count(outcome: str, count: int) -> Text:
    if not count:
        return Text("0", FAINT)
    return Text(f"{count:,}", "red" if outcome in _ALARMING else "")


def _latency(summary: Summary, ms: float) -> Text:
    answered = summary.outcomes.get("ok", 0) + summary.outcomes.get("late", 0)
    if not answered:
        return Text("-", FAINT)
    return Text(_milliseconds(ms), BAD if ms > summary.objective_ms else "")


def _milliseconds(ms: float) -> str:
    """Three figures, with the unit: ``"2.62 ms"``, ``"41.5 ms"``, ``"1,230 ms"``."""
    digits = 2 if ms < 10 else 1 if ms < 100 else 0
    return f"{ms:,.{digits}f} ms"


def _percent(share: float) -> str:
    """Rounded down, so that 100 % means all of them and 95.0 % is no less."""
    return f"{int(share * 1000) / 10:.1f} %"
