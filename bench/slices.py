"""What slices cost and what they are worth while serving: `serve --slices` over stages that share freely.

    python bench/slices.py [--rounds 3] [--seconds 6] [--json]

Two real models on one worker with all cores, in one server, in turn with and without slices. First both are asked now
and then (Poisson). Then the second one always has twelve requests open, while the first is asked as before. Figures
are with slices over without, round by round: how long answers of the first take, and how many of the second there
are.
Results: docs/results/scaling.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _figures import machine, over_rounds
from dovetail import App, onnx, tensor, workflow
from dovetail.profile.samples import inputs_of
from dovetail.serve.launch import Options, Served, launch
from dovetail.units import MS
from dovetail.wiring import PolicySpec
from examples import weights

#: Requests per second of both while nothing is in a crowd, and open ones of the second when it is.
RATES = {"first": 12.0, "second": 8.0}
OPEN = 12


def make_app() -> App:
    stages = {
        "first": (onnx(weights.page_way(), name="way", batch=(1, 2, 4)), tensor("float32", 3, 224, 224)),
        "second": (onnx(weights.tiny_reader(), name="read", batch=(1, 2, 4)), tensor("float32", 3, 48, 320)),
    }

    def flow(name: str) -> Any:
        stage, item = stages[name]

        def run(x):  # type: ignore[no-untyped-def]
            return stage(x)

        run.__annotations__["x"] = item
        return workflow(slo="500ms", name=name)(run)

    return App(*(flow(name) for name in stages))


async def answer(served: Served, name: str, values: list[Any]) -> int:
    """How long one takes, in ns."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    begin_ns = time.monotonic_ns()

    def done(_: int, result: Any) -> None:
        result.release()
        ended.set_result(time.monotonic_ns() - begin_ns if result.outcome in ("ok", "late") else -1)

    served.system.submit(name, values, done)
    return await ended


async def phase(served: Served, app: App, seconds: float, crowd: bool, seed: int) -> dict[str, list[int]]:
    """Times of the answers of both."""
    rng = random.Random(seed)
    found: dict[str, list[int]] = {name: [] for name in RATES}
    inputs = {name: inputs_of(app.workflows[name])[0] for name in RATES}
    end_s = time.monotonic() + seconds

    async def one(name: str) -> None:
        found[name].append(await answer(served, name, inputs[name]))

    async def now_and_then(name: str) -> None:
        async with asyncio.TaskGroup() as open_ones:
            while time.monotonic() < end_s:
                await asyncio.sleep(rng.expovariate(RATES[name]))
                open_ones.create_task(one(name))

    async def again_and_again(name: str) -> None:
        while time.monotonic() < end_s:
            await one(name)

    async with asyncio.TaskGroup() as clients:
        clients.create_task(now_and_then("first"))
        for _ in range(OPEN if crowd else 1):
            clients.create_task((again_and_again if crowd else now_and_then)("second"))
    return found


async def served_with(slices: bool, seconds: float, seed: int) -> dict[str, dict[str, list[int]]]:
    app = make_app()
    served = await launch(app, "bench", Options(port=0, slices=slices, policy=PolicySpec(goal="time", max_open=1000)))
    try:
        for _ in range(20):
            for name in RATES:
                await answer(served, name, inputs_of(app.workflows[name])[0])
        await phase(served, app, 2.0, False, seed)
        calm = await phase(served, app, seconds, False, seed + 1)
        return {"calm": calm, "crowd": await phase(served, app, seconds, True, seed + 2)}
    finally:
        await served.stop(10.0)


def quantile(times: list[int], part: float) -> float:
    ordered = sorted(ns for ns in times if ns >= 0)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] / MS


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"free": [], "slices": []}
    for number in range(rounds):
        for way in ("free", "slices") if number % 2 == 0 else ("slices", "free"):
            got = asyncio.run(served_with(way == "slices", seconds, 100 * number))
            row = {
                f"{phase} {name} {label}": quantile(times[name], part)
                for phase, times in got.items()
                for name in RATES
                for label, part in (("p50", 0.5), ("p95", 0.95))
            }
            row["crowd answers of the second"] = float(sum(ns >= 0 for ns in got["crowd"]["second"]))
            row["crowd refused of the first"] = float(sum(ns < 0 for ns in got["crowd"]["first"]))
            found[way].append(row)
    ratios = {
        what: over_rounds([b[what] / a[what] for a, b in zip(found["free"], found["slices"], strict=True)])
        for what in found["free"][0]
        if "refused" not in what
    }
    return {"machine": machine(), "rounds": found, "slices over free": ratios}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    args = parser.parse_args()
    found = measure(args.rounds, args.seconds)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    print(found["machine"])
    for what, figures in found["slices over free"].items():
        print(f"{what:32} {figures['median']:.3f} ({figures['least']:.3f} to {figures['most']:.3f})")
    for way, rows in found["rounds"].items():
        for row in rows:
            print(way, {what: round(value, 2) for what, value in row.items()})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
