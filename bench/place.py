"""How long does it take to place a workflow, and does it grow with the number of workers?

    python bench/place.py [--json]

The workflow is Compass's translation (five tasks, four with a model, a fan-out and a join; catalogue). Workers are
T4s with 14,000,000 KiB for models, in states drawn with a fixed seed: a third is idle (or none: "all busy"), the
others are free within two seconds, and each holds some of the models of Compass's four workflows. One decision is
the plan of the whole workflow on the arrival of a request; Dovetail's includes the hints and copies that it decides
on. The routing of one item at hand-over is timed as well, and so is taking a fresh row, by which what a decision
changed is undone before the next: that is what an index costs. Contenders are Dovetail and Compass's scan
(dovetail.lab.rivals.compass) at 100, 1,000 and 10,000 workers. Times are processor time of the thread: a scan of
10,000 workers is long enough to be interrupted on a busy machine, a decision with an index hardly ever is. All take
turns in every round; a figure is the median over rounds, with the least and the most. Results go to stdout, progress
to stderr. Takes about a minute.

Before anything is timed, Dovetail's index answers questions about the same workers and is compared with a scan of all
of them: the best start must be the same, to the nanosecond.
"""

from __future__ import annotations

import gc
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from _figures import over_rounds, ratio, table_or_json
from dovetail.lab.rivals.compass import CompassRouter
from dovetail.lab.rivals.routed import Router
from dovetail.place import SharedWorkers
from dovetail.place.index import Need, start_at
from dovetail.predict import Estimator
from dovetail.profile import catalogue
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.state import CompiledGraph, Item, Request, Worker, WorkerRow, WorkerSpec, compile_graphs
from dovetail.units import MS, SECOND, US
from dovetail.workflow.graph import StageSpec, chain

SEED = 2024
ROUNDS = 7
DECISIONS = 300
#: A scan of 10,000 workers takes long; fewer of them give the same median.
SCANS = {100: 200, 1_000: 60, 10_000: 8}
SIZES = (100, 1_000, 10_000)
WORKFLOW = "compass/translation"
KIND = "t4"
MEMORY_BYTES = 14_000_000 * 1024
NOW_NS = 1_000 * SECOND


def translation() -> tuple[CompiledGraph, ProfileTable]:
    """The workflow with all its tasks on devices, as Compass runs it, and what they take."""
    workflow = catalogue.workflow(WORKFLOW)
    specs, entries = [], []
    for stage in workflow.stages:
        nbytes = catalogue.model(stage.model).weights_bytes if stage.model else 0
        specs.append(StageSpec(stage.name, "model", model=stage.model, weights_bytes=nbytes))
        entries.append(Entry(stage.name, KIND, points=(Point(1, 1, stage.quoted_ns or stage.host_ns, 0.0, 1),)))
    after = {s.name: s.after for s in workflow.stages}
    out_bytes = {s.name: s.out_bytes for s in workflow.stages}
    graph = chain(WORKFLOW, workflow.slo_ns, specs, after, out_bytes=out_bytes)
    return compile_graphs([graph], lambda _, node: node.stage)[0][0], ProfileTable(entries)


def compass_models() -> dict[str, int]:
    """Models of all of Compass's workflows, with bytes."""
    workflows = [catalogue.workflow(name) for name in catalogue.workflows() if name.startswith("compass/")]
    names = {s.model for w in workflows for s in w.stages if s.model}
    return {name: catalogue.model(name).weights_bytes for name in sorted(names)}


def rows_of(count: int, idle: float) -> list[WorkerRow]:
    """States of so many workers, the same every time."""
    rng = random.Random(f"{SEED}/{count}")
    models = compass_models()
    rows = []
    for worker in range(1, count + 1):
        free_bytes, resident = MEMORY_BYTES, []
        for name in rng.sample(sorted(models), rng.randint(0, len(models))):
            if models[name] <= free_bytes:
                free_bytes -= models[name]
                resident.append(name)
        wait_ns = 0 if rng.random() < idle else rng.randint(1 * MS, 2 * SECOND)
        rows.append(WorkerRow(worker, NOW_NS - 1 * MS, wait_ns, NOW_NS + wait_ns, tuple(resident), free_bytes))
    return rows


class Turn:
    """One contender with so many workers. Each call is one turn and gives its durations in nanoseconds."""

    def __init__(self, make: Callable[[Estimator], Router], count: int, decisions: int, idle: float = 1 / 3) -> None:
        self.graph, table = translation()
        self.router = make(Estimator(table))
        self.decisions = decisions
        self.rows = {row.worker: row for row in rows_of(count, idle)}
        for worker in self.rows:
            spec = WorkerSpec(f"w{worker}", KIND, ("model",), memory_bytes=MEMORY_BYTES)
            self.router.joined(Worker(worker, spec))
        self.router.heard(list(self.rows.values()), NOW_NS)
        if isinstance(self.router, SharedWorkers):  # as if all four workflows had been seen
            for kind in self.router.fleet.able(self.graph.nodes[0].stage):
                kind.index.know(compass_models().values())
        self.now_ns = NOW_NS
        self.requests = 0

    def __call__(self) -> dict[str, list[int]]:
        taken: dict[str, list[int]] = {"plan": [], "route": [], "row": []}
        clock = time.thread_time_ns
        router = self.router
        for _ in range(self.decisions):
            self.requests += 1
            self.now_ns += 10 * US
            request = Request(self.requests, self.graph, 1, self.now_ns, self.now_ns + self.graph.slo_ns, 0)
            begin = clock()
            hints = router.hints(request, self.now_ns)
            planned = clock()
            route = router.route(Item(request, 0, 0, self.now_ns), self.now_ns)
            routed = clock()
            assert route is not None
            router.closed(request)
            self.now_ns += 1
            changed = [self.fresh(worker) for worker in dict.fromkeys([route.worker, *(h.worker for h in hints)])]
            heard = clock()
            router.heard(changed, self.now_ns)
            taken["row"].append((clock() - heard) // len(changed))
            taken["plan"].append(planned - begin)
            taken["route"].append(routed - planned)
        return taken

    def fresh(self, worker: int) -> WorkerRow:
        """The worker's row again, written now."""
        old = self.rows[worker]
        free_at_ns = max(self.now_ns, old.free_at_ns)
        return WorkerRow(worker, self.now_ns, old.wait_ns, free_at_ns, old.resident, old.free_bytes)


def check(turn: Turn) -> int:
    """Compare the index with a scan of all workers; returns how many questions were asked."""
    router = turn.router
    assert isinstance(router, SharedWorkers)
    rng = random.Random(SEED)
    asked = 0
    for kind in router.fleet.able(turn.graph.nodes[0].stage):
        index = kind.index
        for name, size in compass_models().items():
            for from_ns in (-1, NOW_NS):
                fetch_ns = rng.randint(50 * MS, 600 * MS)
                need = Need(NOW_NS, NOW_NS + rng.randint(0, SECOND), name, size, fetch_ns, 2 * fetch_ns, from_ns)
                near = dict.fromkeys(rng.sample(sorted(index.workers), 2), NOW_NS)
                best = index.best(need, near, rng.randrange(1000))
                expected = min(
                    start_at(known, worker, need, near.get(worker, need.arrive_ns))
                    for worker, known in index.workers.items()
                )
                if best is None or best.start_ns != expected.start_ns:
                    raise SystemExit(f"the index found {best}, the scan {expected}")
                asked += 1
    return asked


def measure() -> dict[str, Any]:
    """All contenders in every round; the order turns by one each round."""
    turns: dict[str, Turn] = {}
    for count in SIZES:
        turns[f"dovetail, {count:,} workers"] = Turn(partial(SharedWorkers, home=1), count, DECISIONS)
        turns[f"dovetail, all busy, {count:,} workers"] = Turn(partial(SharedWorkers, home=1), count, DECISIONS, 0)
        turns[f"compass, {count:,} workers"] = Turn(partial(CompassRouter, home=1), count, SCANS[count])
    compared = sum(check(turn) for name, turn in turns.items() if name.startswith("dovetail"))
    for turn in turns.values():
        turn()  # warm up
    gc.freeze()  # workers and rows of all contenders are not garbage, and none of them should pay for the others'
    rounds: dict[str, list[dict[str, list[int]]]] = {name: [] for name in turns}
    names = list(turns)
    for number in track(range(ROUNDS), "rounds", console=Console(stderr=True), transient=True):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            gc.collect()
            rounds[name].append(turns[name]())
    return {
        "rounds": ROUNDS,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "compared_with_scan": compared,
        "us": {
            name: {what: figures([r[what] for r in taken]) for what in ("plan", "route", "row")}
            for name, taken in rounds.items()
        },
        "growth": {
            f"{who}, {what}": ratio(
                [r[what] for r in rounds[f"{who}, 10,000 workers"]], [r[what] for r in rounds[f"{who}, 100 workers"]]
            )
            for who in ("dovetail", "dovetail, all busy", "compass")
            for what in (("plan",) if who == "compass" else ("plan", "route"))
        },
        "compass_over_dovetail": {
            f"{count:,} workers": ratio(
                [r["plan"] for r in rounds[f"compass, {count:,} workers"]],
                [r["plan"] for r in rounds[f"dovetail, {count:,} workers"]],
            )
            for count in SIZES
        },
    }


def figures(rounds: Sequence[Sequence[int]]) -> dict[str, dict[str, float]]:
    """Median and 99th percentile of each round in microseconds; over rounds their median, least and most."""
    p50 = [statistics.median(r) / 1e3 for r in rounds]
    p99 = [sorted(r)[min(len(r) - 1, len(r) * 99 // 100)] / 1e3 for r in rounds]
    return {"p50": over_rounds(p50), "p99": over_rounds(p99)}


def short(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.1f} µs"


def spread(row: dict[str, float]) -> str:
    return f"{short(row['median'])} ({short(row['least'])} to {short(row['most'])})"


def show(result: dict[str, Any]) -> None:
    """A table for people."""
    table = Table("", "plan, p50", "plan, p99", "one route, p50", "one row, p50", box=None)
    for name, row in result["us"].items():
        cells = [spread(row["plan"]["p50"]), spread(row["plan"]["p99"])]
        # Compass's route only looks its plan up unless a queue has grown, and its rows are kept as they come.
        own = name.startswith("dovetail")
        cells += [spread(row["route"]["p50"]), spread(row["row"]["p50"])] if own else ["", ""]
        table.add_row(name, *cells)
    console = Console(width=170)
    console.print(f"{result['rounds']} interleaved rounds; median over rounds, least to most")
    console.print(table)
    console.print(f"the index and a scan agreed on {result['compared_with_scan']} of as many questions")
    for name, row in result["growth"].items():
        console.print(
            f"{name}: 10,000 workers take {row['median']:.2f} times as long as 100 "
            f"({row['least']:.2f} to {row['most']:.2f})"
        )
    for name, row in result["compass_over_dovetail"].items():
        console.print(
            f"{name}: Compass's plan takes {row['median']:.1f} times as long "
            f"({row['least']:.1f} to {row['most']:.1f})"
        )


if __name__ == "__main__":
    sys.exit(table_or_json(__doc__, measure, show))
