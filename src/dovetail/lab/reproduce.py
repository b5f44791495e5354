"""What `dovetail reproduce` does: list the experiments, or run one, judge its claims, and show the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..cli.reading import new_table
from ..extras import need
from ..tools.table import results_console
from .experiment import Claim, Report, Watch, run_experiment
from .experiments import EXPERIMENTS, NEEDS, find

__all__ = ["list_experiments", "reproduce", "show"]


def list_experiments(*, as_json: bool) -> None:
    """Print what there is."""
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(EXPERIMENTS).decode()))
        return
    table = new_table("experiment", "~what it shows")
    for name, summary in EXPERIMENTS.items():
        table.add_row(name, summary)
    results_console().print(table)


def reproduce(name: str, *, quick: bool, out: Path | None, as_json: bool) -> int:
    """Run, judge and show; the exit code."""
    experiment = find(name)
    for package in ("matplotlib", *NEEDS.get(name, ())):
        need(package, extra="lab", for_=f"dovetail reproduce {name}")
    with _progress() as watch:
        report = run_experiment(name, experiment, quick=quick, out=out or Path("out", name), watch=watch)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report).decode()))
    else:
        show(report)
    return 0 if report.holds else 1


@contextmanager
def _progress() -> Iterator[Watch]:
    """A bar for what is being done, on stderr; elsewhere than on a terminal, a line when something begins."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def watch(what: str, done: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=1.0)
                if not console.is_terminal:
                    console.print(f"dovetail reproduce: {what}", highlight=False, soft_wrap=True)
            bar.update(tasks[what], completed=done, visible=done < 1.0)

        yield watch


def show(report: Report) -> None:
    """The report for people."""
    out = results_console()
    table = new_table("claim", ">published", ">goal", ">measured", ">95 % interval", "")
    for claim in report.claims:
        verdict = "[green]holds[/]" if claim.holds else "[bold red]fails[/]"
        published = "-" if claim.published is None else _number(claim.published)
        table.add_row(claim.id, published, claim.goal, _number(claim.measured), _interval(claim), verdict)
    out.print(table, "")
    for claim in report.claims:
        out.print(Text.assemble((claim.id, "bold"), f": {claim.text} [{claim.source}]"))
    for left in report.left_out:
        out.print(f"left out: {left.id}: {left.reason}", soft_wrap=True)
    held = sum(claim.holds for claim in report.claims)
    seeds = f"{len(report.seeds)} seeds ({report.seeds[0]} to {report.seeds[-1]})"
    out.print(
        f"\n{held} of {len(report.claims)} claims hold; {seeds}, {report.seconds:.0f} s: {report.command}",
        soft_wrap=True,
    )
    for figure in report.figures:
        out.print(f"figure: {figure}", soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def _interval(claim: Claim) -> str:
    return "" if claim.spread is None else f"{_number(claim.spread[0])} to {_number(claim.spread[1])}"
