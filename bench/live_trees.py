"""Is serving slower than in another source tree? The figures of `live.py`, of servers of two trees that take turns.

    git worktree add ../before COMMIT
    python bench/live_trees.py ../before [--rounds 5] [--seconds 0.5] [--compiled DIR] [--json]

All servers are started once, and each round measures one tree after the other, now this one first and now that one.
All figures are shown. Those that count in `against.py` are judged as there; it takes a process for each tree and
round and three times as long. What the model ran for each request is read from each server's log by its own tree.
With `--compiled` this tree is served from a compiled build (`make compiled`: build/compiled). Results go to stdout,
progress to stderr. The exit status is 1 if a figure is worse by more than its spread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from _clients import client
from _models import LAYERS, make_model
from _serverproc import bare, child, serving
from against import HERE, Compared, compare, environment, show
from live import BATCHES, FIRST_REQUESTS, Bench, added_by_request, fill_in

#: Prints what `live.runs_s` reads from a log.
RUNS = """import json, pathlib, sys, live
print(json.dumps(live.runs_s(pathlib.Path(sys.argv[1]))))"""


def runs_of(tree: Path, log: Path) -> list[float]:
    """How long the model ran for each request of a log, as the tree that wrote it reads it."""
    paths = environment(tree)
    paths["PYTHONPATH"] += f"{os.pathsep}{HERE / 'bench'}"
    said = subprocess.run([sys.executable, "-c", RUNS, log], env=paths, capture_output=True, text=True, check=True)
    return list(json.loads(said.stdout))


def measure(
    base: Path, rounds: int, seconds: float, compiled: str, progress: Callable[[str], None]
) -> list[Compared]:
    """Every figure that counts, of both trees."""
    cpus = sorted(os.sched_getaffinity(0))
    front_cpu, worker_cpu = cpus[0], cpus[-1]
    rng = np.random.default_rng(3)
    trees = (base, HERE)
    kept: dict[Path, list[dict[str, float]]] = {tree: [] for tree in trees}
    benches: dict[Path, Bench] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folders = {tree: Path(name, str(number)) for number, tree in enumerate(trees)}
        asking = stack.enter_context(child(client, front_cpu))
        alone: Any = None
        for tree, folder in folders.items():
            folder.mkdir()
            make_model(folder / "network.onnx", LAYERS)
            make_model(folder / "mean.onnx", ())
            alone = alone or stack.enter_context(child(bare, folder, worker_cpu))

            def served(batch: int, *options: str, folder: Path = folder, tree: Path = tree) -> Any:
                around = environment(tree)
                if compiled and tree == HERE:
                    around["PYTHONPATH"] = compiled
                server = serving(folder, batch, front_cpu, worker_cpu, options, environment=around)
                return stack.enter_context(server)

            servers = {batch: served(batch) for batch in BATCHES}
            logged = served(BATCHES[0], "--log", "half.log")
            for _ in range(FIRST_REQUESTS):
                asking.ask("one", servers[BATCHES[1]].port)
            benches[tree] = Bench(alone, asking, servers, logged, 0, seconds, progress, brief=True)
        for number in range(-1, rounds):
            for tree in trees if number % 2 else reversed(trees):
                figures = benches[tree].round(rng)
                if number >= 0:  # the first warms up
                    kept[tree].append(figures)
        stack.close()
        for tree, folder in folders.items():
            fill_in(kept[tree], added_by_request(benches[tree].turns, runs_of(tree, folder / "half.log")))
    rows = [(name, [f[name] for f in kept[base]], [f[name] for f in kept[HERE]]) for name in kept[HERE][0]]
    return [compare("live", f"figures/{name}", old, new) for name, old, new in rows]


def main() -> int:
    """Compare and print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=lambda text: Path(text).resolve(), help="the other source tree")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    parser.add_argument("--compiled", default="", metavar="DIR", help="where this tree was compiled to")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    args = parser.parse_args()
    compiled = args.compiled and str(Path(args.compiled).resolve())
    with Progress("{task.description}", console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting")
        said = partial(bar.update, task)
        compared = measure(args.base, args.rounds, args.seconds, compiled, lambda text: said(description=text))
    print(json.dumps([vars(c) for c in compared], indent=2)) if args.json else show(compared)
    return int(any(c.verdict == "WORSE" for c in compared))


if __name__ == "__main__":
    sys.exit(main())
