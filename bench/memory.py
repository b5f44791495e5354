"""Models that do not all fit: `place` against `hash` on the same requests, and the memory of workers from outside.

    python bench/memory.py [--requests 80] [--rounds 2] [--memory 80MB] [--policies place hash] [--json]

Serves `examples/shelf.py` (four workflows, eight models) with two worker processes and asks it with Triton's client.
The policies take turns, each with a server of its own that starts with nothing loaded, and get the same requests.
Memory is the anonymous memory of each worker process (`Anonymous` of /proc/PID/smaps_rollup) above what it was before
the first request, sampled every few milliseconds. Results: docs/results/memory.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.http as triton

PROJECT = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 120.0
SAMPLE_SECONDS = 0.004
TARGET = "examples.shelf:app"


@dataclass
class Run:
    """What one policy did with the requests."""

    policy: str
    latencies_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    #: Most memory above its baseline that each worker was seen with.
    peak_bytes: list[int] = field(default_factory=list)
    samples: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        return self.counts["hits"] / (self.counts["hits"] + self.counts["misses"])


def some_requests(number: int, seed: int = 1) -> list[tuple[str, dict[str, Any]]]:
    """Workflows and their inputs, two different ones each, in an order that the seed gives."""
    from examples import pages

    inputs: dict[str, list[dict[str, Any]]] = {
        "document": [{"page": pages.page(s).pixels} for s in (0, 1)],
        "moderate": [{"file": pages.poster(s).file} for s in (0, 1)],
        "careful_line": [{"line": pages.text_line(s).pixels} for s in (2, 3)],
        "second_opinion": [{"line": pages.text_line(s).pixels} for s in (4, 6)],
    }
    rng = random.Random(seed)
    chosen = rng.choices(list(inputs), weights=(2, 3, 3, 2), k=number)
    return [(workflow, rng.choice(inputs[workflow])) for workflow in chosen]


def triton_inputs(inputs: dict[str, Any]) -> list[triton.InferInput]:
    given = []
    for name, value in inputs.items():
        array = np.array([value], object) if isinstance(value, bytes) else value
        tensor = triton.InferInput(name, list(array.shape), "BYTES" if array.dtype == object else "UINT8")
        tensor.set_data_from_numpy(array)
        given.append(tensor)
    return given


def anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no smaps_rollup")


def children(pid: int) -> list[int]:
    """Processes that `pid` has started, in that order."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append((int(fields[19]), int(entry)))
    return [child for _, child in sorted(found)]


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[tuple[int, int]]:
    """`dovetail serve` in a process of its own: its port and its process id."""
    command = [sys.executable, "-m", "dovetail", "serve", *arguments, "--port", "0"]
    # Whoever measures two trees in turn (`against.py`) has named the tree whose examples these are.
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(PROJECT))))
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(command, cwd=directory, env=environment, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    with process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                if line.startswith('{"ready"'):
                    break
            else:
                raise RuntimeError("the server did not start:\n" + "".join(said))
            port = int(json.loads(said[-1])["port"])
            # Whatever it says later must not fill the pipe.
            reader = threading.Thread(target=said.extend, args=(process.stderr,))
            reader.start()
            try:
                yield port, process.pid
            finally:
                process.terminate()
                reader.join()
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


@contextmanager
def watched(pids: Sequence[int], run: Run) -> Iterator[None]:
    """Sample the memory of these processes meanwhile."""
    before = [anonymous_bytes(pid) for pid in pids]
    run.peak_bytes = [0] * len(pids)
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            for i, pid in enumerate(pids):
                run.peak_bytes[i] = max(run.peak_bytes[i], anonymous_bytes(pid) - before[i])
            run.samples += 1

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def measure(
    policy: str,
    requests: Sequence[tuple[str, dict[str, Any]]],
    *,
    memory: str = "80MB",
    workers: int = 2,
    clients: int = 2,
    options: Sequence[str] = (),
    check: Callable[[str, dict[str, Any], Any], str] = lambda workflow, inputs, answer: "",
) -> Run:
    """All requests, each client one after the other; `check` says what is wrong with an answer."""
    run = Run(policy, [0.0] * len(requests))
    numbers = iter(range(len(requests)))
    turn = threading.Lock()
    asked = ("--policy", policy, "--memory", memory, "--workers", str(workers), *options)
    with serving(Path.cwd(), TARGET, *asked) as (port, pid):

        def ask() -> None:
            with triton.InferenceServerClient(f"127.0.0.1:{port}", network_timeout=PATIENCE_SECONDS) as client:
                while True:
                    with turn:
                        number = next(numbers, None)
                    if number is None:
                        return
                    workflow, inputs = requests[number]
                    begin = time.perf_counter()
                    try:
                        answer = client.infer(workflow, triton_inputs(inputs))
                    except Exception as error:
                        run.problems.append(f"request {number} for {workflow}: {error}")
                        continue
                    run.latencies_s[number] = time.perf_counter() - begin
                    if problem := check(workflow, inputs, answer):
                        run.problems.append(f"request {number} for {workflow}: {problem}")

        threads = [threading.Thread(target=ask) for _ in range(clients)]
        begin = time.perf_counter()
        with watched(children(pid)[:workers], run):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        run.seconds = time.perf_counter() - begin
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            memory_of = client.get_inference_statistics()["model_stats"][0]["dovetail_memory"]
    for name in ("hits", "misses", "loads", "evictions"):
        run.counts[name] = sum(worker[name] for worker in memory_of.values())
    return run


def figures_of(run: Run) -> dict[str, Any]:
    """One row of the table."""
    late = sorted(run.latencies_s)
    return {
        "hit_rate": run.hit_rate,
        "loads": run.counts["loads"],
        "evictions": run.counts["evictions"],
        "median_ms": 1e3 * statistics.median(late),
        "p90_ms": 1e3 * late[int(0.9 * len(late))],
        "seconds": run.seconds,
        "peak_mb": [peak / 1e6 for peak in run.peak_bytes],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--memory", default="80MB")
    parser.add_argument("--policies", nargs="+", default=["place", "hash"])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    args = parser.parse_args()
    sys.path.insert(0, str(PROJECT))
    requests = some_requests(args.requests)
    if not args.json:
        print("| policy | hit rate | loads | evictions | median | 90 % | whole run | most memory per worker |")
        print("|---|---|---|---|---|---|---|---|")
    rows: dict[str, list[dict[str, Any]]] = {policy: [] for policy in args.policies}
    for _ in range(args.rounds):
        for policy in args.policies:
            run = measure(policy, requests, memory=args.memory)
            row = figures_of(run)
            rows[policy].append(row)
            if not args.json:
                print(
                    f"| {policy} | {row['hit_rate']:.3f} | {row['loads']} | {row['evictions']} | "
                    f"{row['median_ms']:.0f} ms | {row['p90_ms']:.0f} ms | {row['seconds']:.1f} s | "
                    f"{', '.join(f'{mb:.1f} MB' for mb in row['peak_mb'])} |",
                    flush=True,
                )
            for problem in run.problems:
                print(problem, file=sys.stderr)
    if args.json:
        columns = {policy: {name: [r[name] for r in taken] for name in taken[0]} for policy, taken in rows.items()}
        for column in columns.values():
            column["peak_mb"] = [max(each) for each in column["peak_mb"]]
        print(json.dumps({"rounds": args.rounds, "requests": args.requests, "figures": columns}))


if __name__ == "__main__":
    main()
