"""How long does a decision of the default policy take, and does it grow with the number of workers?

    python bench/decide.py [--json]
    python bench/decide.py --count [--json]     calls of functions in place of time: the same on any machine
    python bench/decide.py --cold ...           workers begin without models, and all requests come at once

ESG's and Compass's workflows in two classes on simulated T4s whose memory (8 GB) does not hold all models, at a rate
that grows with the number of workers and keeps about two thirds of them busy. Workers begin with models, each with
others, as many as fit. What is timed is a whole step of the controller in which batches are decided: batch, share,
worker and memory, admission and all books included, per batch. A run is simulated, and its events are then put
through a fresh controller, which decides the same: so the controller may be compiled. The steps before the cluster
is full are not timed. Times are processor time of the thread.

The controllers of 100, 1,000 and 10,000 workers take turns: in each round each of them makes as many decisions as the
others, within about a second. So whatever disturbs a round disturbs all sizes, and what disturbs one of them shows as
spread between rounds. A figure is the median over rounds, with the least and the most; the growth is that of each
round. Results go to stdout, progress to stderr. Takes three minutes, of which the rounds are half a minute.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from _figures import over_rounds, table_or_json
from dovetail.control import LoadModel, RequestArrived, RunBatch, WorkerJoined
from dovetail.tools.simulate import ScenarioRun
from dovetail.workflow.graph import StageSpec

#: Workers -> requests, and those of them that come before the cluster is full. What comes then makes decisions for
#: all rounds.
SIZES = {100: (22_000, 4_000), 1_000: (24_000, 8_000), 10_000: (56_000, 40_000)}
#: The same where all requests come at once and find no models.
COLD = {100: (24_000, 4_000), 1_000: (24_000, 4_000), 10_000: (24_000, 8_000)}
#: Rounds, and decisions of each size in one of them.
ROUNDS, DECISIONS = 15, 1_000
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


class Replay:
    """The events of a simulated run, put through a fresh controller bit by bit."""

    def __init__(self, devices: int, seed: int, folder: Path, *, cold: bool) -> None:
        requests, before = (COLD if cold else SIZES)[devices]
        path = folder / f"{devices}-{seed}.toml"
        path.write_text(scenario(devices, seed, requests, cold=cold))
        world = ScenarioRun(path)
        self._events: list[Any] = []
        observers = [lambda event, actions: self._events.append(event)]
        begin = time.process_time()
        world.go(observers if cold else [*observers, fill_memory(world)])
        #: Requests per second of processor time of the whole simulation.
        self.rate = requests / (time.process_time() - begin)
        arrivals = [i for i, event in enumerate(self._events) if type(event) is RequestArrived]
        self._first, self._full = arrivals[0], arrivals[before]
        self._step = ScenarioRun(path).controller.step
        self._at = 0

    def join(self) -> None:
        """All that comes before the first request."""
        self._until(self._first)

    def fill(self) -> None:
        """All that is not timed."""
        self._until(self._full)

    def _until(self, end: int) -> None:
        for event in self._events[self._at : end]:
            self._step(event)
        self._at = end

    def decide(self, most: int, calls: Calls | None = None) -> list[int]:
        """Nanoseconds (or calls) per decision of the next so many steps that decide; fewer if the run ends."""
        step, taken, at = self._step, list[int](), self._at
        clock = time.thread_time_ns if calls is None else lambda: calls.made
        for event in islice(self._events, at, None):
            begin = clock()
            sys.setprofile(calls)
            actions = step(event)
            sys.setprofile(None)
            spent = clock() - begin
            at += 1
            decided = sum([type(action) is RunBatch for action in actions])
            if decided:
                taken.append(spent // decided)
                if len(taken) == most:
                    break
        self._at = at
        return taken


def filled(seed: int, cold: bool) -> dict[int, Replay]:
    """All sizes, up to where they are timed, with the collector as `dovetail serve` sets it."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = track(SIZES, "simulating", console=Console(stderr=True), transient=True)
        found = {size: Replay(size, seed, Path(folder), cold=cold) for size in sizes}
    for replay in found.values():
        replay.join()
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    for replay in found.values():
        replay.fill()
    return found


def counted(cold: bool) -> dict[str, Any]:
    """Calls per decision, all that a run has."""
    rows = {}
    for size, replay in filled(401, cold).items():
        ordered = sorted(replay.decide(ROUNDS * DECISIONS, Calls()))
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
    """All sizes in every round, in turn from another one on."""
    replays = filled(301, cold)
    small, large = min(SIZES), max(SIZES)
    taken: dict[int, list[list[int]]] = {size: [] for size in SIZES}
    for number in track(range(ROUNDS), "rounds", console=Console(stderr=True), transient=True):
        turn = number % len(SIZES)
        for size in (*list(SIZES)[turn:], *list(SIZES)[:turn]):
            taken[size].append(sorted(replays[size].decide(DECISIONS)))
    if any(len(row) < DECISIONS for rows in taken.values() for row in rows):
        raise SystemExit("a run has ended before its rounds: it needs more requests")
    parts = {"p50": 50, "p95": 95, "p99": 99}
    us = {s: {p: [row[DECISIONS * pct // 100] / 1e3 for row in taken[s]] for p, pct in parts.items()} for s in SIZES}
    whole = {s: sorted(chain.from_iterable(taken[s])) for s in SIZES}
    return {
        "rounds": ROUNDS,
        "decisions": ROUNDS * DECISIONS,
        "us": {str(s): {p: over_rounds(values) for p, values in us[s].items()} for s in SIZES},
        "all_us": {
            str(s): {p: round(rows[len(rows) * pct // 100] / 1e3, 1) for p, pct in parts.items()}
            for s, rows in whole.items()
        },
        "requests_per_s": {str(s): replay.rate for s, replay in replays.items()},
        "growth": {
            p: over_rounds([a / b for a, b in zip(us[large][p], us[small][p], strict=True)]) for p in ("p50", "p99")
        },
    }


def show(result: dict[str, Any]) -> None:
    """A table for people."""

    def cell(row: dict[str, float], digits: int) -> str:
        return f"{row['median']:,.{digits}f} ({row['least']:,.{digits}f} to {row['most']:,.{digits}f})"

    table = Table("workers", "a decision, p50 µs", "p95 µs", "p99 µs", "p99 of all rounds", box=None)
    for size, row in result["us"].items():
        cells = [cell(row[part], 0) for part in ("p50", "p95", "p99")]
        table.add_row(f"{int(size):,}", *cells, f"{result['all_us'][size]['p99']:,.0f}")
    console = Console(width=120)
    console.print(f"{result['rounds']} rounds, {result['decisions']:,} decisions of each size")
    console.print("median over rounds, least to most")
    console.print(table)
    for what, row in result["growth"].items():
        console.print(f"{what}: 10,000 workers take {cell(row, 2)} times as long as 100")
    rates = ", ".join(f"{rate:,.0f} with {int(size):,}" for size, rate in result["requests_per_s"].items())
    console.print(f"simulated requests per second of processor time: {rates}")


if __name__ == "__main__":
    found = {flag: flag in sys.argv for flag in ("--count", "--cold")}
    sys.argv = [word for word in sys.argv if word not in found]
    what, shows = (counted, show_counted) if found["--count"] else (measure, show)
    sys.exit(table_or_json(__doc__, partial(what, found["--cold"]), shows))
