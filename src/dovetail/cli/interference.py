"""`dovetail interference app:wf`: measure what the models of an application cost each other on this machine.

`--show` prints what is learned of it in the profile store instead. Exit code 0: done. 2: nothing can be measured, or
nothing is known.
"""

from __future__ import annotations

import argparse
import math
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from ..errors import DeclarationError, ProfileError
from ..extras import need
from ..predict.interference import Interference
from ..profile.machine import this_machine
from ..profile.store import DEFAULT_STORE, ProfileStore
from ..record.interference import figures_of, row_of, state_of
from ..tools.pairs import Pairs, draw_pairs, measure_pairs, teach, together
from ..tools.table import results_console
from ..units import format_ns
from ..workflow.app import load_target
from .flags import refuse, seconds
from .reading import new_table, print_json, writing

__all__ = ["configure", "run"]

_PICTURES = (".png", ".pdf", ".svg")


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.add_argument("target", metavar="MODULE:NAME", nargs="?", help="application or workflow")
    parser.add_argument("--store", type=Path, default=Path(DEFAULT_STORE), metavar="PATH", help="profile store")
    parser.add_argument("--show", action="store_true", help="measure nothing; show what is learned")
    parser.add_argument("--stage", action="append", default=[], metavar="NAME", help="only this stage; repeatable")
    parser.add_argument(
        "--seconds",
        type=seconds(0.05, 60, "from 0.05 to 60 seconds"),
        metavar="S",
        help="how long each pair runs (default: 1)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the matrix as a heat map")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Measure or show; the exit code."""
    store, identity = ProfileStore(args.store), this_machine()
    if args.show:
        refuse(args, "--stage", "--seconds", "--plot", because="--show measures nothing; leave one of the two out")
        state, why = state_of(store.learned(), identity)
        if state is None:
            raise ProfileError(f"{store.path} has nothing of interference that holds here: {why}")
        figures = figures_of(state)
        if args.json:
            print_json(figures)
        else:
            _show(figures)
        return 0
    if args.target is None:
        raise DeclarationError("which application? Write for example dovetail interference examples.document:app")
    if args.plot is not None:
        need("matplotlib", extra="plot", for_="--plot")
        _check_plot(args.plot)
    app = load_target(args.target)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, transient=True, console=_stderr()) as bar:
        task = bar.add_task("models", total=1.0)
        pairs = measure_pairs(
            app,
            cores=identity.cores,
            stages=args.stage,
            seconds=args.seconds or 1.0,
            watch=lambda what, done: bar.update(task, description=what, completed=done),
        )
    state, _ = state_of(store.learned(), identity)
    model = Interference(state)
    teach(model, pairs)
    store.create()
    store.put_learned([row_of(model.state(), identity)])
    if args.plot is not None:
        with writing(args.plot):
            draw_pairs(pairs, args.plot)
    if args.json:
        print_json({"pairs": pairs, "together": _worth(pairs), "store": str(store.path)})
    else:
        _matrix(pairs)
    return 0


def _check_plot(path: Path) -> None:
    """Minutes of measuring should not be lost to a name."""
    if path.suffix.lower() not in _PICTURES:
        raise DeclarationError(f"--plot {path}: a picture is {', '.join(_PICTURES[:-1])} or {_PICTURES[-1]}")
    if not path.parent.is_dir():
        raise DeclarationError(f"--plot {path}: there is no directory {path.parent}")


def _stderr() -> Any:
    from rich.console import Console

    return Console(stderr=True)


def _worth(pairs: Pairs) -> list[dict[str, Any]]:
    """Each pair with what it does together over one after the other, the worst first."""
    names = pairs.stages
    found = [
        {"one": names[one], "other": names[two], "together": together(pairs, one, two)}
        for one, two in combinations_with_replacement(range(len(names)), 2)
    ]
    return sorted(found, key=lambda row: (row["together"], row["one"], row["other"]))


def _matrix(pairs: Pairs) -> None:
    out = results_console()
    table = new_table("stage", ">items", ">alone", *(f">beside {name}" for name in pairs.stages))
    for one, name in enumerate(pairs.stages):
        cells = [_cell(slow) for slow in pairs.slowdown[one]]
        table.add_row(Text(name), str(pairs.items[one]), format_ns(pairs.half_ns[one]), *cells)
    out.print(table, "")
    rows = _worth(pairs)
    apart = [row for row in rows if row["together"] < 1]
    if apart:
        out.print("keep apart (both together do less than the device does for one after the other):")
        for row in apart:
            less = 100 * (1 - row["together"])
            out.print(f"  {row['one']} and {row['other']}: {less:.0f} % less", soft_wrap=True)
    else:
        out.print("no pair has to be kept apart: each does more together than one after the other")
    best = rows[-1]
    if best["together"] >= 1:
        more = 100 * (best["together"] - 1)
        out.print(f"best together: {best['one']} and {best['other']}, {more:.0f} % more", soft_wrap=True)


def _cell(slow: float) -> Text:
    style = "bold red" if slow >= 2 else "yellow" if slow >= 1.3 else "green"
    return Text(f"{slow:.2f}", style)


def _show(figures: list[dict[str, Any]]) -> None:
    out = results_console()
    for kind in figures:
        longer = 100 * (math.exp(kind["beside_others"]) - 1)
        out.print(
            f"{kind['on']}: neighbours are {'felt' if kind['felt'] else 'not felt'}, batches beside others take "
            f"{longer:+.1f} %; {kind['seen']:,} batches were learned from; single batches scatter by "
            f"{100 * kind['scatter']:.1f} %; neighbours add up with power {kind['neighbours_add_up']:.2f}; "
            f"{kind['changes_noticed']} changes noticed",
            soft_wrap=True,
        )
        table = new_table("situation", ">seen", ">within 95 % bound")
        for row in kind["situations"]:
            covered = row["covered"].get("0.95")
            table.add_row(row["situation"], f"{row['seen']:,}", "-" if covered is None else f"{100 * covered:.1f} %")
        out.print(table, "")
        table = new_table("victim", "beside", ">effect", ">doubt")
        for row in sorted(kind["effects"], key=lambda row: -abs(row["effect"]))[:_ROWS]:
            effect = f"{row['effect']:+.3f}"
            table.add_row(Text(row["victim"] or "any"), Text(row["beside"] or "any"), effect, f"{row['doubt']:.3f}")
        out.print(table, "")


#: Effects that are shown, the largest first; --json has all.
_ROWS = 20
