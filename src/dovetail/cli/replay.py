"""`dovetail replay run.log`: run the controller again on a recorded log and compare its actions.

Exit code 0: the same actions, byte for byte. 1: different, and the first difference is shown. 2: not readable.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from ..record.log import LogReader
from ..tools.replay import Difference, ReplayResult, replay
from ..tools.table import render, results_console
from ..tools.trace import TraceRecorder
from .reading import print_json, printable, progress_bar, writing


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.add_argument("log", type=Path, metavar="LOG", help="log of a live or simulated run")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="also write a trace for ui.perfetto.dev (.json, .json.gz)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Replay; the exit code."""
    recorder = None
    if args.trace is not None:
        with LogReader(args.log) as log:
            recorder = TraceRecorder(log.header.graphs)
    with progress_bar(f"replaying {args.log.name}") as progress:
        observers = [recorder.observe] if recorder is not None else []
        result = replay(args.log, observers=observers, progress=progress)
    if recorder is not None:
        with writing(args.trace, "the trace"):
            recorder.write(args.trace)
        _note(f"wrote {recorder.events} events to {args.trace}; open it at https://ui.perfetto.dev")
    if result.cut_short:
        _note(f"{args.log} was cut short; its {result.steps} whole steps were compared")
    if args.json:
        print_json(_plain(result))
    else:
        _print(result)
    return 0 if result.same else 1


def _note(text: str) -> None:
    print(f"dovetail replay: {text}", file=sys.stderr)


def _print(result: ReplayResult) -> None:
    out = results_console()
    out.print(render(result.outcomes), "")
    if result.first_difference is None:
        out.print(f"[bold green]same[/]: {result.steps} steps of a {result.world} run with {result.policy.name}")
    else:
        _print_difference(out, result, result.first_difference)


def _print_difference(out: Console, result: ReplayResult, found: Difference) -> None:
    """The first difference in the manner of diff: ``-`` recorded, ``+`` replayed."""
    out.print(
        f"[bold red]different[/]: step {found.step} of {result.steps}; the {result.same_steps} before it are the same"
    )
    out.print(printable(f"  event  {found.event!r}"), soft_wrap=True)
    for sign, line in _diff(found):
        out.print(printable(f"  {sign} {line}", {"-": "red", "+": "green"}.get(sign, "")), soft_wrap=True)
    if found.raised:
        out.print(printable(f"  + raised {found.raised}", "green"), soft_wrap=True)


def _diff(found: Difference) -> Iterator[tuple[str, str]]:
    recorded, replayed = [repr(a) for a in found.recorded], [repr(a) for a in found.replayed]
    for position in range(max(len(recorded), len(replayed))):
        left, right = recorded[position : position + 1], replayed[position : position + 1]
        if left == right:
            yield " ", left[0]
        else:
            yield from (("-", line) for line in left)
            yield from (("+", line) for line in right)


def _plain(result: ReplayResult) -> dict[str, Any]:
    """The result with names for all fields: in a log, events and actions are bare lists."""
    found = result.first_difference
    return {
        "same": result.same,
        **{name: getattr(result, name) for name in result.__struct_fields__ if name != "first_difference"},
        "first_difference": found
        and {
            "step": found.step,
            "event": _named(found.event),
            "recorded": [_named(a) for a in found.recorded],
            "replayed": [_named(a) for a in found.replayed],
            "raised": found.raised,
        },
    }


def _named(record: msgspec.Struct) -> dict[str, Any]:
    return {"type": type(record).__name__, **msgspec.structs.asdict(record)}
