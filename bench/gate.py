"""What does gating kernels do to real models on one core, and what does it cost?

    python bench/gate.py [--json] [--quick] [--rounds N] [--seconds S] [--pairs HIGH/LOW,...] [--log FILE]

Pairs of models share a device: the high client rests three times as long as its task takes alone and does host work
between kernels, the low one runs back to back and launches whole inferences ahead. Modes take turns in every round:
the high task alone, one after the other and as often as in the others; strict classes that fill no gaps; first in
first out, slices of 2 ms, FIKIT's rule and ours, the last two also with ageing. Ratios are taken within a round; what
is shown is their median over rounds, with the smallest and the largest. "left" is the part of the device's time that
the high task leaves which kernels of the low one fill; a second table tells where the time of a high task goes. Then
every model alone, in kernels behind the gate against whole, at batch 1 and 8: processor time of the device, which no
neighbour lengthens much, and the client's time.

The device has the last core to itself and the hosts the others. If something else took more than 2 % of the device's
core while a mode was measured, that is done again, three times at most; `foreign` says what was left of it.
`--log` writes the kernels of the last window of ours of each pair, for `dovetail trace --log`.

Results go to stdout, progress to stderr. Takes about ten minutes on a quiet machine, `--quick` two. The exit status
is 1 if a goal was missed. Models come from packages (docs/models.md); pairs with torch models need the extra `torch`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import onnxruntime
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dovetail.lab.experiment import Estimate
from dovetail.lab.experiments import fikit_live as live
from dovetail.lab.gate.run import ALONE, MODES, PairRun, Parts, Window
from dovetail.record.kernels import encode_record

Watch = Callable[[str, float], None]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--quick", action="store_true", help="few rounds: enough to see that it works")
    parser.add_argument("--rounds", type=int, help=f"rounds of each pair ({live.FULL[0]})")
    parser.add_argument("--seconds", type=float, help=f"seconds of each mode ({live.FULL[1]:g})")
    parser.add_argument("--pairs", help="only these, as HIGH/LOW,HIGH/LOW; none for only the overhead")
    parser.add_argument("--no-overhead", action="store_true", help="only the pairs")
    parser.add_argument("--log", type=Path, help="where to write the kernels of the last windows")
    return parser.parse_args()


def chosen_pairs(only: str | None) -> list[live.Pair]:
    if only is None:
        return list(live.PAIRS)
    wanted = {tuple(pair.split("/")) for pair in only.split(",") if "/" in pair}
    return [pair for pair in live.PAIRS if (pair.high, pair.low) in wanted]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def pair_table(run: PairRun) -> Table:
    table = Table(
        title=f"{run.high} ({run.high_kernels} kernels, gaps of {run.gap_ns / 1e6:g} ms) "
        f"over {run.low} ({run.low_kernels} kernels)"
    )
    for column in (
        "mode",
        "high / alone",
        "high mode / ours",
        "low mode / ours",
        "left",
        "worst wait",
        "overtaken",
        "foreign",
    ):
        table.add_column(column, justify="left" if column == "mode" else "right")
    for mode in run.rounds[0]:

        def ratios(ratio: Callable[[dict[str, Window]], float]) -> str:
            return spread([ratio(windows) for windows in run.rounds])

        here = [windows[mode] for windows in run.rounds]
        table.add_row(
            mode,
            ratios(lambda w, m=mode: w[m].jct_ns / w["alone"].jct_ns),  # type: ignore[misc]
            ratios(lambda w, m=mode: w[m].jct_ns / w["ours"].jct_ns),  # type: ignore[misc]
            "" if mode in ALONE else ratios(lambda w, m=mode: w[m].low_ns / w["ours"].low_ns),  # type: ignore[misc]
            "" if mode in ALONE else ratios(lambda w, m=mode: w[m].low_bound_ns / w[m].low_ns),  # type: ignore[misc]
            f"{max(w.worst_wait_ns for w in here) / 1e6:.2f} ms",
            str(sum(w.overtaken for w in here)),
            f"{100 * max(w.foreign for w in here):.0f} %, {sum(w.repeats for w in here)} again",
        )
    return table


def parts_table(run: PairRun) -> Table:
    table = Table(title=f"a task of {run.high}: means, median over rounds (ms); a launch on its way (µs)")
    columns = ("mode", "first wait", "other waits", "kernels", "host", "on its way", "longest")
    for column in columns:
        table.add_column(column, justify="left" if column == "mode" else "right")
    for mode in run.rounds[0]:
        here = [windows[mode] for windows in run.rounds]
        parts = [[getattr(w.parts, name) for w in here] for name in Parts.__struct_fields__]
        table.add_row(
            mode,
            *(f"{statistics.median(values) / 1e6:.2f}" for values in parts),
            f"{statistics.median(w.on_its_way_ns for w in here) / 1e3:.0f}",
            f"{max(w.longest_on_its_way_ns for w in here) / 1e3:.0f}",
        )
    return table


def overhead_table(costs: list[live.Overhead]) -> Table:
    table = Table(title="a task alone: in kernels behind the gate, over whole")
    for column in ("model", "batch", "kernels", "whole", "device's processor time", "client's time"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for cost in costs:
        table.add_row(
            cost.model,
            str(cost.batch),
            str(cost.kernels),
            f"{cost.whole_ns / 1e6:.1f} ms",
            spread(list(cost.device)),
            spread(list(cost.client)),
        )
    return table


def figure_table(figures: list[live.LiveFigure]) -> Table:
    table = Table(title="claims")
    for column in ("claim", "goal", "measured", "published", "holds"):
        table.add_column(column)
    for figure in figures:
        measured = figure.measured
        value = measured.mean if isinstance(measured, Estimate) else measured
        text = f"{value:.2f}"
        if isinstance(measured, Estimate):
            text += f" ({measured.low:.2f}–{measured.high:.2f})"
        published = "" if figure.published is None else f"{figure.published:g}"
        table.add_row(figure.text, str(figure.goal), text, published, "yes" if figure.goal.holds(value) else "NO")
    return table


def holds(figure: live.LiveFigure) -> bool:
    measured = figure.measured
    return figure.goal.holds(measured.mean if isinstance(measured, Estimate) else measured)


def main() -> None:
    args = parse()
    rounds, seconds = live.QUICK if args.quick else live.FULL
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("models", total=1.0)

        def watch(what: str, done: float) -> None:
            progress.update(bar, description=what, completed=done)

        runs = live.pairs(
            chosen_pairs(args.pairs), rounds=args.rounds or rounds, seconds=args.seconds or seconds, watch=watch
        )
        costs = []
        if not args.no_overhead:
            cost_rounds, cost_seconds = live.QUICK_OVERHEAD if args.quick else live.OVERHEAD
            costs = live.overheads(rounds=cost_rounds, seconds=cost_seconds, watch=watch)
    figures = live.live_figures(runs, costs)
    if args.log:
        with args.log.open("wb") as file:
            file.writelines(encode_record(record) for run in runs for record in run.records)
    machine = (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
    )
    machine += f"onnxruntime {onnxruntime.__version__}"
    if args.json:
        print(
            json.dumps(
                {
                    "machine": machine,
                    "modes": list(MODES),
                    "pairs": [{**msgspec.to_builtins(run), "records": len(run.records)} for run in runs],
                    "overhead": msgspec.to_builtins(costs),
                    "claims": [{**msgspec.to_builtins(f), "goal": str(f.goal), "holds": holds(f)} for f in figures],
                }
            )
        )
    else:
        console = Console()
        console.print(machine)
        for run in runs:
            console.print(pair_table(run))
            console.print(parts_table(run))
        if costs:
            console.print(overhead_table(costs))
        console.print(figure_table(figures))
    sys.exit(0 if all(map(holds, figures)) else 1)


if __name__ == "__main__":
    main()
