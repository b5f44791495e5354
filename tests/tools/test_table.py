"""The outcome table as it is printed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dovetail.record.ledger import Summary
from dovetail.state import OUTCOMES
from dovetail.tools.table import render


def row(workflow: str = "ocr", hit_rate: float = 0.97, **outcomes: int) -> Summary:
    counts = {**dict.fromkeys(OUTCOMES, 0), **outcomes}
    return Summary(
        workflow=workflow,
        priority=2,
        requests=sum(counts.values()),
        outcomes=counts,
        objective_ms=300.0,
        p50_ms=2.625,
        p95_ms=41.5,
        p99_ms=1234.5,
        mean_ms=10.0,
        hit_rate=hit_rate,
        goodput_per_s=99.5,
        cost_usd_per_1000=0.01234,
    )


def printed(rows: list[Summary], width: int = 140, *, colour: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    console.print(render(rows))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_it_shows_what_was_asked_and_what_became_of_it() -> None:
    assert printed([row(ok=97, late=2, shed=1)]) == (
        "workflow  class  requests  ok  late  shed   p50   p95    p99  goal   hits  good/s  $/1000\n"
        "─────────────────────────────────────────────────────────────────────────────────────────\n"
        "ocr           2       100  97     2     1  2.62  41.5  1,234   300  97.0%    99.5   0.012\n"
    )


def test_outcomes_that_nobody_met_have_no_column() -> None:
    heads = printed([row(ok=1), row(ok=1, failed=1)]).splitlines()[0].split()
    assert [h for h in heads if h in OUTCOMES] == ["ok", "failed"]


@pytest.mark.parametrize(
    ("hit_rate", "shown"), [(0.9999, "99.9%"), (1.0, "100.0%"), (0.95, "95.0%"), (0.94999, "94.9%")]
)
def test_a_share_is_never_rounded_up(hit_rate: float, shown: str) -> None:
    assert f" {shown} " in printed([row(ok=1, hit_rate=hit_rate)])


def test_what_misses_is_red() -> None:
    red, green = "\x1b[1;31m", "\x1b[32m"
    text = printed([row(ok=99, late=1)], colour=True)
    assert f"{red}1,234" in text, "the 99th percentile is above the objective"
    assert f"{red} 41.5" not in text
    assert f"{green}97.0%" in text
    assert f"{red}94.0%" in printed([row(ok=94, late=6, hit_rate=0.94)], colour=True)


def test_without_answers_there_are_no_percentiles() -> None:
    assert printed([row(shed=5, hit_rate=0.0)]).splitlines()[2].split()[5:8] == ["-", "-", "-"]


@pytest.mark.parametrize("width", [70, 80, 100, 120])
def test_it_fits_the_terminal_and_never_cuts_a_figure(width: int) -> None:
    rows = [row("a-workflow-with-quite-a-long-name", ok=94_000, late=4_000, shed=1_000, expired=500)]
    lines = printed(rows, width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert "94,000" in lines[2]
    assert "4,000" in lines[2]
    assert "…" not in lines[2].split(maxsplit=1)[1], "only a name may be cut short"


def test_no_rows() -> None:
    assert "workflow" in printed([])
