"""How long does a decision of the default policy take, and does it grow with the number of workers?

    python bench/decide.py [--json]
    python bench/decide.py --count [--json]     calls of functions in place of time: the same on any machine

ESG's and Compass's workflows in two classes on simulated T4s whose memory (8 GB) does not hold all models, at a rate
that grows with the number of workers. What is timed is a whole step of the controller in which batches are decided:
batch, share, worker and memory, admission and all books included, per batch. Steps before half of the requests have
come are not counted. Times are processor time of the thread. Runs with 100 and 10,000 workers take turns; a figure is
the median over rounds, with the least and the most. Results go to stdout, progress to stderr. Takes three minutes.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from _figures import over_rounds, table_or_json
from dovetail.control import RequestArrived, RunBatch
from dovetail.tools.simulate import ScenarioRun

SIZES = (100, 1_000, 10_000)
REQUESTS = 12_000
ROUNDS = 3
#: Requests per second and device that keep about two thirds of them busy.
RATE = 1.0
WORKFLOWS = (
    "esg/image-classification",
    "esg/depth-recognition",
    "compass/translation",
    "compass/question-answer",
)


def scenario(devices: int, seed: int, requests: int = REQUESTS) -> str:
    """The world as a file says it."""
    lines = [f"requests = {requests}", f"seed = {seed}", "target = 0.01"]
    for name in WORKFLOWS:
        lines += ["[[workflows]]", f'catalogue = "{name}"']
    lines += ["[[devices]]", 'kind = "t4"', f"count = {devices}", 'memory = "8GB"', f"host = {devices // 10}"]
    for number, name in enumerate(WORKFLOWS):
        rate = RATE * devices / len(WORKFLOWS)
        lines += ["[[arrivals]]", 'kind = "poisson"', f'workflow = "{name}"', f'rate = "{rate}/s"']
        lines += [f"class = {1 + number % 2}"]
    return "\n".join(lines)


class Calls:
    """Counts calls of functions while it is on."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, frame: object, event: str, arg: object) -> None:
        """What the interpreter says of each call and return."""
        self.made += event == "call" or event == "c_call"


def run(devices: int, seed: int, folder: Path, calls: Calls | None = None) -> tuple[list[int], float]:
    """Nanoseconds (or calls) per decision, and requests per second of the whole simulation."""
    requests = REQUESTS // 3 if calls else REQUESTS
    path = folder / f"{devices}-{seed}.toml"
    path.write_text(scenario(devices, seed, requests))
    world = ScenarioRun(path)
    controller = world.controller
    step, clock = controller.step, time.thread_time_ns if calls is None else lambda: calls.made
    taken: list[int] = []
    seen = 0

    def timed(event: Any) -> Any:
        nonlocal seen
        begin = clock()
        sys.setprofile(calls)
        actions = step(event)
        sys.setprofile(None)
        spent = clock() - begin
        seen += type(event) is RequestArrived
        decided = sum(type(a) is RunBatch for a in actions)
        if decided and seen > requests // 2:
            taken.append(spent // decided)
        return actions

    controller.step = timed  # type: ignore[method-assign]
    gc.collect()
    begin = time.perf_counter()
    world.go()
    return taken, requests / (time.perf_counter() - begin)


def counted() -> dict[str, Any]:
    """Calls per decision, all sizes once."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in track(SIZES, "sizes", console=Console(stderr=True), transient=True):
            ordered = sorted(run(size, 401, Path(folder), Calls())[0])
            p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
            rows[str(size)] = {"p50": p50, "p99": p99, "most": ordered[-1], "decisions": len(ordered)}
    return {"calls": rows}


def show_counted(result: dict[str, Any]) -> None:
    """A table for people."""
    table = Table("workers", "calls in a decision, p50", "p99", "most", "decisions", box=None)
    for size, row in result["calls"].items():
        table.add_row(f"{int(size):,}", *(f"{row[key]:,}" for key in ("p50", "p99", "most", "decisions")))
    Console(width=120).print(table)


def measure() -> dict[str, Any]:
    """All sizes in every round."""
    p50s: dict[int, list[float]] = {size: [] for size in SIZES}
    p99s: dict[int, list[float]] = {size: [] for size in SIZES}
    rates: dict[int, list[float]] = {size: [] for size in SIZES}
    with tempfile.TemporaryDirectory() as folder:
        for number in track(range(ROUNDS), "rounds", console=Console(stderr=True), transient=True):
            for size in SIZES:
                taken, rate = run(size, 301 + number, Path(folder))
                ordered = sorted(taken)
                p50s[size].append(statistics.median(ordered) / 1e3)
                p99s[size].append(ordered[len(ordered) * 99 // 100] / 1e3)
                rates[size].append(rate)
    small, large = SIZES[0], SIZES[-1]
    return {
        "rounds": ROUNDS,
        "us": {str(s): {"p50": over_rounds(p50s[s]), "p99": over_rounds(p99s[s])} for s in SIZES},
        "requests_per_s": {str(s): over_rounds(rates[s]) for s in SIZES},
        "growth": {
            "p50": over_rounds([a / b for a, b in zip(p50s[large], p50s[small], strict=True)]),
            "p99": over_rounds([a / b for a, b in zip(p99s[large], p99s[small], strict=True)]),
        },
    }


def show(result: dict[str, Any]) -> None:
    """A table for people."""

    def cell(row: dict[str, float], digits: int) -> str:
        return f"{row['median']:,.{digits}f} ({row['least']:,.{digits}f} to {row['most']:,.{digits}f})"

    table = Table("workers", "a decision, p50 µs", "p99 µs", "simulated requests/s", box=None)
    for size, row in result["us"].items():
        rate = result["requests_per_s"][size]
        table.add_row(f"{int(size):,}", cell(row["p50"], 0), cell(row["p99"], 0), cell(rate, 0))
    console = Console(width=120)
    console.print(f"{result['rounds']} rounds; median over rounds, least to most")
    console.print(table)
    for what, row in result["growth"].items():
        console.print(f"{what}: 10,000 workers take {cell(row, 2)} times as long as 100")


if __name__ == "__main__":
    count = "--count" in sys.argv
    if count:
        sys.argv.remove("--count")
    sys.exit(table_or_json(__doc__, counted if count else measure, show_counted if count else show))
