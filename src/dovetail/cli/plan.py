"""`dovetail plan app:wf --rate R`: the configurations Dovetail would choose, what they cost, and what else there is.

Exit code 0: the objective can be met. 1: it cannot, and the fastest plan is shown. 2: wrong input.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..extras import need
from ..tools.planning import Advice, Plan, advise, draw, find_workflow, shown
from ..tools.table import results_console
from ..units import parse_duration, parse_rate
from .reading import new_table, print_json

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("target", help="module:attribute[/workflow], or a workflow of the catalogue (esg/...)")
    parser.add_argument("--rate", required=True, help="requests, such as 50/s or 30/min")
    parser.add_argument("--slo", help="another objective than the declared one, such as 300ms")
    parser.add_argument("--device", default="cpu", help="cpu, cpu:N, or a device of the catalogue (default: cpu)")
    parser.add_argument(
        "--store", type=Path, default=Path("profiles.sqlite"), help="profiles made by dovetail profile"
    )
    parser.add_argument("--percentile", type=float, default=0.99, help="part of requests in time (default: 0.99)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the frontier")
    parser.add_argument("--json", action="store_true", help="print the whole frontier as JSON")


def run(args: argparse.Namespace) -> int:
    """Plan and print; the exit code."""
    if args.plot is not None:
        need("matplotlib", extra="plot", for_="--plot")
    advice = advise(
        find_workflow(args.target),
        rate_per_s=parse_rate(float(args.rate) if _is_number(args.rate) else args.rate, "--rate"),
        device=args.device,
        store=args.store,
        slo_ns=parse_duration(args.slo, "--slo") if args.slo else 0,
        percentile=args.percentile,
    )
    if args.json:
        print_json(advice)
    else:
        show(advice)
    if args.plot is not None:
        draw(advice, args.plot)
        print(f"dovetail plan: wrote {args.plot}", file=sys.stderr)
    return 0 if advice.feasible else 1


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def show(advice: Advice) -> None:
    """The advice for people."""
    out = results_console()
    out.print(
        f"[bold]{advice.workflow}[/] on {advice.device} at {advice.rate_per_s:g} requests/s, "
        f"objective {advice.objective_ms:g} ms for {advice.percentile:.1%} of requests\n"
    )
    table = new_table("stage", ">batch", ">cores", ">share", ">run ms", ">fill ms")
    for step in advice.chosen.steps:
        table.add_row(
            step.node,
            str(step.batch),
            str(step.cpus),
            f"{step.share_pct} %",
            f"{step.run_ms:.1f}",
            f"{step.fill_ms:.1f}",
        )
    out.print(table)
    out.print(
        f"\nexpected: {advice.chosen.latency_ms:.0f} ms, $ {advice.chosen.usd_per_1000:.4g} per 1,000 requests, "
        f"{advice.devices:.2f} devices busy"
    )
    if not advice.feasible:
        out.print(
            f"[bold red]the objective cannot be met: the fastest plan takes {advice.chosen.latency_ms:.0f} ms[/]"
        )
    for name, other in (("next faster", advice.faster), ("next cheaper", advice.cheaper)):
        out.print(f"{name}: " + (_difference(advice.chosen, other) if other else "there is none"))
    points = new_table(">latency ms", ">$ per 1,000", "")
    for latency_ms, usd in shown(advice.frontier):
        points.add_row(f"{latency_ms:.1f}", f"{usd:.4g}", "in time" if latency_ms <= advice.objective_ms else "")
    out.print("\nfrontier (the cheapest plan within each latency):\n", points)


def _difference(chosen: Plan, other: Plan) -> str:
    changed = [
        f"{b.node} batch {b.batch}, {b.cpus} cores, {b.share_pct} %"
        for a, b in zip(chosen.steps, other.steps, strict=True)
        if (a.batch, a.cpus, a.share_pct) != (b.batch, b.cpus, b.share_pct)
    ]
    cost = 100 * (other.usd_per_1000 / chosen.usd_per_1000 - 1)
    return f"{other.latency_ms:.0f} ms, $ {other.usd_per_1000:.4g} ({cost:+.1f} %): {'; '.join(changed) or 'same'}"
