"""`dovetail explain REQUEST`: the story of a request from a log; `dovetail explain late`: which to ask about.

Exit code 0: told. 2: the log cannot be read, or has no such request.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from ..control import WorkerJoined
from ..errors import DovetailError
from ..record.log import LogReader
from ..record.scaling import Decisions
from ..record.story import Moment, Story, UnknownRequest, story
from ..record.verdict import Leg
from ..record.worst import Ending, worst
from ..state import OUTCOMES
from ..tools.offers import Decision, decisions
from ..tools.scaling import print_decisions
from ..tools.table import results_console
from ..units import MS, format_ns
from .flags import refuse, whole
from .reading import new_table, print_json, printable, progress_bar, watched

#: Worst requests that are listed without --worst.
DEFAULT_WORST = 10
#: Lines of a story before its middle is left out, and how many of them stay at either end.
_MAX_LINES = 60
#: Offers of a batch that are shown.
_MAX_OFFERS = 6
#: Cells of a bar: as many as there is room for, between these.
_BAR_CELLS = (8, 40)
#: Part of a leg -> its mark in the bar and its colour.
_MARKS = {"waiting": ("░", "yellow"), "transport": ("▒", "magenta"), "running": ("█", "green")}
_COLOURS = {"ok": "green", "late": "yellow", "open": "cyan"}
_KINDS = {
    "request": "bold",
    "queue": "yellow",
    "batch": "green",
    "failure": "red",
    "model": "magenta",
    "worker": "magenta",
    "slice": "magenta",
    "scale": "cyan",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.add_argument(
        "request",
        nargs="?",
        metavar="REQUEST",
        help=f"number of a request or the client's own id; or an outcome ({', '.join(OUTCOMES)}) to list its worst",
    )
    parser.add_argument("--log", type=Path, default=Path("run.log"), metavar="FILE", help="default: run.log")
    parser.add_argument("--id", action="store_true", help="REQUEST is a client's id, even if it looks like a number")
    parser.add_argument(
        "--worst",
        type=whole(1),
        metavar="N",
        help="list the N requests furthest past their objective",
    )
    parser.add_argument(
        "--scaling", action="store_true", help="list what the scaler decided, and why (docs/scale.md)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Tell a story or list requests; the exit code."""
    name = args.request
    if args.scaling:
        if name is not None or args.worst is not None:
            raise DovetailError("--scaling tells of the scaler, not of requests; leave the request and --worst out")
        _scaling(args.log, as_json=args.json)
        return 0
    if name is None:
        refuse(args, "--id", because="say which request has that id")
    if name is None and args.worst is None:
        raise DovetailError(
            "say which request, or --worst N to see which there are; for example: dovetail explain late"
        )
    if name is not None and name not in OUTCOMES and args.worst is not None:
        raise DovetailError(f"--worst lists requests of an outcome ({', '.join(OUTCOMES)}), not of request {name!r}")
    out = results_console()
    if (name is None or name in OUTCOMES) and not args.id:
        found = _worst(args.log, args.worst or DEFAULT_WORST, name or "")
        print_json(found) if args.json else _print_worst(out, found, name)
    else:
        told = _story(args.log, name, args.id)
        with progress_bar(f"deciding {args.log.name} again") as progress:
            weighed, why_not = decisions(args.log, told.request, told.ended_ns, progress)
        if args.json:
            print_json({**msgspec.to_builtins(told), "offers": weighed, "no_offers_because": why_not})
            return 0
        _print_story(out, told)
        _print_offers(out, weighed, why_not)
    return 0


def _story(path: Path, name: str, is_id: bool) -> Story:
    """By number if it is one and the log has it, else by the client's id."""
    keys: list[int | str] = [name] if is_id or not name.isdecimal() else [int(name), name]
    unknown: UnknownRequest | None = None
    for key in keys:
        with LogReader(path) as log, progress_bar(f"reading {path.name}") as progress:
            try:
                return story(watched(log, progress), key, log.header.graphs)
            except UnknownRequest as error:
                unknown = unknown or error
    raise UnknownRequest(f"{path}: {unknown}")


def _scaling(path: Path, *, as_json: bool) -> None:
    found, names = Decisions(), dict[int, str]()
    with LogReader(path) as log, progress_bar(f"reading {path.name}") as progress:
        for step in watched(log, progress):
            if isinstance(step.event, WorkerJoined):
                names[step.event.worker] = step.event.spec.name
            found.take(step.event.at_ns, step.actions, lambda worker: names.get(worker, f"worker {worker}"))
    if as_json:
        print_json(found.found)
    else:
        print_decisions(found.found)


def _worst(path: Path, count: int, outcome: str) -> list[Ending]:
    with LogReader(path) as log, progress_bar(f"reading {path.name}") as progress:
        return worst(watched(log, progress), log.header.graphs, count, outcome)


def _print_worst(out: Console, found: list[Ending], outcome: str | None) -> None:
    if not found:
        out.print(f"no request was {outcome}" if outcome else "every request that ended was ok")
        return
    table = new_table(">request", "~id", "workflow", ">class", "outcome", ">took ms", ">over ms", "~reason")
    for e in found:
        table.add_row(
            str(e.request),
            printable(e.client_id),
            printable(e.workflow),
            str(e.priority),
            Text(e.outcome, _COLOURS.get(e.outcome, "red")),
            _ms(e.spent_ns),
            f"{e.over_ns / MS:+.1f}",
            printable(e.reason),
        )
    out.print(table)


def _print_story(out: Console, told: Story) -> None:
    colour = _COLOURS.get(told.outcome, "red")
    title = Text.assemble(
        (f"request {told.request}", "bold"),
        f" of {told.workflow}, class {told.priority}",
        printable(f", client's id {told.client_id}" if told.client_id else ""),
    )
    cost = f", ${told.cost_usd:.3g}" if told.cost_usd else ""
    facts = f"arrived {told.arrived_ns / 1e9:.3f} s into the run{cost}"
    outcome, sentence = told.verdict.split(" ", 1)
    out.print(Group(title, facts, Text.assemble((outcome, f"bold {colour}"), " ", printable(sentence))))
    out.print(Padding(_timeline(told), (1, 0)))
    if told.path:
        out.print(_path(told.path))


#: What scores of offers are in.
_UNITS = {"usd": "$ for 1,000 such requests from here on", "ns": "ms per item"}


def _score(score: float, unit: str) -> str:
    return f"{score * 1000:.4g}" if unit == "usd" else _ms(round(score))


def _print_offers(out: Console, weighed: list[Decision], why_not: str) -> None:
    """What was weighed for each batch; the first line of each is the one that was taken."""
    if weighed:
        heads = (">batch", "stage", "worker", ">items", ">cores", ">share", ">starts ms", ">ends ms", ">score", "~")
        table = new_table(*heads)
        for decision in weighed:
            for number, offer in enumerate(decision.offers[:_MAX_OFFERS]):
                first = number == 0
                table.add_row(
                    str(decision.batch) if first else "",
                    printable(decision.stage) if first else "",
                    printable(offer.worker),
                    str(offer.items),
                    str(offer.cpus),
                    f"{offer.share_pct} %",
                    _ms(offer.start_ns + offer.fetch_ns),
                    _ms(offer.end_ns),
                    _score(offer.score, decision.unit),
                    Text(offer.note, "green" if first else ""),
                )
            more = len(decision.offers) - _MAX_OFFERS
            if more > 0:
                table.add_row("", "", *[""] * 7, f"{more} more; --json has them all")
        units = sorted({_UNITS[decision.unit] for decision in weighed})
        head = f"offers that were weighed, times from each decision on; score in {' or '.join(units)}, the least wins"
        out.print(Padding(Group(head, table), (1, 0, 0, 0)))
    if why_not:
        out.print(printable(f"offers are not told{' further' if weighed else ''}: {why_not}"))


def _timeline(told: Story) -> Group:
    table = new_table(">ms", ">step", "~what happened")
    moments: list[Moment | None] = list(told.moments)
    left_out = len(moments) - _MAX_LINES
    if left_out > 0:
        moments[_MAX_LINES // 2 : -_MAX_LINES // 2] = [None]
    last_ns = -1
    for m in moments:
        if m is None:
            table.add_row("…", "", f"{left_out} more; --json has them all")
            continue
        # An offset is shown where time has moved: lines without one happened at once.
        offset = _ms(m.at_ns - told.arrived_ns) if m.at_ns != last_ns else ""
        table.add_row(offset, f"#{m.step}", printable(m.text, _KINDS[m.kind]))
        last_ns = m.at_ns
    return Group(table)


def _path(path: tuple[Leg, ...]) -> Group:
    """The critical path, one row per visit, each with a bar that begins where the one before it stopped."""
    parts = [part for part in _MARKS if part != "transport" or any(leg.transport_ns for leg in path)]
    table = new_table("critical path, ms", ">batch", *(f">{part}" for part in parts), ">expected", "~")
    whole_ns = sum(leg.waiting_ns + leg.transport_ns + leg.running_ns for leg in path)
    at_ns = 0
    for leg in path:
        name = f"{leg.name} (failed)" if leg.failed else leg.name
        figures = [_ms(getattr(leg, f"{part}_ns")) for part in parts]
        expected = _ms(leg.expected_ns) if leg.batch else "-"
        table.add_row(printable(name), str(leg.batch or "-"), *figures, expected, _Bar(leg, at_ns, whole_ns))
        at_ns += leg.waiting_ns + leg.transport_ns + leg.running_ns
    legend = Text.assemble(*((f"{_MARKS[part][0]} {part}  ", _MARKS[part][1]) for part in parts))
    return Group(table, legend.append(f"{format_ns(whole_ns)} in all"))


class _Bar:
    """A leg as a piece of the whole, in the width that is there."""

    def __init__(self, leg: Leg, at_ns: int, whole_ns: int) -> None:
        self.leg = leg
        self.at_ns = at_ns
        self.whole_ns = whole_ns or 1

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(*_BAR_CELLS)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = min(options.max_width, _BAR_CELLS[1])
        at_ns, at = self.at_ns, round(self.at_ns * cells / self.whole_ns)
        bar = Text(" " * at)
        for part, (mark, colour) in _MARKS.items():
            at_ns += getattr(self.leg, f"{part}_ns")
            # The ends are rounded, not the lengths: what follows begins where this ends, and the last at the edge.
            end = round(at_ns * cells / self.whole_ns)
            bar.append(mark * (end - at), colour)
            at = end
        yield bar


def _ms(ns: int) -> str:
    return f"{ns / MS:.1f}" if ns >= 100 * MS else f"{ns / MS:.2f}"
