"""`dovetail demo`: serve the document workflow on this machine, send it pages at a rising rate, and show a table.

Exit code 0: every request ended in exactly one outcome, and the texts were right. That the last step is late is the
point of it. 1: otherwise. 2: it could not start.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..extras import need
from ..record.ledger import Summary
from ..tools.demo import CLASSES, TARGET, DemoResult, Moment, Options, Watch, run_demo
from ..tools.table import render, results_console
from ..units import MS, format_ns
from .flags import seconds
from .reading import new_table, print_json

__all__ = ["configure", "run"]

_SECONDS = seconds(4, 3600, "a number of seconds from 4 to 3600")
#: Lines of a page that are shown.
SHOWN_LINES = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    default = Options()
    parser.add_argument("--seconds", type=_SECONDS, default=default.seconds, metavar="S", help="time of sending (50)")
    parser.add_argument("--device", default=default.device, help="as of dovetail serve (default: cpu)")
    parser.add_argument("--log", type=Path, default=default.log, metavar="FILE", help="default: out/demo.log")
    parser.add_argument("--seed", type=int, default=default.seed, help="which pages, and when they arrive (1)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Run and show; the exit code."""
    need("PIL", extra="plot", for_="dovetail demo")
    options = Options(seconds=args.seconds, device=args.device, log=args.log, seed=args.seed)
    with _progress() as (watch, console):
        result = asyncio.run(
            run_demo(options, watch, lambda line: console.print(line, markup=False, highlight=False))
        )
    if args.json:
        print_json({**msgspec.to_builtins(result), "holds": result.holds})
    else:
        show(result)
    return 0 if result.holds else 1


@contextmanager
def _progress() -> Iterator[tuple[Watch, Console]]:
    """A bar on a terminal; elsewhere one line for each new phase. All of it on stderr."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(24),
        TextColumn("{task.fields[books]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0, books="")
        last = ""

        def watch(now: Moment) -> None:
            nonlocal last
            books = ", ".join(f"{count} {outcome}" for outcome, count in now.outcomes.items())
            bar.update(task, description=now.phase, completed=now.done, books=books)
            if not console.is_terminal and now.phase != last:
                print(f"dovetail demo: {now.phase}" + (f" (so far: {books})" if books else ""), file=sys.stderr)
            last = now.phase

        yield watch, console


def show(result: DemoResult) -> None:
    """The result for people."""
    out = results_console()
    objective = format_ns(result.classes[0].objective_ms * MS)
    out.print(f"{TARGET} on {result.device}: about {result.capacity_per_s:.1f} pages/s; objective {objective}\n")
    _show_texts(out, result)
    out.print(_steps(result), "")
    out.print(render(result.classes), "")
    _show_accounts(out, result)
    slowest, latency_ms, _ = result.slowest
    out.print(f"\nTry next (the log of this run is {result.log}):")
    out.print(f"  dovetail explain {slowest} --log {result.log}    why the slowest took {format_ns(latency_ms * MS)}")
    out.print(f"  dovetail replay {result.log}    decide it all again and compare")
    out.print(f"  dovetail serve {TARGET}    and send it pages of your own")


def _show_texts(out: Console, result: DemoResult) -> None:
    if result.device.startswith("emulated:"):
        out.print("emulated devices compute nothing: the texts are not compared\n")
        return
    for reading in result.readings:
        table = new_table(f"drawn (page turned by {reading.turned_deg}°)", "read by the models", "")
        rest = [""] * (len(reading.drawn) - len(reading.read))
        pairs = list(zip(reading.drawn, [*reading.read, *rest], strict=False))
        for drawn, read in pairs[:SHOWN_LINES]:
            table.add_row(Text(drawn), Text(read), "" if drawn == read else "differs")
        out.print(table)
    share = 100 * result.lines_exact / max(1, result.lines)
    out.print(f"{result.lines_exact:,} of {result.lines:,} lines were read exactly ({share:.1f} %)\n")


def _steps(result: DemoResult) -> object:
    table = new_table(
        "load", ">pages/s", "class", ">sent", ">ok", ">late", ">refused", ">p50 ms", ">p95 ms", ">in time"
    )
    for step in result.steps:
        load, rate = f"{step.load_pct} %", f"{step.rate_per_s:.1f}"
        rows = {row.priority: row for row in step.classes}
        for priority, (name, _) in CLASSES.items():
            figures = _figures(rows.get(priority), step.sent[priority])
            table.add_row(load, rate, f"{priority} {name}", *figures)
            load = rate = ""
    return table


def _figures(row: Summary | None, sent: int) -> list[str]:
    """Counted from what was sent: a request that was refused was not in time."""
    if row is None:
        return [str(sent), "0", "0", str(sent), "-", "-", "-" if not sent else "0 %"]
    ok, late = row.outcomes["ok"], row.outcomes["late"]
    counts = (sent, ok, late, sent - ok - late)
    return [*map(str, counts), f"{row.p50_ms:.0f}", f"{row.p95_ms:.0f}", f"{100 * ok // max(1, sent)} %"]


def _show_accounts(out: Console, result: DemoResult) -> None:
    parts = []
    for row in result.classes:
        client_ms = result.client_p95_ms[row.priority]
        parts.append(f"class {row.priority} {client_ms:.0f} ms (server {row.p95_ms:.0f})")
    out.print(f"p95 at the client, from the moment a request was due: {', '.join(parts)}")
    refused = sum(result.refused.values())
    if refused:
        by_class = ", ".join(f"{count} of class {priority}" for priority, count in result.refused.items() if count)
        out.print(f"{refused} were turned away at the door with 503 for want of memory ({by_class})")
    if not result.unaccounted:
        out.print(f"each of {result.requests} requests has one outcome in the log, the same at the client")
    else:
        some = ", ".join(result.unaccounted[:3])
        out.print(f"[bold red]{len(result.unaccounted)} of {result.requests} are not accounted for[/]: {some}")
