"""`dovetail plan app:wf --rate R`: the configurations Dovetail would choose, what they cost, and what else there is.

Exit code 0: the objective can be met. 1: it cannot, and the fastest plan is shown. 2: wrong input. 3: nobody knows
how long some stage takes; it is named with what to do, and nothing is planned.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.markup import escape

from ..errors import DeclarationError
from ..extras import need
from ..tools.planning import Advice, Plan, advise, draw, find_workflow, shown
from ..tools.table import results_console
from ..units import parse_duration, parse_rate
from .flags import refuse, whole
from .reading import new_table, print_json
from .stores import add_store, chosen_store, to_stderr

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("target", help="module:attribute[/workflow], or a workflow of the catalogue (esg/...)")
    parser.add_argument("--rate", required=True, help="requests, such as 50/s or 30/min")
    parser.add_argument("--slo", help="another objective than the declared one, such as 300ms")
    parser.add_argument("--device", default="cpu", help="cpu, cpu:N, or a device of the catalogue (default: cpu)")
    add_store(parser)
    parser.add_argument("--percentile", type=_part, default=0.99, help="part of requests in time (default: 0.99)")
    parser.add_argument(
        "--fanout", type=whole(1), metavar="N", help="elements of the lists that stages are mapped over (default: 1)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the frontier")
    parser.add_argument("--json", action="store_true", help="print the whole frontier as JSON")


def _part(text: str) -> float:
    if not _is_number(text) or not 0.5 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0.5 and below 1, such as 0.99")
    return float(text)


def run(args: argparse.Namespace) -> int:
    """Plan and print; the exit code."""
    if args.plot is not None:
        need("matplotlib", extra="plot", for_="--plot")
    if ":" not in args.target:
        refuse(args, "--store", because="a workflow of the catalogue has the catalogue's times; leave it out")
    wanted = find_workflow(args.target)
    if args.fanout is not None and not any(node.mapped for node in wanted.graph.nodes):
        raise DeclarationError(f"--fanout: no stage of {wanted.graph.name!r} is mapped over a list; leave it out")
    advice = advise(
        wanted,
        rate_per_s=parse_rate(float(args.rate) if _is_number(args.rate) else args.rate, "--rate"),
        device=args.device,
        store=chosen_store(args, to_stderr("dovetail plan")) if ":" in args.target else None,
        named_store=args.store is not None,
        slo_ns=parse_duration(args.slo, "--slo") if args.slo else 0,
        percentile=args.percentile,
        fanout=args.fanout or 1,
    )
    if args.json:
        print_json(advice)
    else:
        show(advice)
    if advice.chosen is None:
        for remedy in advice.remedies:
            print(f"dovetail plan: {remedy}", file=sys.stderr)
        return 3
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
        f"[bold]{escape(advice.workflow)}[/] on {advice.device} at {advice.rate_per_s:g} requests/s, "
        f"objective {advice.objective_ms:g} ms for {advice.percentile:.1%} of requests\n"
    )
    if advice.chosen is not None:
        _show_plan(advice, advice.chosen)
    table = new_table("times of", "on", "are", "~from")
    for known in advice.stages:
        table.add_row(escape(known.stage), known.kind, known.basis, escape(known.why))
    out.print(table)
    bases = {known.basis for known in advice.stages}
    weakest = next(basis for basis in ("unknown", "assumed", "learned", "measured") if basis in bases)
    out.print(f"\nthe whole is [bold]{weakest}[/], as its least sure stage is")
    if advice.chosen is None:
        unknown = [known.stage for known in advice.stages if known.basis == "unknown"]
        names, verb = escape(", ".join(unknown)), "takes" if len(unknown) == 1 else "take"
        out.print(f"[bold red]there is no plan: nobody knows how long {names} {verb}[/]")
        return
    for note in advice.notes:
        out.print(f"note: {escape(note)}")


def _show_plan(advice: Advice, chosen: Plan) -> None:
    out = results_console()
    table = new_table("stage", ">batch", ">cores", ">share", ">run ms", ">fill ms", "time is")
    for step in chosen.steps:
        table.add_row(
            escape(step.node),
            str(step.batch),
            str(step.cpus),
            f"{step.share_pct} %",
            f"{step.run_ms:.1f}",
            f"{step.fill_ms:.1f}",
            step.basis,
        )
    out.print(table)
    percentile = f"{advice.percentile:.1%} of requests within {chosen.percentile_ms:.0f} ms"
    out.print(
        f"\nexpected: {chosen.expected_ms:.0f} ms on average, {percentile}, $ {chosen.usd_per_1000:.4g} per 1,000 "
        f"requests, {advice.devices:.2f} devices busy"
    )
    if not advice.feasible:
        out.print(f"[bold red]the objective cannot be met: even the fastest plan keeps {percentile}[/]")
    for name, other in (("next faster", advice.faster), ("next cheaper", advice.cheaper)):
        out.print(f"{name}: " + (_difference(advice, chosen, other) if other else "none whose cost differs by 1 %"))
    points = new_table(f">{advice.percentile:.1%} within ms", ">$ per 1,000", "", "")
    for index in shown(advice):
        latency_ms, usd = advice.frontier[index]
        in_time = "in time" if latency_ms <= advice.objective_ms else ""
        points.add_row(f"{latency_ms:.1f}", f"{usd:.4g}", in_time, "chosen" if index == advice.chosen_at else "")
    of = (
        f", {len(shown(advice))} of {len(advice.frontier)} points"
        if len(shown(advice)) < len(advice.frontier)
        else ""
    )
    out.print(f"\nfrontier (the cheapest plan within each time{of}):\n", points, "")


def _difference(advice: Advice, chosen: Plan, other: Plan) -> str:
    changed = [
        f"{b.node} batch {b.batch}, {b.cpus} core{'' if b.cpus == 1 else 's'}, {b.share_pct} %"
        for a, b in zip(chosen.steps, other.steps, strict=True)
        if (a.batch, a.cpus, a.share_pct) != (b.batch, b.cpus, b.share_pct)
    ]
    cost = 100 * (other.usd_per_1000 / chosen.usd_per_1000 - 1)
    return (
        f"{other.expected_ms:.0f} ms on average, {advice.percentile:.1%} within {other.percentile_ms:.0f} ms, "
        f"$ {other.usd_per_1000:.4g} ({cost:+.1f} %): {'; '.join(changed) or 'same'}"
    )
