"""Is this tree slower than another? Benches of two source trees, taking turns round by round.

    git worktree add ../before COMMIT
    python bench/against.py ../before simulator place live [--rounds 3] [--keep FILE] [--json]

A round runs each bench once in each tree, in a process of its own whose PYTHONPATH is that tree. Which tree goes
first changes from round to round, so that a busy neighbour meets both. A tree is measured by its own script if that
has `--json`, else by this tree's, which then knows the other tree's sources by their commands only. Each tree has a
working directory of its own, and so a profile store of its own format with what it has learned itself.

For each figure: what both trees had (medians over rounds), and new over old, taken within a round: the median, the
smallest and the largest. A figure is `WORSE` if the median is worse than 1 by more than the spread, which is the
largest less the smallest; `in every round` if all rounds were worse, but not by that much. Fewer rounds than three
have no spread to speak of, and no figure is judged by them. With `--keep` rounds are added to a file, and those that
are in it count, too: so a machine that is quiet for short times only will do. The exit status is 1 if a figure is
worse, 2 if a bench did not run. Results go to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
LESS, MORE = "less", "more"
#: By fewer nothing is judged.
LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Bench:
    """How a bench is run for one short round, and which of its figures count."""

    arguments: tuple[str, ...]
    #: (pattern of the whole name, which is better)
    figures: tuple[tuple[str, str], ...]


BENCHES = {
    "simulator": Bench(("--json", "--requests", "5000"), ((r"per_s/dovetail.*", MORE), (r"ratio", MORE))),
    "place": Bench(("--json",), ((r"us/dovetail.*/(plan|route|row)/p50", LESS), (r"us/dovetail.*/plan/p99", LESS))),
    "live": Bench(
        ("--json", "--quick"),
        (
            (r"figures/ratio \d", MORE),
            (r"figures/(paced|poisson): (by request|front cpu)", LESS),
            (r"figures/(large )?path", LESS),
            (r"figures/front cpu \d", LESS),
        ),
    ),
    "ahead": Bench(("--json", "--rounds", "2"), ((r"figures/.*/(ahead per_s|ratio)", MORE),)),
    "kernelled": Bench(
        ("--json", "--rounds", "2", "--seconds", "1.5"),
        ((r"figures/high .*/(with|ratio)", LESS), (r"figures/low throughput.*/(with|ratio)", MORE)),
    ),
    "memory": Bench(
        ("--json", "--requests", "24", "--rounds", "1", "--policies", "place"),
        ((r"figures/.*/hit_rate", MORE), (r"figures/.*/(median_ms|p90_ms|seconds|peak_mb)", LESS)),
    ),
}


class BenchFailed(Exception):
    """A bench that gave no figures."""


def environment(tree: Path) -> dict[str, str]:
    """Whose `import dovetail` is that tree's."""
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "NO_COLOR": "1"}


def check(tree: Path) -> None:
    """That the sources are there, and are those that would be imported."""
    command = [sys.executable, "-c", "import dovetail; print(dovetail.__file__)"]
    done = subprocess.run(command, env=environment(tree), capture_output=True, text=True, check=False, timeout=60)
    found = done.stdout.strip()
    if not found or not Path(found).resolve().is_relative_to(tree):
        raise BenchFailed(f"{tree} has no sources of dovetail: {found or done.stderr.strip()}")


def script(tree: Path, name: str) -> Path:
    """The tree's own bench if it can speak JSON, else this tree's."""
    own = tree / "bench" / f"{name}.py"
    text = own.read_text(encoding="utf-8") if own.is_file() else ""
    return own if "--json" in text or "table_or_json" in text else HERE / "bench" / f"{name}.py"


def run(tree: Path, name: str, timeout_s: float, folder: Path) -> dict[str, float]:
    """One round of a bench in a tree, which keeps its files in a folder: figure -> value."""
    bench = BENCHES[name]
    command = [sys.executable, str(script(tree, name)), *bench.arguments]
    try:
        done = subprocess.run(
            command, env=environment(tree), cwd=folder, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{name} in {tree}: no end within {timeout_s:g} s") from None
    try:
        said = json.loads(done.stdout)  # whatever the exit status: some say with it that a goal was missed
    except json.JSONDecodeError:
        last = "\n".join(done.stderr.splitlines()[-5:])
        raise BenchFailed(f"{name} in {tree}: exit status {done.returncode}, no JSON\n{last}") from None
    return {figure: value for figure, value in leaves(said) if direction(name, figure)}


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Numbers by the path to them. One that was measured in rounds is its median, a row goes by what it says."""
    if isinstance(value, dict):
        if "median" in value:
            yield name, float(value["median"])
            return
        for key, inner in value.items():
            yield from leaves(inner, f"{name}/{key}" if name else key)
    elif isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
        yield name, float(statistics.median(value))
    elif isinstance(value, list):
        for row in value:
            if isinstance(row, dict) and "what" in row:
                yield from leaves(row, f"{name}/{row['what']}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def direction(name: str, figure: str) -> str:
    """Which is better, or nothing if the figure does not count."""
    return next((better for pattern, better in BENCHES[name].figures if re.fullmatch(pattern, figure)), "")


@dataclass(frozen=True)
class Compared:
    """One figure of both trees."""

    bench: str
    figure: str
    better: str
    old: float
    new: float
    #: How many rounds, and new over old: median, least and most over rounds.
    rounds: int
    ratio: float
    least: float
    most: float
    verdict: str


def compare(name: str, figure: str, old: list[float], new: list[float]) -> Compared:
    """Judge a figure by its rounds."""
    better = direction(name, figure)
    ratios = [b / a if a else 1.0 if a == b else float("inf") for a, b in zip(old, new, strict=True)]
    ratio, least, most = statistics.median(ratios), min(ratios), max(ratios)
    excess = ratio - 1 if better == LESS else 1 - ratio
    worse_always = least > 1 if better == LESS else most < 1
    verdict = ""
    if not better:
        pass  # it is only shown
    elif len(ratios) >= LEAST_ROUNDS and excess > most - least:
        verdict = "WORSE"
    elif len(ratios) >= LEAST_ROUNDS and worse_always:
        verdict = "in every round"
    middle = statistics.median
    return Compared(name, figure, better, middle(old), middle(new), len(ratios), ratio, least, most, verdict)


def measure(base: Path, names: list[str], rounds: int, timeout_s: float, keep: Path | None) -> list[Compared]:
    """All rounds of all benches, those that were kept before included."""
    found: dict[tuple[str, Path], list[dict[str, float]]] = {(n, tree): [] for n in names for tree in (base, HERE)}
    for line in keep.read_text().splitlines() if keep is not None and keep.exists() else ():
        for name, (old, new) in json.loads(line).items():
            if name in names:
                found[name, base].append(old)
                found[name, HERE].append(new)
    with tempfile.TemporaryDirectory() as scratch, Progress(console=Console(stderr=True), transient=True) as bar:
        folders = {base: Path(scratch, "other"), HERE: Path(scratch, "this")}
        for folder in folders.values():
            folder.mkdir()
        task = bar.add_task("", total=rounds * len(found))
        before = len(found[names[0], base])
        for number in range(rounds):
            for name in names:
                for tree in (base, HERE) if (before + number) % 2 else (HERE, base):
                    which = "this tree" if tree == HERE else "the other"
                    bar.update(task, description=f"round {number + 1}: {name}, {which}")
                    found[name, tree].append(run(tree, name, timeout_s, folders[tree]))
                    bar.advance(task)
            if keep is not None:
                with keep.open("a") as file:
                    print(json.dumps({n: (found[n, base][-1], found[n, HERE][-1]) for n in names}), file=file)
    compared: list[Compared] = []
    for name in names:
        olds, news = found[name, base], found[name, HERE]
        common = [figure for figure in news[0] if all(figure in taken for taken in (*olds, *news))]
        if not common:
            raise BenchFailed(f"{name}: the trees have no figure in common")
        compared += [compare(name, f, [old[f] for old in olds], [new[f] for new in news]) for f in common]
    return compared


def show(compared: list[Compared]) -> None:
    """A table for people."""
    table = Table("bench", "figure", "rounds", "old", "new", "new/old", "least", "most", "better", "", box=None)
    for c in compared:
        numbers = (f"{v:.4g}" for v in (c.old, c.new, c.ratio, c.least, c.most))
        table.add_row(c.bench, c.figure.removeprefix("figures/"), str(c.rounds), *numbers, c.better, c.verdict)
    console = Console(width=150)
    console.print(table)
    worse = sum(c.verdict == "WORSE" for c in compared)
    console.print(f"{worse} of {len(compared)} figures are worse by more than their spread over all rounds")


def main() -> int:
    """Compare and print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=lambda text: Path(text).resolve(), help="the other source tree")
    parser.add_argument("benches", nargs="+", choices=BENCHES, metavar="BENCH", help=", ".join(BENCHES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="add rounds to this file, and count those in it")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="for one bench in one tree (300)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    args = parser.parse_args()
    try:
        for tree in (args.base, HERE):
            check(tree)
        compared = measure(args.base, args.benches, args.rounds, args.timeout, args.keep)
    except BenchFailed as error:
        print(f"bench/against.py: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"figures": [vars(c) for c in compared]}, indent=2))
    else:
        show(compared)
    return int(any(c.verdict == "WORSE" for c in compared))


if __name__ == "__main__":
    sys.exit(main())
