"""What does serving cost? A model through HTTP, controller and worker process, against the model alone.

    python bench/live.py [--rounds N] [--json] [--quick]

One model of about 9 ms (seven convolutions on a picture of 0.2 MB, made here with a fixed seed), run by one thread:

- throughput: closed loop over keep-alive connections, tensors in binary, against the same ONNX Runtime session called
  in a bare loop with the same batch size and threads;
- latency: requests at half of the bare loop's rate, evenly paced and at random times (Poisson), against a loop that
  runs the model at the very same times, first come, first served. Both wait for their turn, and in both the model is
  slower than in a tight loop, because it finds cold caches. What is added is the latency that the client sees, from
  the time at which a request was due to the last byte of its answer, less that of the loop: front, controller,
  doorbell and worker, but also the client itself, the sockets and the way of 0.2 MB through the kernel.
- the same without the machine's moods: the server's log tells how long the model ran for each request, and so how
  long each would have taken at the same times if there were nothing else. What a request took beyond that is added
  to it. A model that is slower beside a server is not in this figure, but in the one before.
- the client's own share of that: the same client sends the same bytes at the same times to a server that reads them
  and answers as many bytes as Dovetail does, less a loop that wakes up at these times and does nothing.

- the path alone: one connection, one request at a time, and a model that only takes the mean of the picture, which is
  of 0.2 or 0.6 MB. Nothing has time to go cold, so this is the least that the path costs.

The worker and the bare loop have one CPU to themselves (never at the same time), the front and its clients the other.
All ways take turns in every round, so that a busy neighbour meets all of them; a figure is the median over rounds,
with the smallest and the largest. A round begins when the machine is quiet, and one in which other processes took
more than a tenth of a CPU is made again, for as long as `--patience` says; the report tells how many were.
Results go to stdout, progress to stderr. Takes two minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from _clients import WARM_SECONDS, client, rate
from _figures import machine, p50
from _models import LAYERS, SHAPE, make_model
from _serverproc import QUIET_BELOW, Child, Neighbours, Server, bare, child, echo, serving
from dovetail.control import BatchFinished, RunBatch

try:
    from dovetail.record.log import LogReader
except ModuleNotFoundError:  # an older tree, whose log is read for `live_trees.py`
    from dovetail.control.log import LogReader  # type: ignore[import-not-found, no-redef]

LARGE_SHAPE = (3, 224, 224)
BATCHES = (1, 8)
#: Requests kept open: the batch that runs, the one that waits, and two more on their way.
OPEN_BEYOND = 2
ROUNDS, SECONDS = 9, 1.0
#: Requests by which a server learns how long its model takes before it is measured.
FIRST_REQUESTS = 16
#: Turns that the model alone and the server take at half load within a round.
TURNS = 4


@dataclass
class Bench:
    """Everything that takes part in a round."""

    alone: Child
    asking: Child
    #: By batch size.
    servers: dict[int, Server]
    #: Gets requests at half load and no others, and writes a log.
    logged: Server
    echo_port: int
    seconds: float
    progress: Callable[[str], None]
    #: Of every turn at half load in order: round, name, gaps between requests, and their latencies.
    turns: list[tuple[int, str, list[float], list[float]]] = field(default_factory=list)
    rounds: int = 0
    #: Leaves out what no server is compared by: the echo, and Triton's client.
    brief: bool = False

    def round(self, rng: np.random.Generator) -> dict[str, float]:
        """One figure of each quantity."""
        found: dict[str, float] = {}
        for batch, server in self.servers.items():
            self._throughput(batch, server, found)
        one = self.servers[BATCHES[0]]
        self._latency(rng, self.logged, found)
        found["round"] = self.rounds
        self.rounds += 1
        self.progress("the path alone")
        found["path"] = p50(self.asking.ask("lone", one.port, SHAPE, self.seconds / 2))
        found["large path"] = p50(self.asking.ask("lone", one.port, LARGE_SHAPE, self.seconds / 2))
        if self.brief:
            return found
        found["mean"] = p50(self.alone.ask("mean", 1, self.seconds / 4))
        self.progress("Triton's client")
        answered = self.asking.ask("triton", one.port, 2 + OPEN_BEYOND, self.seconds)
        found["triton"] = rate(answered, BATCHES[0])
        return found

    def _throughput(self, batch: int, server: Server, found: dict[str, float]) -> None:
        self.progress(f"batch {batch}")
        # The bare loop before and after: a neighbour who came meanwhile is seen in one half of it.
        times = self.alone.ask("network", batch, self.seconds / 2)
        items, batches = counts(server.port)
        cpu_s = server.front_cpu_s()
        answered = self.asking.ask("closed", server.port, 2 * batch + OPEN_BEYOND, self.seconds)
        cpu_s = server.front_cpu_s() - cpu_s
        more_items, more_batches = counts(server.port)
        found[f"items per batch {batch}"] = (more_items - items) / (more_batches - batches)
        times += self.alone.ask("network", batch, self.seconds / 2)
        found[f"bare {batch}"] = batch * len(times) / sum(times)
        found[f"served {batch}"] = rate(answered, batch)
        found[f"ratio {batch}"] = found[f"served {batch}"] / found[f"bare {batch}"]
        found[f"front cpu {batch}"] = cpu_s / len(answered) * self.seconds / (self.seconds + WARM_SECONDS)

    def _latency(self, rng: np.random.Generator, server: Server, found: dict[str, float]) -> None:
        times = self.alone.ask("network", 1, self.seconds / 2)
        found["tight"] = p50(times)
        model_s = statistics.mean(times)
        requests = round(3 * self.seconds / (2 * model_s))
        self._half_load("paced", [2 * model_s] * requests, server, found)
        self._half_load("poisson", rng.exponential(2 * model_s, requests).tolist(), server, found)

    def _half_load(self, name: str, gaps: list[float], server: Server, found: dict[str, float]) -> None:
        self.progress(f"half load, {name}")
        served: list[float] = []
        ideal: list[float] = []
        cpu_s = 0.0
        # In short turns: the speed of this machine changes from one second to the next, by more than is looked for.
        for begin in range(0, len(gaps), size := -(-len(gaps) // TURNS)):
            turn = gaps[begin : begin + size]
            before_s = server.front_cpu_s()
            served += (latencies := self.asking.ask("open", server.port, turn))
            self.turns.append((self.rounds, name, turn, latencies))
            cpu_s += server.front_cpu_s() - before_s
            ideal += self.alone.ask("network", 1, turn)
        taken = [i for i, latency in enumerate(served) if not math.isnan(latency)]
        found[f"{name}: front cpu"] = cpu_s / len(served)
        found[f"{name}: served"] = p50([served[i] for i in taken])
        found[f"{name}: ideal"] = p50(ideal)
        found[f"{name}: added"] = found[f"{name}: served"] - found[f"{name}: ideal"]
        # Those that find nobody before them: their time does not depend on how long others take.
        lone = [i for i in taken if i and gaps[i] > ideal[i - 1]]
        found[f"{name}: added to lone ones"] = p50([served[i] for i in lone]) - p50([ideal[i] for i in lone])
        if self.brief:
            return
        echoed = self.asking.ask("open", self.echo_port, gaps)
        found[f"{name}: echo"] = p50(echoed) - p50(self.alone.ask("nothing", 1, gaps))
        found[f"{name}: beyond the echo"] = found[f"{name}: added"] - found[f"{name}: echo"]


def counts(port: int) -> tuple[int, int]:
    """Pictures that a server has answered, and batches that it has run for them."""
    with urlopen(f"http://127.0.0.1:{port}/v2/models/picture/stats", timeout=10) as answer:
        stats = json.load(answer)["model_stats"][0]
    return stats["inference_count"], stats["execution_count"]


def runs_s(log: Path) -> list[float]:
    """How long the model ran for each request, in the order of their arrival, as the worker reported it."""
    took: dict[int, float] = {}
    batches: dict[int, int] = {}
    with LogReader(log) as reader:
        for step in reader:
            for action in step.actions:
                if isinstance(action, RunBatch):
                    batches[action.batch] = action.items[0][0]
            if isinstance(step.event, BatchFinished):
                took[batches.pop(step.event.batch)] = (step.event.end_ns - step.event.begin_ns) / 1e9
    return [took[request] for request in sorted(took)]


def added_by_request(
    turns: list[tuple[int, str, list[float], list[float]]], runs: list[float]
) -> dict[tuple[int, str], list[float]]:
    """For every request, its latency less what it would have been if each had just run as long as it did, in turn."""
    added: dict[tuple[int, str], list[float]] = {}
    at = 0
    for number, name, gaps, latencies in turns:
        due = free = 0.0
        for gap, latency in zip(gaps, latencies, strict=True):
            due += gap
            if math.isnan(latency):
                continue  # refused: it never ran
            free = max(due, free) + runs[at]
            added.setdefault((number, name), []).append(latency - (free - due))
            at += 1
    assert at == len(runs), f"{len(runs)} requests are in the log, and {at} were answered here"
    return added


def fill_in(kept: list[dict[str, float]], added: dict[tuple[int, str], list[float]]) -> None:
    """Put what was added by request into the figures of the rounds that it is of."""
    for figures in kept:
        number = round(figures.pop("round"))
        for kind in ("paced", "poisson"):
            figures[f"{kind}: by request"] = p50(added[number, kind])


def measure(rounds: int, seconds: float, patience_s: float, progress: Callable[[str], None]) -> dict[str, Any]:
    """Figures of as many quiet rounds as were asked for, and how many others there were."""
    cpus = sorted(os.sched_getaffinity(0))
    front_cpu, worker_cpu = cpus[0], cpus[-1]
    rng = np.random.default_rng(3)
    kept: list[dict[str, float]] = []
    disturbed = 0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        make_model(directory / "network.onnx", LAYERS)
        make_model(directory / "mean.onnx", ())
        with (
            child(bare, directory, worker_cpu) as alone,
            child(client, front_cpu) as asking,
            child(echo, front_cpu) as echoing,
            serving(directory, BATCHES[0], front_cpu, worker_cpu) as one,
            serving(directory, BATCHES[1], front_cpu, worker_cpu) as many,
            serving(directory, BATCHES[0], front_cpu, worker_cpu, ["--log", "half.log"]) as logged,
        ):
            echo_port = echoing.pipe.recv()
            echoing.ask(*asking.ask("one", one.port))
            # Before it has run anything, a server only guesses how long a batch takes, and may refuse many at once.
            for _ in range(FIRST_REQUESTS):
                asking.ask("one", many.port)
            servers = dict(zip(BATCHES, (one, many), strict=True))
            bench = Bench(alone, asking, servers, logged, echo_port, seconds, progress)
            bench.round(rng)  # warms up
            neighbours = Neighbours()
            give_up = time.perf_counter() + patience_s
            while len(kept) < rounds:
                progress(f"round {len(kept) + 1}: waiting for a quiet machine")
                neighbours.wait(give_up)
                neighbours.mark()
                figures = bench.round(rng)
                figures["others"] = neighbours.cpus()
                if figures["others"] > QUIET_BELOW and time.perf_counter() < give_up:
                    disturbed += 1
                else:
                    kept.append(figures)
            refused = asking.ask("refused")
        added = added_by_request(bench.turns, runs_s(directory / "half.log"))
    fill_in(kept, added)
    figures_of = {name: [figures[name] for figures in kept] for name in kept[0]}
    return {
        "machine": machine(),
        "rounds": rounds,
        "disturbed": disturbed,
        "refused": refused,
        "seconds": seconds,
        "figures": figures_of,
    }


# -- the report ------------------------------------------------------------------------------------------------------

ROWS = [
    ("bare loop, batch 1", "bare 1", 1, "/s"),
    ("through HTTP, batch 1", "served 1", 1, "/s"),
    ("  of the bare loop", "ratio 1", 100, "%"),
    ("  the same with Triton's client", "triton", 1, "/s"),
    ("bare loop, batch 8", "bare 8", 1, "/s"),
    ("through HTTP, batch 8", "served 8", 1, "/s"),
    ("  items in a batch", "items per batch 8", 1, ""),
    ("  of the bare loop", "ratio 8", 100, "%"),
    ("the model in a tight loop, p50", "tight", 1e3, "ms"),
    *(
        (f"half load, {arrivals}: {title}", f"{name}: {what}", scale, unit)
        for name, arrivals in (("paced", "evenly paced"), ("poisson", "Poisson"))
        for title, what, scale, unit in (
            ("the model at the same times, p50", "ideal", 1e3, "ms"),
            ("through HTTP, p50", "served", 1e3, "ms"),
            ("  added", "added", 1e3, "ms"),
            ("  added to those that wait for nobody", "added to lone ones", 1e3, "ms"),
            ("  added to the model's own runs", "by request", 1e3, "ms"),
            ("  of it an echo of the same bytes", "echo", 1e3, "ms"),
            ("  added beyond the echo", "beyond the echo", 1e3, "ms"),
            ("  processor time of the front", "front cpu", 1e6, "µs"),
        )
    ),
    ("the path alone, 0.2 MB, p50", "path", 1e3, "ms"),
    ("the path alone, 0.6 MB, p50", "large path", 1e3, "ms"),
    ("  of it the model of next to nothing", "mean", 1e3, "ms"),
    ("processor time of the front, closed loop", "front cpu 1", 1e6, "µs"),
    ("others' processor time during a round", "others", 1, "CPUs"),
]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures of every round as JSON")
    parser.add_argument("--quick", action="store_true", help="three rounds, quiet or not: half a minute")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--patience", type=float, default=900, metavar="S", help="how long to wait for quiet rounds")
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("bench/live.py needs two CPUs: one for the worker, one for the front and its clients")
    rounds, seconds, patience_s = (3, 0.5, 0.0) if args.quick else (args.rounds, SECONDS, args.patience)
    with Progress("{task.description}", console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting")
        found = measure(rounds, seconds, patience_s, lambda text: bar.update(task, description=text))
    if args.json:
        print(json.dumps(found))
        return
    console = Console()
    heading = (
        f"{found['machine']}; {rounds} rounds of {seconds:g} s, {found['disturbed']} more were disturbed; "
        f"{found['refused']} requests were refused, which count for nothing"
    )
    console.print(f"{heading}\n", soft_wrap=True, highlight=False)
    table = Table("", "median", "smallest", "largest", "", box=None)
    for title, name, scale, unit in ROWS:
        values = [v * scale for v in found["figures"][name]]
        table.add_row(title, *(f"{v:.4g}" for v in (p50(values), min(values), max(values))), unit)
    console.print(table)


if __name__ == "__main__":
    main()
