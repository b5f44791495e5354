"""What do controller, doorbell and worker add to a request? From the server's log: everything but the model's run.

    python bench/front.py [--seconds S]

This is a part of what `bench/live.py` measures and does not replace it: receiving, parsing and writing HTTP are left
out, because the log begins when the controller is told, and so is the client. One model of about 10 ms, one request
at a time with random pauses of 20 ms on average: about a quarter of what it could do, and nobody waits for a turn.
Triton's client; worker on one CPU, front and client on the other.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
import warnings
from pathlib import Path

from _models import LAYERS, SHAPE, make_model, picture
from _serverproc import serving
from dovetail.control import BatchFinished, Reply
from dovetail.record.log import LogReader

APP = """from dovetail import App, onnx, workflow

network = onnx("network.onnx", batch={batch})


@workflow(slo="1s")
def picture(x):
    return network(x)


app = App(picture)
"""
PAUSES_PER_S = 50.0
WARM_UP = 20


def measure(folder: Path, seconds: float) -> tuple[list[float], list[float]]:
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
    parser = argparse.ArgumentParser(description="time between controller and answer beside the model, from the log")
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        added, seen = measure(Path(folder), args.seconds)
    for name, values in (("added behind the HTTP front", added), ("seen by the client", seen)):
        cuts = statistics.quantiles(values, n=20)
        print(f"{name}: p50 {statistics.median(values):.2f} ms, p5 {cuts[0]:.2f}, p95 {cuts[-1]:.2f} ({len(values)})")


if __name__ == "__main__":
    main()
