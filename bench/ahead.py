"""What is it worth to send the next batch before there is room for it? Short models through HTTP, with and without.

    python bench/ahead.py [--rounds N] [--json]

Networks of two, three and seven convolutions on a picture of 0.2 MB, closed loop over six connections, batches of
one. Two servers, one with `--lead 0` and one as it comes, take turns in every round; the worker has one CPU to
itself, front and clients the other. A figure is the median over rounds of the ratio of their answers per second, with
the smallest and the largest. Results go to stdout, progress to stderr. Takes a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from _clients import client, rate
from _figures import machine, p50
from _models import LAYERS, make_model
from _serverproc import bare, child, serving

#: Layers of the networks.
MODELS = (2, 3, 7)
CONNECTIONS, SECONDS = 6, 1.0


def figures_of(layers: int, alone_s: float, before: list[float], after: list[float]) -> dict[str, Any]:
    """A model's figures, in the order of the table."""
    ratios = [a / b for a, b in zip(after, before, strict=True)]
    return {
        "what": f"{layers} layers",
        "alone_ms": alone_s * 1e3,
        "at the end per_s": p50(before),
        "ahead per_s": p50(after),
        "ratio": p50(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        sys.exit("bench/ahead.py needs two CPUs: one for the worker, one for the front and its clients")
    rates: dict[tuple[int, bool], list[float]] = {(layers, ahead): [] for layers in MODELS for ahead in (False, True)}
    alone_s: dict[int, float] = {}
    with ExitStack() as stack:
        asking = stack.enter_context(child(client, cpus[0]))
        servers = {}
        for layers in MODELS:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            make_model(directory / "network.onnx", LAYERS[:layers])
            make_model(directory / "mean.onnx", ())
            with child(bare, directory, cpus[-1]) as alone:
                alone_s[layers] = p50(alone.ask("network", 1, SECONDS))
            for ahead in (False, True):
                options = [] if ahead else ["--lead", "0"]
                serves = serving(directory, 1, cpus[0], cpus[-1], options=options)
                servers[layers, ahead] = stack.enter_context(serves)
        steps = [(n, key) for n in range(args.rounds + 1) for key in servers]
        for number, key in track(steps, "closed loops", console=Console(stderr=True), transient=True):
            found = rate(asking.ask("closed", servers[key].port, CONNECTIONS, SECONDS), 1)
            if number:  # the first round warms up
                rates[key].append(found)
    rows = [figures_of(layers, alone_s[layers], rates[layers, False], rates[layers, True]) for layers in MODELS]
    if args.json:
        print(json.dumps({"machine": machine(), "rounds": args.rounds, "figures": rows}))
        return
    console = Console()
    console.print(f"{machine()}; {args.rounds} rounds of {SECONDS:g} s\n", soft_wrap=True, highlight=False)
    table = Table("model alone, ms", "at the end, /s", "ahead, /s", "ratio", "smallest", "largest", box=None)
    for row in rows:
        table.add_row(*(f"{value:.4g}" for name, value in row.items() if name != "what"))
    console.print(table)


if __name__ == "__main__":
    main()
