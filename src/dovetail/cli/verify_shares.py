"""`dovetail verify-shares app:wf`: run real models against the slices that they declare, and say what each one got.

Exit code 0: every client had what it asked for in every window. 1: some did not, and why. 2: it could not start.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import msgspec

from ..extras import need
from ..tools.shares import ShareOptions, ShareResult, p99, verify_shares
from ..tools.table import results_console
from ..units import MS
from ..workflow.app import load_target
from .flags import seconds
from .reading import new_table, print_json, printable, progress_bar, writing

__all__ = ["configure", "run"]

_SECONDS = seconds(1, 3600, "a number of seconds from 1 to 3600")
_WINDOW = seconds(0.1, 600, "a number of seconds from 0.1 to 600")
#: Windows that are shown of each client if all hold; those that miss are always shown.
SHOWN_WINDOWS = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    default = ShareOptions()
    parser.add_argument("target", metavar="MODULE:ATTRIBUTE", help="an App or a workflow, e.g. examples.shares:app")
    parser.add_argument("--seconds", type=_SECONDS, default=default.seconds, metavar="S", help="time of load (12)")
    parser.add_argument("--window", type=_WINDOW, default=default.window_s, metavar="S", help="of what is judged (2)")
    parser.add_argument(
        "--tolerance", type=float, default=default.tolerance_pct, metavar="POINTS", help="that may be missing (3)"
    )
    parser.add_argument("--quotas", choices=("conserving", "strict"), default=default.quotas, help="as of serve")
    parser.add_argument("--kernels", choices=("auto", "always"), default=default.kernels, help="as of serve")
    parser.add_argument(
        "--alone", type=_SECONDS, default=0.0, metavar="S", help="then serve each alone, in turns with all, for S"
    )
    parser.add_argument(
        "--idle", type=_SECONDS, default=0.0, metavar="S", help="then stop the largest for S: do others have it all?"
    )
    parser.add_argument("--device", default=default.device, help="as of dovetail serve (default: cpu)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw what each had over time (extra: plot)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Run and show; the exit code."""
    if args.plot is not None:
        need("matplotlib", extra="plot", for_="verify-shares --plot")
    app = load_target(args.target)
    options = ShareOptions(
        args.seconds,
        args.window,
        args.tolerance,
        args.quotas,
        args.kernels,
        args.device,
        alone_s=args.alone,
        idle_s=args.idle,
    )
    with progress_bar("serving") as progress:
        result = asyncio.run(verify_shares(app, args.target, options, progress))
    if args.plot is not None:
        from ..tools.plots import draw_shares

        with writing(args.plot):
            draw_shares(result.report, args.plot)
    if args.json:
        figures = ("holds", "of_alone", "busy_pct", "furthest_pct", "high_ratio")
        print_json({**msgspec.to_builtins(result), **{name: getattr(result, name) for name in figures}})
    else:
        show(result)
    return 0 if result.holds else 1


def show(result: ShareResult) -> None:
    """The result for people."""
    out = results_console()
    report, window_s = result.report, result.options.window_s
    if not report.windows:
        out.print(f"nothing was judged: there is no window of {window_s:g} s after the first; give more --seconds")
        return
    table = new_table(">window", "client", ">asked %", ">got %", ">of busy %", ">device busy %", "")
    shown = [w for w in report.windows if w.window <= SHOWN_WINDOWS or not w.held]
    for w in shown:
        asked = str(w.asked_pct) if w.asked_pct else "–"
        figures = (f"{pct:.1f}" for pct in (w.got_pct, w.of_busy_pct, w.busy_pct))
        why = "" if w.held else printable(f"missed: {w.why}")
        table.add_row(f"{w.window * window_s:g} s", printable(w.client), asked, *figures, why)
    out.print(table, "")
    total = new_table("client", ">asked %", ">got %", ">of what all got %", ">asked of what all asked %")
    all_pct = sum(result.asked_pct.values())
    for client, got in report.got_pct.items():
        asked_pct = result.asked_pct.get(client, 0)
        part = f"{100 * asked_pct / all_pct:.1f}" if asked_pct else "–"
        total.add_row(
            printable(client), str(asked_pct or "–"), f"{got:.1f}", f"{report.of_busy_pct[client]:.2f}", part,
        )  # fmt: skip
    out.print(total)
    missed = sum(not w.held for w in report.windows)
    count = len(report.windows)
    verdict = "every client had what it asked for" if not missed else f"{missed} of {count} were missed"
    out.print(f"\n{count} windows of clients, within {result.options.tolerance_pct:g} points: {verdict}")
    out.print(f"over all windows nobody is further off what it asked for than {result.furthest_pct:.2f} % of that")
    out.print(
        f"the device ran kernels for {result.busy_pct:.1f} % of the time; the rest is what serving costs beside"
    )
    if result.of_alone is not None:
        rounds = result.rounds_of_alone
        out.print(
            f"all together did {100 * result.of_alone:.1f} % of what they do alone (median of {len(rounds)} rounds "
            f"of turns, {100 * min(rounds):.1f} to {100 * max(rounds):.1f} %)"
        )
    if result.idle_busy_pct is not None:
        idle = printable(result.idle_client)
        out.print(f"while {idle} was idle, the device ran kernels for {result.idle_busy_pct:.1f} % of the time")
    for name, took_ns in result.high_ns.items():
        words = [f"answers of {printable(name)}, the high class: p99 {p99(took_ns) / MS:.2f} ms beside the others"]
        if alone := result.alone_ns.get(name):
            words.append(f"{p99(alone) / MS:.2f} ms alone, {p99(took_ns) / p99(alone):.2f} times")
        out.print(", ".join(words))
