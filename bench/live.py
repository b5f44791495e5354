"""What does serving cost? A model through HTTP, controller and worker process, against the model alone.

    python bench/live.py [--json] [--quick]

One model of about 10 ms (six convolutions on a picture of 0.6 MB, made here with a fixed seed) is run by one thread:

- throughput: closed loop over keep-alive connections, tensors in binary, against the same ONNX Runtime session called
  in a bare loop with the same batch size and threads;
- latency: requests at random times (Poisson) at half of the bare loop's rate, against a loop that runs the model at
  the very same times, first come, first served. Both wait for their turn, and in both the model is slower than in a
  tight loop, because it finds cold caches: the difference is what front, controller, doorbell and worker add.

The worker and the bare loop have one CPU to themselves (never at the same time), the front and its clients the other.
All ways take turns in every round, so that a busy neighbour meets all of them; a figure is the median over rounds,
with the smallest and the largest. Results go to stdout, progress to stderr. Takes about three minutes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import queue
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

SHAPE = (3, 224, 224)
#: (channels, stride) of each 3 × 3 convolution.
LAYERS = ((32, 2), (64, 2), (128, 2), *((128, 1),) * 5)
BATCHES = (1, 8)
#: Requests kept open: the batch that runs, the one that waits, and two more on their way.
OPEN_BEYOND = 2
ROUNDS, SECONDS = 7, 3.0
SENDERS = 24
HOST = "127.0.0.1"


# -- the model -------------------------------------------------------------------------------------------------------


def make_model(path: Path) -> None:
    """A small convolutional network with a variable batch axis."""
    rng = np.random.default_rng(1)
    nodes, weights = [], []
    at, channels = "x", SHAPE[0]
    for i, (wider, stride) in enumerate(LAYERS):
        kernel = (rng.standard_normal((wider, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{i}"))
        options = {"strides": [stride, stride], "pads": [1] * 4, "kernel_shape": [3, 3]}
        nodes += [helper.make_node("Conv", [at, f"w{i}"], [f"c{i}"], **options)]
        nodes += [helper.make_node("Relu", [f"c{i}"], [f"r{i}"])]
        at, channels = f"r{i}", wider
    nodes += [helper.make_node("GlobalAveragePool", [at], ["pooled"]), helper.make_node("Flatten", ["pooled"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *SHAPE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", channels])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def picture() -> np.ndarray:
    return np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)


APPLICATION = """
from dovetail import App, onnx, workflow
network = onnx({path!r}, name="network", batch={batch})

@workflow(slo="1s")
def picture(x):
    return network(x)

app = App(picture)
"""


# -- the processes ---------------------------------------------------------------------------------------------------


def bare(pipe: Connection, path: str, cpu: int) -> None:
    """Child process: told (batch, seconds), it runs the model in a loop and tells the seconds of each run.

    Told (batch, gaps), it runs it at these times instead and tells the seconds from the time at which each was due.
    """
    os.sched_setaffinity(0, {cpu})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    while (order := pipe.recv()) is not None:
        batch, seconds = order
        x = np.stack([picture()] * batch)
        session.run(None, {"x": x})
        times = []
        if isinstance(seconds, list):
            due = time.perf_counter()
            for gap in seconds:
                due += gap
                if (wait := due - time.perf_counter()) > 0:
                    time.sleep(wait)
                session.run(None, {"x": x})
                times.append(time.perf_counter() - due)
        else:
            end = time.perf_counter() + seconds
            while (begin := time.perf_counter()) < end:
                session.run(None, {"x": x})
                times.append(time.perf_counter() - begin)
        pipe.send(times)


class Connected:
    """One keep-alive connection that sends the same request over and over."""

    def __init__(self, port: int, message: bytes) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._message = message
        self._buffer = bytearray(1 << 16)

    def ask(self) -> None:
        self._socket.sendall(self._message)
        have, need = 0, -1
        while have != need:
            have += self._socket.recv_into(memoryview(self._buffer)[have:])
            if need < 0 and (head := self._buffer.find(b"\r\n\r\n", 0, have)) >= 0:
                if not self._buffer.startswith(b"HTTP/1.1 200 "):
                    raise RuntimeError(bytes(self._buffer[:have]).decode("latin-1"))
                at = self._buffer.find(b"Content-Length: ") + 16
                need = head + 4 + int(self._buffer[at : self._buffer.find(b"\r", at)])

    def close(self) -> None:
        self._socket.close()


def message() -> bytes:
    """An inference request with the picture in binary."""
    data = picture().tobytes()
    tensor = {"name": "x", "datatype": "FP32", "shape": SHAPE, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    lines = [
        "POST /v2/models/picture/infer HTTP/1.1",
        f"Host: {HOST}",
        f"Content-Length: {len(head) + len(data)}",
        f"Inference-Header-Content-Length: {len(head)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + head + data


def closed_loop(make: Callable[[], Any], connections: int, seconds: float) -> list[float]:
    """Each connection asks again as soon as it has its answer; the latencies of those inside the time."""
    latencies: list[float] = []
    warm = time.perf_counter() + 0.3
    end = warm + seconds

    def loop() -> None:
        connected = make()
        while (begin := time.perf_counter()) < end:
            connected.ask()
            done = time.perf_counter()
            if done > warm and done <= end:
                latencies.append(done - begin)
        connected.close()

    _in_threads(loop, connections)
    return latencies


def open_loop(make: Callable[[], Any], gaps: list[float]) -> list[float]:
    """Asks at fixed times, be the last answer there or not; latencies from the time at which each was due."""
    due: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
    latencies = [0.0] * len(gaps)
    start = time.perf_counter() + 0.2
    for index, at in enumerate(np.cumsum(gaps).tolist()):
        due.put((index, start + at))
    for _ in range(SENDERS):
        due.put(None)

    def loop() -> None:
        connected = make()
        while (order := due.get()) is not None:
            index, at = order
            if (wait := at - time.perf_counter()) > 0:
                time.sleep(wait)
            connected.ask()
            latencies[index] = time.perf_counter() - at
        connected.close()

    _in_threads(loop, SENDERS)
    return latencies


def _in_threads(loop: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=loop) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class TritonClient:
    """Triton's own client, for reference."""

    def __init__(self, port: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import tritonclient.http as triton
        self._client = triton.InferenceServerClient(f"{HOST}:{port}")
        self._input = triton.InferInput("x", list(SHAPE), "FP32")
        self._input.set_data_from_numpy(picture())

    def ask(self) -> None:
        self._client.infer("picture", [self._input]).as_numpy("output")

    def close(self) -> None:
        self._client.close()


def client(pipe: Connection, cpu: int) -> None:
    """Child process: told what to do, it asks the server and tells the latencies."""
    os.sched_setaffinity(0, {cpu})
    sys.setswitchinterval(0.0005)  # threads that wait for a core measure the interpreter, not the server
    while (order := pipe.recv()) is not None:
        kind, port, *rest = order
        text = message()
        if kind == "closed":
            pipe.send(closed_loop(lambda: Connected(port, text), *rest))  # noqa: B023
        elif kind == "open":
            pipe.send(open_loop(lambda: Connected(port, text), *rest))  # noqa: B023
        else:
            pipe.send(closed_loop(lambda: TritonClient(port), *rest))  # noqa: B023


@dataclass
class Child:
    """A child process and the pipe to it."""

    process: Any
    pipe: Connection

    def ask(self, *order: Any) -> list[float]:
        self.pipe.send(order)
        answer: list[float] = self.pipe.recv()
        return answer


@contextmanager
def child(target: Callable[..., None], *args: Any) -> Iterator[Child]:
    """A child that is told to end when the block does."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(theirs, *args))
    process.start()
    try:
        yield Child(process, ours)
    finally:
        ours.send(None)
        process.join()


@dataclass
class Server:
    """A running `dovetail serve`."""

    port: int
    front: int

    def front_cpu_s(self) -> float:
        """Processor time that the front has used."""
        threads = Path(f"/proc/{self.front}/task").iterdir()
        return sum(int((t / "schedstat").read_text().split()[0]) for t in threads) / 1e9


@contextmanager
def serving(directory: Path, model: Path, batch: int, front_cpu: int, worker_cpu: int) -> Iterator[Server]:
    """`dovetail serve` with the model in batches of this size, its processes held on their CPUs."""
    sizes = tuple(2**i for i in range(batch.bit_length()))
    (directory / f"served_{batch}.py").write_text(APPLICATION.format(path=str(model), batch=sizes))
    command = [sys.executable, "-m", "dovetail", "serve", f"served_{batch}:app", "--device", "cpu:1", "--port", "0"]
    process = subprocess.Popen(command, cwd=directory, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = []
        while not (line := process.stderr.readline()).startswith('{"ready"'):
            said.append(line)
            if not line:
                raise RuntimeError("".join(said))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        for pid, cpu in ((process.pid, front_cpu), *((int(w), worker_cpu) for w in _children(process.pid))):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {cpu})
        yield Server(json.loads(line)["port"], process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


# -- the measurement -------------------------------------------------------------------------------------------------


def p50(values: list[float]) -> float:
    return statistics.median(values)


def measure(rounds: int, seconds: float, progress: Callable[[str], None]) -> dict[str, list[float]]:
    """One figure per round of each quantity."""
    cpus = sorted(os.sched_getaffinity(0))
    front_cpu, worker_cpu = cpus[0], cpus[-1]
    rng = np.random.default_rng(3)
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = directory / "network.onnx"
        make_model(model)
        with (
            child(bare, str(model), worker_cpu) as alone,
            child(client, front_cpu) as asking,
            serving(directory, model, BATCHES[0], front_cpu, worker_cpu) as one,
            serving(directory, model, BATCHES[1], front_cpu, worker_cpu) as many,
        ):
            for turn in range(-1, rounds):  # the first is not counted
                for batch, server in zip(BATCHES, (one, many), strict=True):
                    progress(f"batch {batch}, bare loop")
                    times = alone.ask(batch, seconds)
                    rate = batch / (sum(times) / len(times))
                    progress(f"batch {batch}, through HTTP")
                    cpu_s = server.front_cpu_s()
                    latencies = asking.ask("closed", server.port, 2 * batch + OPEN_BEYOND, seconds)
                    cpu_s = server.front_cpu_s() - cpu_s
                    # The bare loop once more behind it: a neighbour who came meanwhile is seen in both halves.
                    times += alone.ask(batch, seconds)
                    rate = batch / (sum(times) / len(times))
                    if turn < 0:
                        continue
                    note(f"bare {batch}", rate)
                    note(f"served {batch}", len(latencies) / seconds)
                    note(f"ratio {batch}", len(latencies) / seconds / rate)
                    note(f"front cpu {batch}", cpu_s / len(latencies) * seconds / (seconds + 0.3))
                    note(f"model {batch}", p50(times))
                progress("half load")
                model_s = p50(alone.ask(1, seconds))
                gaps = rng.exponential(2 * model_s, round(seconds / (2 * model_s))).tolist()
                best = alone.ask(1, gaps)
                cpu_s = one.front_cpu_s()
                latencies = asking.ask("open", one.port, gaps)
                cpu_s = one.front_cpu_s() - cpu_s
                best_again = alone.ask(1, gaps)
                progress("Triton's client")
                triton = asking.ask("triton", one.port, 2 + OPEN_BEYOND, seconds)
                if turn < 0:
                    continue
                note("tight", model_s)
                note("half load", p50(latencies))
                note("ideal", p50(best + best_again))
                note("added", p50(latencies) - p50(best + best_again))
                # Those that find nobody before them: their time does not depend on how long others take.
                first = [i for i, gap in enumerate(gaps) if i and gap > max(best[i - 1], best_again[i - 1])]
                lone = [p50([of[i] for i in first]) for of in (latencies, best, best_again)]
                note("added unhindered", lone[0] - (lone[1] + lone[2]) / 2)
                note("front cpu open", cpu_s / len(latencies))
                note("triton", len(triton) / seconds)
    return found


# -- the report ------------------------------------------------------------------------------------------------------

ROWS = [
    ("bare loop, batch 1", "bare 1", 1, "/s"),
    ("through HTTP, batch 1", "served 1", 1, "/s"),
    ("  of the bare loop", "ratio 1", 100, "%"),
    ("  the same with Triton's client", "triton", 1, "/s"),
    ("bare loop, batch 8", "bare 8", 1, "/s"),
    ("through HTTP, batch 8", "served 8", 1, "/s"),
    ("  of the bare loop", "ratio 8", 100, "%"),
    ("the model in a tight loop, p50", "tight", 1e3, "ms"),
    ("half load, the model at the same times, p50", "ideal", 1e3, "ms"),
    ("half load, through HTTP, p50", "half load", 1e3, "ms"),
    ("  added", "added", 1e3, "ms"),
    ("  added to those that wait for nobody", "added unhindered", 1e3, "ms"),
    ("processor time of the front, closed loop", "front cpu 1", 1e6, "µs"),
    ("processor time of the front, half load", "front cpu open", 1e6, "µs"),
]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures of every round as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: half a minute")
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("bench/live.py needs two CPUs: one for the worker, one for the front and its clients")
    rounds, seconds = (3, 1.0) if args.quick else (ROUNDS, SECONDS)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=(rounds + 1) * 6)
        found = measure(rounds, seconds, lambda text: bar.update(task, description=text, advance=1))
    if args.json:
        print(json.dumps({"machine": machine(), "rounds": rounds, "seconds": seconds, "figures": found}))
        return
    console = Console()
    console.print(f"{machine()}; {rounds} rounds of {seconds:g} s\n", soft_wrap=True, highlight=False)
    table = Table("", "median", "smallest", "largest", "", box=None)
    for title, name, scale, unit in ROWS:
        values = [v * scale for v in found[name]]
        table.add_row(title, *(f"{v:.4g}" for v in (p50(values), min(values), max(values))), unit)
    console.print(table)


def machine() -> str:
    """What it was measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{os.cpu_count()} × {name}, Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}"


if __name__ == "__main__":
    main()
