"""What does a request cost beside its model? Processor time of front and worker, against the least they could be.

    python bench/front.py [--rounds N] [--seconds S] [--parts] [--compiled DIR] [--log] [--json]

A model that does next to nothing (64 floats to 8, some 10 µs), closed loop over 1, 8 and 32 keep-alive connections,
tensors in binary. `dovetail serve` as it comes, with every check, every limit, scheduler and metrics, against a bare
front and worker that have none of these (`_bare_server.py`). Each has one CPU for both its processes, the client the
other. Both take turns in every round. A figure is processor time of all threads, from the kernel's books, over the
number of answers: other work on the machine moves it less than it moves times. Medians over rounds, with the smallest
and the largest.

With `--parts` parts of the front take their turns, too (`_part_server.py`): the HTTP server alone, and with the
protocol. With `--compiled` the same servers run once more from a compiled build (`make compiled`: build/compiled).

With `--log` something else is measured, from the server's log: all that lies between a request's arrival at the
controller and its answer, but for the model's run. One model of about 10 ms, one request at a time with random pauses
of 20 ms on average: about a quarter of what it could do, and nobody waits for a turn. Receiving, parsing and writing
HTTP are left out there. Worker on one CPU, front and client on the other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.progress import track
from rich.table import Table

from _clients import client
from _figures import machine, over_rounds, p50
from _models import LAYERS, SHAPE, make_model, picture
from _serverproc import Server, child, serving
from dovetail.control import BatchFinished, Reply
from dovetail.record.log import LogReader

APP = """from dovetail import App, onnx, workflow

network = onnx("network.onnx", batch={batch})


@workflow(slo="1s")
def picture(x):
    return network(x)


app = App(picture)
"""
CONNECTIONS = (1, 8, 32)
#: What the model takes, and its largest batch.
WIDTH, BATCH = 64, 32
PAUSES_PER_S = 50.0
WARM_UP = 20


def make_tiny(path: Path) -> None:
    """64 floats to 64 to 8."""
    rng = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(np.float32), f"w{i}")
        for i, shape in enumerate(((WIDTH, WIDTH), (WIDTH, 8)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])
    graph = helper.make_graph(nodes, "tiny", [given], [result], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@contextmanager
def beside(script: str, word: str, cpu: int, path: str = "") -> Iterator[Server]:
    """A server of this folder, its processes held on a CPU; `path` is where it looks for modules first."""
    command = [sys.executable, str(Path(__file__).with_name(script)), word]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=searching(path))
    assert process.stdout is not None
    try:
        port, worker = map(int, process.stdout.readline().split())
        server = Server(port, process.pid, (worker,) if worker else ())
        server.hold(cpu, cpu)
        yield server
    finally:
        process.kill()
        process.wait()


def searching(path: str) -> dict[str, str]:
    """The environment of a process that looks there for modules first."""
    return {**os.environ, "PYTHONPATH": path} if path else dict(os.environ)


def cpu_us(rounds: int, seconds: float, options: Sequence[str], parts: bool, compiled: str) -> dict[str, Any]:
    """Microseconds of processor time per request: by server, connections and process, of every round."""
    cpus = sorted(os.sched_getaffinity(0))
    server_cpu, client_cpu = cpus[0], cpus[-1]
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tiny(folder / "network.onnx")
        with ExitStack() as stack:
            asking = stack.enter_context(child(client, client_cpu))
            model = str(folder / "network.onnx")
            servers = {"bare": stack.enter_context(beside("_bare_server.py", model, server_cpu))}
            for kind, path in (("", ""), (" compiled", compiled)):
                if kind and not path:
                    continue
                for part in ("http", "protocol") if parts else ():
                    entered = stack.enter_context(beside("_part_server.py", part, server_cpu, path))
                    servers[f"{part}{kind}"] = entered
                whole = serving(folder, BATCH, server_cpu, server_cpu, options, APP, searching(path))
                servers[f"dovetail{kind}"] = stack.enter_context(whole)
            for number in track(range(-1, rounds), "rounds", console=Console(stderr=True), transient=True):
                for connections in CONNECTIONS:
                    for which in servers if number % 2 else reversed(servers):
                        server = servers[which]
                        front_s, worker_s = server.front_cpu_s(), server.workers_cpu_s()
                        told = asking.ask("counted", server.port, connections, seconds, "picture", (WIDTH,))
                        front_s, worker_s = server.front_cpu_s() - front_s, server.workers_cpu_s() - worker_s
                        if number < 0:
                            continue  # warms up
                        row = found.setdefault(f"{which}, {connections}", {})
                        for process, spent_s in (
                            ("front", front_s),
                            ("worker", worker_s),
                            ("both", front_s + worker_s),
                        ):
                            row.setdefault(process, []).append(spent_s / told[0] * 1e6)
                        row.setdefault("per_s", []).append(told[0] / told[1])
    return {
        "machine": machine(),
        "rounds": rounds,
        "cpu_us": {key: {part: over_rounds(values) for part, values in row.items()} for key, row in found.items()},
        "ratio": {
            f"{which}, {n}": over_rounds(
                [a / b for a, b in zip(found[f"{which}, {n}"]["both"], found[f"bare, {n}"]["both"], strict=True)]
            )
            for which in servers
            if which != "bare"
            for n in CONNECTIONS
        },
    }


def show(result: dict[str, Any]) -> None:
    """A table for people."""
    console = Console()
    heading = f"{result['machine']}; {result['rounds']} rounds; µs of processor time per request"
    console.print(f"{heading}\n", soft_wrap=True, highlight=False)
    table = Table("connections", "", "front", "worker", "both", "smallest", "largest", "answers/s", box=None)
    for key, row in result["cpu_us"].items():
        which, _, connections = key.partition(", ")
        values = (row["front"]["median"], row["worker"]["median"], *row["both"].values(), row["per_s"]["median"])
        table.add_row(connections, which, *(f"{v:.0f}" for v in values))
    for key, ratio in result["ratio"].items():
        which, _, connections = key.partition(", ")
        table.add_row(connections, f"{which} over bare", "", "", *(f"{v:.2f}" for v in ratio.values()))
    console.print(table)


def added_ms(folder: Path, seconds: float) -> tuple[list[float], list[float]]:
    """Milliseconds that the server added to each request, and what the client saw."""
    make_model(folder / "network.onnx", LAYERS)
    log = folder / "run.log"
    cpus = sorted(os.sched_getaffinity(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tritonclient.http as triton
    given = triton.InferInput("x", SHAPE, "FP32")
    given.set_data_from_numpy(picture())
    rng = random.Random(1)
    seen: list[float] = []
    with serving(folder, 1, cpus[0], cpus[-1], ["--log", str(log)], APP) as server:
        os.sched_setaffinity(0, {cpus[0]})
        client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(rng.expovariate(PAUSES_PER_S))
            begin = time.perf_counter()
            client.infer("picture", [given])
            seen.append((time.perf_counter() - begin) * 1000)
    added = [
        (step.event.at_ns - action.arrived_ns - (step.event.end_ns - step.event.begin_ns)) / 1e6
        for step in LogReader(log)
        if isinstance(step.event, BatchFinished)
        for action in step.actions
        if isinstance(action, Reply)
    ]
    return added[WARM_UP:], seen[WARM_UP:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="of each turn (1), or of the run with --log (20)")
    parser.add_argument("--parts", action="store_true", help="parts of the front, too")
    parser.add_argument("--compiled", default="", metavar="DIR", help="a compiled build takes turns with the sources")
    parser.add_argument("--log", action="store_true", help="what is added to a request, from the server's log")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    parser.add_argument("options", nargs="*", help="of `dovetail serve`, after --")
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("bench/front.py needs two CPUs: one for the server, one for its client")
    if not args.log:
        compiled = args.compiled and str(Path(args.compiled).resolve())
        result = cpu_us(args.rounds, args.seconds or 1.0, args.options, args.parts, compiled)
        print(json.dumps(result, indent=2)) if args.json else show(result)
        return
    with tempfile.TemporaryDirectory() as folder:
        added, seen = added_ms(Path(folder), args.seconds or 20.0)
    for name, values in (("added behind the HTTP front", added), ("seen by the client", seen)):
        cuts = statistics.quantiles(values, n=20)
        print(f"{name}: p50 {p50(values):.2f} ms, p5 {cuts[0]:.2f}, p95 {cuts[-1]:.2f} ({len(values)})")


if __name__ == "__main__":
    main()
