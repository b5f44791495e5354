"""How long does a decision of the default policy take, and does it grow with the number of workers?

    python bench/decide.py [--json]
    python bench/decide.py --count [--json]     calls of functions in place of time: the same on any machine
    python bench/decide.py --cold ...           workers begin without models, and all requests come at once

ESG's and Compass's workflows in two classes on simulated T4s whose memory (8 GB) does not hold all models, at a rate
that grows with the number of workers and keeps about two thirds of them busy. Workers begin with models, each with
others, as many as fit. What is timed is a whole step of the controller in which batches are decided: batch, share,
worker and memory, admission and all books included, per batch. A run is simulated, and its events are then put
through a fresh controller, which decides the same: so the controller may be compiled. The steps before two thirds of
the requests have come, in which the cluster fills, are not timed. Times are processor time of the thread. Runs with
100, 1,000 and 10,000 workers take turns; a figure is the median over rounds, with the least and the most. Results go
to stdout, progress to stderr. Takes three minutes.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from _figures import over_rounds, table_or_json
from dovetail.control import LoadModel, RequestArrived, RunBatch, WorkerJoined
from dovetail.tools.simulate import ScenarioRun
from dovetail.workflow.graph import StageSpec

#: Workers -> requests: so many that the cluster is full when two thirds of them have come.
SIZES = {100: 6_000, 1_000: 12_000, 10_000: 60_000}
#: The same where all requests come at once and find no models.
COLD = {100: 6_000, 1_000: 6_000, 10_000: 12_000}
ROUNDS = 2
#: Requests per second and device that keep about two thirds of them busy.
RATE = 2.0
#: Workflows with their objectives: what a T4 can do, with some time to spare.
WORKFLOWS = {
    "esg/image-classification": "1.6s",
    "esg/depth-recognition": "3.7s",
    "compass/translation": "6.8s",
    "compass/question-answer": "2.9s",
}
MEMORY = 8 * 10**9
#: Nothing comes before, so that workers have their models.
QUIET = "5s"
#: What `dovetail serve` tells the collector when it is ready, and what Python has by itself.
COLLECT_AFTER, THRESHOLDS = 10_000, gc.get_threshold()


def scenario(devices: int, seed: int, requests: int, *, cold: bool = False) -> str:
    """The world as a file says it."""
    lines = [f"requests = {requests}", f"seed = {seed}", "target = 0.01"]
    lines += ["[policy]", 'name = "dovetail"', f"max_open = {requests}"]
    for name, slo in WORKFLOWS.items():
        lines += ["[[workflows]]", f'catalogue = "{name}"', f'slo = "{slo}"']
    lines += ["[[devices]]", 'kind = "t4"', f"count = {devices}", f'memory = "{MEMORY}B"', f"host = {devices // 10}"]
    for number, name in enumerate(WORKFLOWS):
        rate = RATE * devices / len(WORKFLOWS)
        pause = "1ms" if cold else QUIET
        lines += ["[[arrivals]]", 'kind = "steps"', f'workflow = "{name}"']
        lines += [f'steps = [["{pause}", 0], ["1h", {rate}]]', f"class = {1 + number % 2}"]
    return "\n".join(lines)


def models_for(worker: int, stages: Sequence[StageSpec]) -> list[str]:
    """Models that a worker begins with: in turn from one on, as many as fit."""
    left, found = MEMORY, []
    for number in range(len(stages)):
        stage = stages[(worker + number) % len(stages)]
        if stage.weights_bytes <= left:
            left -= stage.weights_bytes
            found.append(stage.name)
    return found


def fill_memory(world: ScenarioRun) -> Callable[[Any, list[Any]], None]:
    """An observer that has every worker fetch models when it joins."""
    stages = [stage for stage in world.controller.stages.values() if stage.weights_bytes]

    def fill(event: Any, actions: list[Any]) -> None:
        if type(event) is WorkerJoined and event.spec.memory_bytes:
            actions += [LoadModel(event.cause, event.worker, m) for m in models_for(event.worker, stages)]

    return fill


class Calls:
    """Counts calls of functions while it is on."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, frame: object, event: str, arg: object) -> None:
        """What the interpreter says of each call and return."""
        self.made += event == "call" or event == "c_call"


def simulated(devices: int, seed: int, path: Path, cold: bool) -> tuple[list[Any], float]:
    """All events of a run, and requests per second of processor time."""
    requests = (COLD if cold else SIZES)[devices]
    path.write_text(scenario(devices, seed, requests, cold=cold))
    world = ScenarioRun(path)
    events: list[Any] = []
    observers = [lambda event, actions: events.append(event)]
    begin = time.process_time()
    world.go(observers if cold else [*observers, fill_memory(world)])
    return events, requests / (time.process_time() - begin)


def run(
    devices: int, seed: int, folder: Path, *, cold: bool = False, calls: Calls | None = None
) -> tuple[list[int], float]:
    """Nanoseconds (or calls) per decision, and requests per second of processor time of the whole simulation.

    The events of a simulation are put through a fresh controller, which decides the same.
    """
    path = folder / f"{devices}-{seed}.toml"
    events, rate = simulated(devices, seed, path, cold)
    first = next(i for i, event in enumerate(events) if type(event) is RequestArrived)
    arrivals = [i for i, event in enumerate(events) if type(event) is RequestArrived]
    full = arrivals[len(arrivals) * 2 // 3]
    step = ScenarioRun(path).controller.step
    clock = time.thread_time_ns if calls is None else lambda: calls.made
    for event in events[:first]:
        step(event)
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    for event in events[first:full]:
        step(event)
    taken: list[int] = []
    for event in events[full:]:
        begin = clock()
        sys.setprofile(calls)
        actions = step(event)
        sys.setprofile(None)
        spent = clock() - begin
        decided = sum([type(action) is RunBatch for action in actions])
        if decided:
            taken.append(spent // decided)
    gc.unfreeze()
    gc.set_threshold(*THRESHOLDS)
    return taken, rate


def counted(cold: bool) -> dict[str, Any]:
    """Calls per decision, all sizes once."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in track(SIZES, "sizes", console=Console(stderr=True), transient=True):
            ordered = sorted(run(size, 401, Path(folder), cold=cold, calls=Calls())[0])
            p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
            rows[str(size)] = {"p50": p50, "p99": p99, "most": ordered[-1], "decisions": len(ordered)}
    return {"calls": rows}


def show_counted(result: dict[str, Any]) -> None:
    """A table for people."""
    table = Table("workers", "calls in a decision, p50", "p99", "most", "decisions", box=None)
    for size, row in result["calls"].items():
        table.add_row(f"{int(size):,}", *(f"{row[key]:,}" for key in ("p50", "p99", "most", "decisions")))
    Console(width=120).print(table)


def measure(cold: bool) -> dict[str, Any]:
    """All sizes in every round."""
    p50s: dict[int, list[float]] = {size: [] for size in SIZES}
    p99s: dict[int, list[float]] = {size: [] for size in SIZES}
    rates: dict[int, list[float]] = {size: [] for size in SIZES}
    with tempfile.TemporaryDirectory() as folder:
        for number in track(range(ROUNDS), "rounds", console=Console(stderr=True), transient=True):
            for size in SIZES:
                taken, rate = run(size, 301 + number, Path(folder), cold=cold)
                ordered = sorted(taken)
                p50s[size].append(statistics.median(ordered) / 1e3)
                p99s[size].append(ordered[len(ordered) * 99 // 100] / 1e3)
                rates[size].append(rate)
    small, large = min(SIZES), max(SIZES)
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

    table = Table("workers", "a decision, p50 µs", "p99 µs", "simulated requests per s of processor time", box=None)
    for size, row in result["us"].items():
        rate = result["requests_per_s"][size]
        table.add_row(f"{int(size):,}", cell(row["p50"], 0), cell(row["p99"], 0), cell(rate, 0))
    console = Console(width=120)
    console.print(f"{result['rounds']} rounds; median over rounds, least to most")
    console.print(table)
    for what, row in result["growth"].items():
        console.print(f"{what}: 10,000 workers take {cell(row, 2)} times as long as 100")


if __name__ == "__main__":
    found = {flag: flag in sys.argv for flag in ("--count", "--cold")}
    sys.argv = [word for word in sys.argv if word not in found]
    what, shows = (counted, show_counted) if found["--count"] else (measure, show)
    sys.exit(table_or_json(__doc__, partial(what, found["--cold"]), shows))
