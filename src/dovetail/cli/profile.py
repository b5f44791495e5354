"""`dovetail profile app:wf`: measure each stage on this machine, or say which profiles still hold.

With --kernels: what servers and gates have learned of kernels; with --learned: what servers have learned of run and
load times. Exit code 0: every stage asked for has its points. 1:
some could not be measured, or (with --status) some are stale or missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..errors import DeclarationError
from ..profile.kernelrows import KernelStatus
from ..profile.machine import Identity, this_machine
from ..profile.measure import FULL, QUICK
from ..profile.profiler import ProfileOutcome, ProfileRequest, Watch, chosen_stages, profile
from ..profile.record import FRESH, Measured, Record, Status
from ..profile.store import ProfileStore
from ..profile.table import ProfileTable
from ..record.learned import judge_learned, learned_figures
from ..units import MS, SECOND, format_ns
from ..workflow.app import App, load_target
from .flags import refuse, whole
from .profile_slices import MOST_POINTS, measure_slices
from .reading import new_table, print_json
from .stores import add_store, chosen_store, to_stderr

#: Longest description of items in a table's title.
ITEMS_CHARS = 60


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.add_argument(
        "target", metavar="MODULE:NAME", nargs="?", help="application or workflow, as examples.quickstart:app"
    )
    add_store(parser)
    parser.add_argument("--status", action="store_true", help="measure nothing; say which profiles hold")
    parser.add_argument(
        "--kernels", action="store_true", help="measure nothing; show what was learned of kernels while serving"
    )
    parser.add_argument(
        "--learned", action="store_true", help="measure nothing; show what was learned of run and load times"
    )
    parser.add_argument(
        "--forget",
        action="store_true",
        help="with --kernels or --learned: forget it, so that it is learned anew (and models are cut anew)",
    )
    parser.add_argument("--stage", action="append", default=[], metavar="NAME", help="only this stage; repeatable")
    parser.add_argument("--batch", type=_sizes, default=(), metavar="N,N", help="only these batch sizes")
    parser.add_argument(
        "--slices",
        nargs="?",
        type=whole(8, 1000),
        const=MOST_POINTS,
        metavar="POINTS",
        help=f"by batch, share and quota instead, with so many points a stage at most ({MOST_POINTS})",
    )
    parser.add_argument("--quick", action="store_true", help="fewer repeats: 5 %% instead of 2 %%, 0.2 s a point")
    parser.add_argument("--again", action="store_true", help="measure also what the store already has")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Measure or report; the exit code."""
    if args.kernels and args.learned:
        raise DeclarationError("--kernels and --learned show different things; give one of them")
    if args.forget and not (args.kernels or args.learned):
        raise DeclarationError("--forget lets go of what --kernels or --learned shows; give one of them with it")
    if args.kernels or args.learned:
        shown = "--kernels" if args.kernels else "--learned"
        measuring = ("--status", "--stage", "--batch", "--quick", "--again", "--slices")
        refuse(args, *measuring, because=f"{shown} shows what was learned while serving; leave one of the two out")
    if args.slices is not None:
        others = ("--status", "--batch", "--quick")
        refuse(args, *others, because="--slices measures by batch, share and quota; leave one of the two out")
    if args.status:
        because = "--status measures nothing; leave one of the two out"
        refuse(args, "--batch", "--quick", "--again", because=because)
    if args.target is None and not (args.kernels or args.learned):
        raise DeclarationError("which application? Write for example dovetail profile examples.quickstart:app")
    app = None if args.target is None else load_target(args.target)
    store = chosen_store(args, to_stderr("dovetail profile"))
    identity = this_machine()
    if args.forget:
        return _forget(store, args.kernels)
    if args.kernels:
        return _report_kernels(store, identity, app, args)
    if args.learned:
        return _report_learned(store, identity, app, args)
    assert app is not None
    rule = QUICK if args.quick else FULL
    request = ProfileRequest(rule=rule, stages=tuple(args.stage), batches=args.batch, again=args.again)
    if args.slices is not None:
        with _progress() as watch:
            return measure_slices(app, store, identity, request, args.slices, as_json=args.json, watch=watch)
    if args.status:
        specs = [stage.spec for stage in chosen_stages(app, request)]
        return _report_status(store, store.status(specs, identity), identity, args)
    return _measure(app, store, identity, request, args)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be whole numbers, as 1,4,8")
    return sizes


def _measure(
    app: App, store: ProfileStore, identity: Identity, request: ProfileRequest, args: argparse.Namespace
) -> int:
    out = Console(highlight=False)
    outcomes: list[ProfileOutcome] = []
    try:
        with _progress() as watch:
            for outcome in profile(app, store, identity, request, watch=watch):
                if not outcomes and not args.json:
                    out.print(f"{identity.machine}; {_libraries(identity)}\n", soft_wrap=True)
                outcomes.append(outcome)
                if outcome.record is not None and not args.json:
                    out.print(_heading(outcome.record), soft_wrap=True)
                    out.print(_table(outcome.record), "")
    except KeyboardInterrupt:
        print(f"interrupted; what was measured is in {store.path}, the same command goes on", file=sys.stderr)
        return 130
    _warn(outcomes, args)
    if args.json:
        print_json({"store": str(store.path), "identity": identity, "stages": [_plain(o) for o in outcomes]})
    else:
        measured = sum(o.measured for o in outcomes)
        held = sum(len(o.record.points) for o in outcomes if o.record is not None) - measured
        out.print(f"{measured} points measured, {held} already there; in {store.path}", soft_wrap=True)
    return 1 if any(o.trouble for o in outcomes) else 0


def _warn(outcomes: list[ProfileOutcome], args: argparse.Namespace) -> None:
    """On stderr: stages without figures, and figures that are less sure than they should be."""
    for o in outcomes:
        if o.trouble:
            print(f"dovetail profile: stage {o.spec.name!r} was not measured: {o.trouble}", file=sys.stderr)
    points = [p for o in outcomes if o.record is not None for p in o.record.points]
    unsure = sum(p.error > (QUICK if p.quick else FULL).target for p in points)
    if unsure:
        print(
            f"dovetail profile: {unsure} of {len(points)} points are less sure than they should be (± "
            f"{100 * FULL.target:.0f} %, quick ones {100 * QUICK.target:.0f} %); the machine was busy or the stage's "
            f"time varies. To measure again: {_command(args)} --again",
            file=sys.stderr,
        )


@contextmanager
def _progress() -> Iterator[Watch]:
    """A bar per stage on stderr. It is drawn between runs only: a thread that draws would be measured, too."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
    ) as bar:
        tasks: dict[str, Any] = {}
        drawn: dict[str, int] = {}

        def watch(stage: str, done: float) -> None:
            if drawn.get(stage) == int(100 * done):
                return
            drawn[stage] = int(100 * done)
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=1.0)
            bar.update(tasks[stage], completed=done, visible=done < 1.0)
            bar.refresh()

        yield watch


def _heading(record: Record) -> str:
    items = record.items if len(record.items) <= ITEMS_CHARS else record.items[: ITEMS_CHARS - 1] + "…"
    load = f", loads in {format_ns(record.load_ns)}" if record.load_ns else ""
    return f"[bold]{record.key.stage}[/] on {record.key.kind}{load}, fed with {escape(items)}"


def _table(record: Record) -> Table:
    """Batch × cores of one stage: time and how sure it is, spread of a run, rate, gain; the best rate is starred."""
    table = new_table(">cores", ">batch", ">ms/batch", ">±", ">spread", ">items/s", ">gain", "")
    best = max(record.points, key=_items_per_s)
    smallest: dict[int, Measured] = {}
    for p in record.points:  # by cores, then by batch
        if smallest and p.cpus not in smallest:
            table.add_section()
        gain = _items_per_s(p) / _items_per_s(smallest.setdefault(p.cpus, p))
        table.add_row(
            str(p.cpus),
            str(p.batch),
            f"{p.mean_ns / MS:.3g}",
            f"{100 * p.error:.1f} %",
            f"{100 * p.spread:.0f} %",
            f"{_items_per_s(p):,.0f}" if _items_per_s(p) >= 100 else f"{_items_per_s(p):.3g}",
            f"{gain:.2f}x",
            ("*" if p is best else "") + (" quick" if p.quick else ""),
        )
    return table


def _items_per_s(point: Measured) -> float:
    return point.batch * SECOND / point.mean_ns


def _report_status(store: ProfileStore, found: list[Status], identity: Identity, args: argparse.Namespace) -> int:
    if args.json:
        print_json({"store": str(store.path), "identity": identity, "stages": found})
    else:
        table = new_table("~stage", "~on", "~profile", "~measured", "~why")
        for s in found:
            table.add_row(s.stage, s.kind, s.state, s.measured_at or "-", "; ".join(s.reasons))
        Console(highlight=False).print(table)
    holds = all(s.state == FRESH for s in found)
    if not holds:
        print(f"run: {_command(args)}", file=sys.stderr)
    return 0 if holds else 1


def _forget(store: ProfileStore, kernels: bool) -> int:
    forget = store.forget_kernels if kernels else store.forget_learned
    what = "kernels of {} sequence(s)" if kernels else "times of {} stage(s) and model(s)"
    print(f"forgot the {what.format(forget() if store.path.exists() else 0)}; in {store.path}")
    return 0


def _report_kernels(store: ProfileStore, identity: Identity, app: App | None, args: argparse.Namespace) -> int:
    """What was learned of kernels: of the target's models, or of all."""
    found = store.kernel_status(identity)
    if app is not None:
        models = [spec.model for spec in app.specs]
        found = [s for s in found if s.key.model and any(model.startswith(s.key.model) for model in models)]
    if args.json:
        sequences = [_kernel_figures(s) for s in found]
        print_json({"store": str(store.path), "identity": identity, "sequences": sequences})
        return 0
    numbers = (">~kernels", ">~seen", ">~longest", ">~total")
    table = new_table("~sequence", "~on", *numbers, "~state", "~learned", "~why")
    for status in found:
        f = _kernel_figures(status)
        times = [format_ns(f[name]) if f["kernels"] else "-" for name in ("longest_ns", "total_ns")]
        plain = [str(f[name]) for name in ("sequence", "on", "kernels", "seen")]
        table.add_row(*map(escape, plain), *times, f["state"], status.learned_at, escape("; ".join(status.reasons)))
    out = Console(highlight=False)
    out.print(table if found else f"nothing is known of kernels; serve two classes with --store {store.path}")
    return 0


def _kernel_figures(status: KernelStatus) -> dict[str, Any]:
    """A sequence in figures: how often each of its kernels was seen at least, and how long they take on average."""
    stats = status.stats
    means_ns = [] if stats is None else [spread.mean_ns for spread in stats.durations]
    return {
        "sequence": status.key.stage,
        "on": status.key.kind,
        "kernels": len(means_ns),
        "seen": 0 if stats is None else stats.seen,
        "longest_ns": round(max(means_ns, default=0)),
        "total_ns": round(sum(means_ns)),
        "state": status.state,
        "learned_at": status.learned_at,
        "reasons": status.reasons,
    }


def _report_learned(store: ProfileStore, identity: Identity, app: App | None, args: argparse.Namespace) -> int:
    """What was learned of run and load times: of the target's stages, beside their profiles, or of all."""
    specs = None if app is None else app.specs
    entries = [] if specs is None else store.entries(specs, identity, allow_stale=True)
    figures = [
        row
        for status in judge_learned(store.learned(), identity, specs)
        for row in learned_figures(status, ProfileTable(entries))
    ]
    if args.json:
        print_json({"store": str(store.path), "identity": identity, "learned": figures})
        return 0
    out = Console(highlight=False)
    if not figures:
        out.print(f"nothing was learned of times yet; serve with --store {store.path}")
        return 0
    optional = {"profile": any(f["profile_ns"] for f in figures), "why": any(f["reasons"] for f in figures)}
    table: Table | None = None
    for f in figures:
        cells = {
            "what": escape(f["what"]),
            "on": escape(f["on"]),
            "items": str(f["items"] or "-"),
            "cores": str(f["cpus"] or "-"),
            "share": f"{f['share_pct']} %" if f["share_pct"] else "-",
            "seen": str(f["seen"]),
            "mean": format_ns(f["mean_ns"]) if f["seen"] else "-",
            "spread": f"{100 * f['spread']:.0f} %" if f["seen"] else "-",
            "profile": format_ns(f["profile_ns"]) if f["profile_ns"] else "-",
            "state": f["state"],
            "why": escape("; ".join(f["reasons"])),
        }
        shown = [head for head in cells if optional.get(head, True)]
        if table is None:
            texts = ("what", "on", "state", "why")
            table = new_table(*(f"~{head}" if head in texts else f">~{head}" for head in shown))
        table.add_row(*(cells[head] for head in shown))
    out.print(table)
    return 0


def _command(args: argparse.Namespace) -> str:
    """What to type to profile the same target into the same store."""
    store = "" if args.store is None else f" --store {args.store}"
    return f"dovetail profile {args.target}{store}"


def _libraries(identity: Identity) -> str:
    return ", ".join(f"{name} {version}" for name, version in identity.libraries.items())


def _plain(outcome: ProfileOutcome) -> dict[str, Any]:
    record = outcome.record
    return {
        "stage": outcome.spec.name,
        "measured": outcome.measured,
        "trouble": outcome.trouble,
        **({} if record is None else msgspec.to_builtins(record)),
    }
