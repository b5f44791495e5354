"""Ours beside the servers that people use, on the same models and machine, at half to three times the capacity.

    python bench/peers.py [--apps one three] [--systems Dovetail "Ray Serve" LitServe BentoML MLServer]
                          [--loads 0.5 1 1.5 2 3] [--seconds 3] [--rounds 1] [--seed 11]
                          [--slo-ms ONE THREE] [--venvs out/peers] [--out out/peers.jsonl] [--report] [--plot FILE]

Each peer is installed into a virtual environment of its own, the first time. Servers have one core, the client has
the other. Requests are sent over HTTP at times that a seed gives (Poisson), whether or not the server keeps up, and a
latency counts from the time at which its request was due. Load 1 is what the models do in a bare loop on that core at
a batch of one. Objectives are a multiple of that time; --slo-ms gives them. Systems take turns in every round, each
with a fresh server that first gets requests at half load that do not count. Rows are added to --out; --report prints
the table of all that is there. So rounds may be run one by one, each with a --seed of its own: the objectives are
those of the rows that are there. Results: docs/results/peers.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from _models import picture  # noqa: E402
from _peers import (  # noqa: E402
    MODELS,
    OBJECTIVE,
    OWN,
    PEERS,
    Server,
    install,
    make_models,
    our_server,
    peer_server,
)
from dovetail.tools.load import Answer, Client, Shot, post_shot  # noqa: E402
from dovetail.units import MS, SECOND  # noqa: E402

SERVER_CORE, CLIENT_CORE = 0, 1
WARM_SECONDS, WARM_LOAD = 3.0, 0.5
#: Between two loads: what is left of one must not be in the way of the next.
PAUSE_SECONDS = 0.7
#: An answer that takes longer is given up, and counts as none.
TIMEOUT_SECONDS = 4.0
BARE_SECONDS = 1.5


def bare_capacity(app: str, models: Path) -> float:
    """Requests per second of the models in a bare loop, one at a time, on the servers' core."""
    import onnxruntime

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {SERVER_CORE})
    try:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        sessions = {
            name: onnxruntime.InferenceSession(models / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
            for name in MODELS[app]
        }
        x = picture()[None]

        def once() -> None:
            if app == "one":
                sessions["one"].run(None, {"x": x})
                return
            cleaned = sessions["clean"].run(None, {"x": x})[0]
            for name in ("kind", "grade"):
                sessions[name].run(None, {"x": cleaned})

        once()
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < BARE_SECONDS:
            once()
            count += 1
        return count / (time.perf_counter() - begin)
    finally:
        os.sched_setaffinity(0, before)


def _objective_ms(app: str, capacity: float) -> float:
    """In tens of milliseconds."""
    return round(OBJECTIVE[app] * 100 / capacity) * 10.0


def shots(server: Server, rate: float, seconds: float, seed: str) -> Iterator[Shot]:
    rng = random.Random(seed)
    at_s = rng.expovariate(rate)
    number = 0
    while at_s < seconds:
        yield post_shot(server.path, str(number), round(at_s * SECOND), (server.body,), server.headers)
        at_s += rng.expovariate(rate)
        number += 1


async def offer(server: Server, rate: float, seconds: float, seed: str) -> list[Answer]:
    client = Client("127.0.0.1", server.port, connections=512, timeout_s=TIMEOUT_SECONDS)
    answers: list[Answer] = []
    try:
        await client.open_loop(list(shots(server, rate, seconds, seed)), answers.append)
    finally:
        client.close()
    return answers


def measure(server: Server, row: dict[str, Any], rate: float, seconds: float, seed: str) -> dict[str, Any]:
    """One load: what became of its requests, and what it cost."""
    cpu_s = server.cpu_s()
    answers = asyncio.run(offer(server, rate, seconds, seed))
    cpu_s = server.cpu_s() - cpu_s
    slo_ms = row["slo_ms"]
    good = sorted(a.latency_ns / MS for a in answers if a.status == 200)
    in_time = sum(ms <= slo_ms for ms in good)
    return {
        **row,
        "sent": len(answers),
        "in_time": in_time,
        "goodput": in_time / seconds,
        "answered": len(good),
        "statuses": dict(Counter(str(a.status or a.error[:60]) for a in answers)),
        "refused": sum(a.status in (429, 503) for a in answers),
        "broken": sum(a.status not in (200, 429, 503) for a in answers),
        "p50_ms": float(np.quantile(good, 0.5)) if good else None,
        "p99_ms": float(np.quantile(good, 0.99)) if good else None,
        "late_start_ms": float(np.quantile([(a.sent_ns - a.due_ns) / MS for a in answers], 0.99)),
        "cpu_ms": 1000 * cpu_s / max(1, len(good)),
    }


def started(system: str, app: str, models: Path, venvs: Path, slo_ms: float) -> AbstractContextManager[Server]:
    if system == OWN:
        return our_server(app, models, SERVER_CORE, slo_ms)
    peer = next(peer for peer in PEERS if peer.name == system)
    return peer_server(peer, install(venvs, peer), app, models, SERVER_CORE, slo_ms)


def objectives_of(path: Path) -> dict[str, float]:
    """What earlier rounds held the systems to, by application."""
    rows = (json.loads(line) for line in path.read_text().splitlines()) if path.exists() else ()
    return {row["app"]: row["slo_ms"] for row in rows}


def run(args: argparse.Namespace) -> None:
    os.sched_setaffinity(0, {CLIENT_CORE})
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dovetail-peers-") as scratch, args.out.open("a") as out:
        models = Path(scratch)
        make_models(models)
        given = dict(zip(MODELS, args.slo_ms, strict=True)) if args.slo_ms else objectives_of(args.out)
        slo_ms = {app: given.get(app) or _objective_ms(app, bare_capacity(app, models)) for app in args.apps}
        for number in range(args.rounds):
            seed = args.seed + number
            for app in args.apps:
                systems = list(args.systems)
                random.Random(f"{seed} {app}").shuffle(systems)
                for system in systems:
                    capacity = bare_capacity(app, models)
                    try:
                        with started(system, app, models, args.venvs, slo_ms[app]) as server:
                            asyncio.run(offer(server, WARM_LOAD * capacity, WARM_SECONDS, "warm"))
                            for load in args.loads:
                                time.sleep(PAUSE_SECONDS)
                                row = {"system": system, "app": app, "seed": seed, "load": load, "capacity": capacity}
                                row["slo_ms"] = slo_ms[app]
                                row["date"] = time.strftime("%Y-%m-%d %H:%M")
                                found = measure(server, row, load * capacity, args.seconds, f"{seed} {app} {load}")
                                out.write(json.dumps(found) + "\n")
                                out.flush()
                                print(
                                    f"{system:10s} {app:5s} ×{load:<4g} {found['goodput']:6.1f}/s "
                                    f"p99 {found['p99_ms'] or 0:8.1f} ms, {found['cpu_ms']:6.2f} ms CPU, "
                                    f"{found['refused']} refused, {found['broken']} broken",
                                    file=sys.stderr,
                                )
                    except RuntimeError as error:
                        print(f"{system}, {app}: {error}", file=sys.stderr)


# -- the report ------------------------------------------------------------------------------------------------------


def _range(values: list[float], digits: int = 1) -> str:
    if not values:
        return "–"
    low, high = min(values), max(values)
    middle = statistics.median(values)
    return f"{middle:.{digits}f}" if low == high else f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def report(rows: list[dict[str, Any]]) -> None:
    """A table for each application and figure: systems against loads, median (least to most) of the rounds."""
    figures = (
        ("answers in time, of the capacity", lambda row: row["goodput"] / row["capacity"], 2),
        ("p99 of answers, ms", lambda row: row["p99_ms"], 0),
        ("refused, of the requests", lambda row: row["refused"] / max(1, row["sent"]), 2),
        ("broken, of the requests", lambda row: row["broken"] / max(1, row["sent"]), 2),
        ("processor time of the server per answer, ms", lambda row: row["cpu_ms"], 1),
    )
    for app in ("one", "three"):
        mine = [row for row in rows if row["app"] == app]
        loads = sorted({row["load"] for row in mine})
        if not mine:
            continue
        capacity = _range([row["capacity"] for row in mine])
        objective = _range([row["slo_ms"] for row in mine], 0)
        print(f"\n{app}: objective {objective} ms, capacity {capacity} requests per second")
        for what, value, digits in figures:
            print(f"\n| {what} | " + " | ".join(f"×{load:g}" for load in loads) + " |")
            print("|---" * (1 + len(loads)) + "|")
            for system in (OWN, *(peer.name for peer in PEERS)):
                cells = [[row for row in mine if (row["system"], row["load"]) == (system, load)] for load in loads]
                if any(cells):
                    values = [[value(row) for row in cell if value(row) is not None] for cell in cells]
                    print(f"| {system} | " + " | ".join(_range(each, digits) for each in values) + " |")


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    systems = (OWN, *(peer.name for peer in PEERS))
    looks = (("#0b5fa5", "o"), ("#c4570a", "s"), ("#00795a", "^"), ("#a3367f", "D"), ("#7a6a00", "v"))
    styles = dict(zip(systems, looks, strict=True))
    figure, axes = plt.subplots(2, 3, figsize=(13, 7), sharex=True)
    for line, app in enumerate(("one", "three")):
        panels = (
            ("goodput", "answers in time / capacity"),
            ("p99_ms", "p99 of answers, ms"),
            ("cpu_ms", "CPU per answer, ms"),
        )
        for column, (key, what) in enumerate(panels):
            axis = axes[line][column]
            for system in systems:
                mine = [row for row in rows if row["app"] == app and row["system"] == system and row[key] is not None]
                loads = sorted({row["load"] for row in mine})
                if not loads:
                    continue
                scale = (lambda row: row["capacity"]) if key == "goodput" else (lambda _: 1.0)
                values = [[row[key] / scale(row) for row in mine if row["load"] == load] for load in loads]
                colour, marker = styles[system]
                axis.plot(
                    loads, [statistics.median(v) for v in values], color=colour, marker=marker, label=system,
                    linewidth=2.4 if system == OWN else 1.4, zorder=3 if system == OWN else 2,
                )  # fmt: skip
                axis.fill_between(loads, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.15)
            axis.set_title(f"{'one model' if app == 'one' else 'three models'}: {what}", fontsize=10)
            axis.grid(alpha=0.3)
            if key == "p99_ms":
                axis.set_yscale("log")
                slo_ms = statistics.median(row["slo_ms"] for row in rows if row["app"] == app)
                axis.axhline(slo_ms, color="black", linestyle=":", linewidth=1)
            else:
                axis.set_ylim(0, None)
            if line:
                axis.set_xlabel("offered load / capacity")
    axes[0][0].legend(fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [OWN, *(peer.name for peer in PEERS)]
    parser.add_argument("--apps", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--systems", nargs="+", choices=names, default=names)
    parser.add_argument("--loads", nargs="+", type=float, default=[0.5, 1.0, 1.5, 2.0, 3.0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--slo-ms", nargs=2, type=float, metavar=("ONE", "THREE"))
    parser.add_argument("--venvs", type=Path, default=PROJECT / "out/peers")
    parser.add_argument("--out", type=Path, default=PROJECT / "out/peers.jsonl")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if not args.report and args.plot is None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers are ended in any case
        run(args)
        return
    rows = [json.loads(line) for line in args.out.read_text().splitlines()]
    if args.report:
        report(rows)
    if args.plot is not None:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
