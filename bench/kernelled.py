"""What does serving kernel by kernel do for a high class, and what does it cost the others?

    python bench/kernelled.py [--json] [--quick] [--rounds N] [--seconds S] [--log FILE]

Two servers, `--device cpu:1` with `--kernels auto` and `never`, take turns in every round; each has a worker of
its own, and the one whose turn it is not has nothing to do. Three loads:

- both: the low class (a model of about 9 ms per picture, batches up to 8) has 24 requests open all the time; the high
  class, two models of 2 to 3 ms one after the other, comes at random times, one every 80 ms;
- high alone, and low alone: what it costs a class that has the device to itself.

Ratios are with over without, taken within a round; what is shown is their median over rounds, with the smallest and
the largest. Results go to stdout, progress to stderr. Takes three minutes on a quiet machine. The exit status
is 1 if a goal was missed. Models are made here with fixed seeds. `--log` writes the kernels that ran, for
`dovetail trace --log`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from _models import LAYERS, SHAPE, make_model, picture
from dovetail.live.front.system import Result
from dovetail.serve.launch import Options, Served, launch
from dovetail.wiring import PolicySpec
from dovetail.workflow.app import load_target

#: (channels, stride) of each convolution of the models of the high class; that of the low one is the others' model.
FIRST = ((16, 1), (16, 1), (3, 1))
SECOND = ((32, 2), (64, 2), (128, 1))
OPEN_LOW = 24
HIGH_EVERY_S = 0.08
LOADS = ("both", "high", "low")
ROUNDS, SECONDS = 7, 3.0
QUICK = 2, 1.0
WARM_S = 0.3
#: How long it may take to find out how models are cut, and to cut them then.
CUT_PATIENCE_S, CUT_S = 180.0, 3.0
#: Answers of one batch come within this.
ONE_BATCH_S = 0.005

APPLICATION = """
from dovetail import App, onnx, workflow
low_net = onnx("low.onnx", batch=(1, 2, 4, 8))
first_net = onnx("first.onnx", batch=(1, 2))
second_net = onnx("second.onnx", batch=(1, 2))

@workflow(slo="10s", priority=4)
def low(x):
    return low_net(x)

@workflow(slo="100ms", priority=1)
def high(x):
    return second_net(first_net(x))

app = App(low, high)
"""


class Window:
    """One load on one server for some seconds."""

    def __init__(self, served: Served, shown: np.ndarray, seconds: float, seed: int) -> None:
        self._system = served.system
        self._picture = shown
        self._chance = random.Random(seed)
        self._begin = time.perf_counter() + WARM_S
        self._end = self._begin + seconds
        self._open = 0
        self._idle = asyncio.Event()
        self.high_ms: list[float] = []
        #: When answers to the low class came.
        self.low: list[float] = []

    async def run(self, load: str) -> dict[str, float]:
        """The figures of the window."""
        if load != "high":
            for _ in range(OPEN_LOW):
                self._ask_low()
        while load != "low" and time.perf_counter() < self._end:
            await asyncio.sleep(self._chance.expovariate(1 / HIGH_EVERY_S))
            self._ask_high()
        await asyncio.sleep(max(0.0, self._end - time.perf_counter()))
        while self._open:
            self._idle.clear()
            await self._idle.wait()
        found = {"low_per_s": _rate(self.low)}
        if self.high_ms:
            ordered = sorted(self.high_ms)
            found |= {"p50_ms": ordered[len(ordered) // 2], "p95_ms": ordered[int(0.95 * len(ordered))]}
        return found

    def _ask_low(self) -> None:
        def done(_: int, result: Result) -> None:
            self._ended(result)
            now = time.perf_counter()
            if now >= self._begin:
                self.low.append(now)
            if now < self._end:
                self._ask_low()

        self._open += 1
        self._system.submit("low", [self._picture], done)

    def _ask_high(self) -> None:
        begin = time.perf_counter()

        def done(_: int, result: Result) -> None:
            self._ended(result)
            if self._begin <= begin < self._end:
                self.high_ms.append(1e3 * (time.perf_counter() - begin))

        self._open += 1
        self._system.submit("high", [self._picture], done)

    def _ended(self, result: Result) -> None:
        if result.outcome not in ("ok", "late"):
            raise RuntimeError(f"{result.outcome}: {result.reason}")
        result.release()
        self._open -= 1
        if not self._open:
            self._idle.set()


def _rate(times: list[float]) -> float:
    """Answers per second from the end of the first batch to the end of the last: whole batches, however long."""
    if not times:
        return 0.0
    later = [at for at in times if at > times[0] + ONE_BATCH_S]
    return len(later) / (times[-1] - times[0])


async def cut(served: Served) -> None:
    """Wait until it is found out how the low class's model is cut, and the worker has cut it."""
    fleet = served.system.fleet
    for _ in range(int(CUT_PATIENCE_S / 0.1)):
        if fleet.cuts and not fleet.cutter.busy:
            await asyncio.sleep(CUT_S)
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"nothing was cut within {CUT_PATIENCE_S:g} s")


async def measure(args: argparse.Namespace, rounds: int, seconds: float, progress: Progress) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file, layers in (("low", LAYERS), ("first", FIRST), ("second", SECOND)):
            make_model(directory / f"{file}.onnx", layers, size=SHAPE[1:], pooled=layers is not FIRST)
        (directory / "kernelled_app.py").write_text(APPLICATION)
        sys.path.insert(0, name)
        os.chdir(directory)
        app = load_target("kernelled_app:app")
        servers: dict[str, Served] = {}
        bar = progress.add_task("loading", total=rounds * 2 * len(LOADS))
        for mode in ("without", "with"):
            with_kernels = mode == "with"
            options = Options(
                device="cpu:1",
                port=0,
                policy=PolicySpec("by-class"),
                kernels="auto" if with_kernels else "never",
                kernel_log=args.log if with_kernels else None,
            )
            servers[mode] = await launch(app, "kernelled_app:app", options)
        progress.update(bar, description="waiting until models are cut")
        await cut(servers["with"])
        found = []
        try:
            for number in range(rounds):
                windows: dict[str, Any] = {}
                for load in LOADS:
                    for mode in ("without", "with") if number % 2 else ("with", "without"):
                        progress.update(bar, description=f"round {number + 1}: {load}, {mode}")
                        window = Window(servers[mode], picture(), seconds, seed=args.seed + number)
                        windows[f"{load} {mode}"] = await window.run(load)
                        progress.advance(bar)
                found.append(windows)
        finally:
            for served in servers.values():
                await served.stop()
        return found


#: (what, load, figure, goal): ratios of with over without; below the goal is good, or above it if it is negative.
FIGURES = (
    ("high p50, low beside it", "both", "p50_ms", 1.0),
    ("high p95, low beside it", "both", "p95_ms", 0.5),
    ("low throughput, high beside it", "both", "low_per_s", -0.9),
    ("high p50, alone", "high", "p50_ms", 1.05),
    ("low throughput, alone", "low", "low_per_s", -0.95),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--quick", action="store_true", help="few rounds: enough to see that it works")
    parser.add_argument("--rounds", type=int, help=f"rounds ({ROUNDS})")
    parser.add_argument("--seconds", type=float, help=f"seconds of each window ({SECONDS:g})")
    parser.add_argument("--seed", type=int, default=100, help="of the arrivals in the first round (100)")
    parser.add_argument("--log", type=lambda p: Path(p).absolute(), help="where to write the kernels that ran")
    args = parser.parse_args()
    rounds, seconds = QUICK if args.quick else (ROUNDS, SECONDS)
    rounds, seconds = args.rounds or rounds, args.seconds or seconds
    with Progress(console=Console(stderr=True), transient=True) as progress:
        found = asyncio.run(measure(args, rounds, seconds, progress))
    rows, missed = [], False
    for what, load, figure, goal in FIGURES:
        ratios = [w[f"{load} with"][figure] / w[f"{load} without"][figure] for w in found]
        middle = statistics.median(ratios)
        holds = middle >= -goal if goal < 0 else middle <= goal
        missed = missed or not holds
        values = [statistics.median(w[f"{load} {mode}"][figure] for w in found) for mode in ("without", "with")]
        rows.append(
            {
                "what": what,
                "without": values[0],
                "with": values[1],
                "ratio": middle,
                "least": min(ratios),
                "most": max(ratios),
                "goal": f"{'≥' if goal < 0 else '≤'} {abs(goal):g}",
                "holds": holds,
            }
        )
    about = f"{platform.machine()}, {os.cpu_count()} cores, onnxruntime {onnxruntime.__version__}"
    if args.json:
        print(json.dumps({"machine": about, "rounds": found, "figures": rows}))
    else:
        table = Table(title=f"by kernel, with over without: {about}, {rounds} rounds of {seconds:g} s")
        for column in ("", "without", "with", "ratio", "goal", "holds"):
            table.add_column(column)
        for row in rows:
            table.add_row(
                str(row["what"]),
                f"{row['without']:.1f}",
                f"{row['with']:.1f}",
                f"{row['ratio']:.2f} ({row['least']:.2f}–{row['most']:.2f})",
                str(row["goal"]),
                "yes" if row["holds"] else "NO",
            )
        Console(width=118).print(table)
    sys.exit(missed)


if __name__ == "__main__":
    main()
