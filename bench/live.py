"""What does serving cost? A model through HTTP, controller and worker process, against the model alone.

    python bench/live.py [--json] [--quick]

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
import multiprocessing
import os
import platform
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
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

from dovetail.control import BatchFinished, RunBatch
from dovetail.control.log import LogReader

SHAPE = (3, 128, 128)
LARGE_SHAPE = (3, 224, 224)
#: (channels, stride) of each 3 × 3 convolution.
LAYERS = ((32, 2), (64, 2), *((128, 1),) * 5)
BATCHES = (1, 8)
#: Requests kept open: the batch that runs, the one that waits, and two more on their way.
OPEN_BEYOND = 2
ROUNDS, SECONDS = 9, 1.0
#: Turns that the model alone and the server take at half load within a round.
TURNS = 4
#: Processor time of others, in CPUs, that a round may have beside it.
QUIET_BELOW = 0.1
#: Connections that the open loop begins with; at half load more than this are hardly ever needed.
MOST_OPEN = 12
#: Time at the beginning of a closed loop that does not count.
WARM_SECONDS = 0.3
#: Time for a server to accept connections before the first request is due.
SETTLE_SECONDS = 0.1
HOST = "127.0.0.1"


# -- the model -------------------------------------------------------------------------------------------------------


def make_model(path: Path, layers: tuple[tuple[int, int], ...]) -> None:
    """A small convolutional network with a variable batch axis; without layers it only takes the mean."""
    rng = np.random.default_rng(1)
    nodes, weights = [], []
    at, channels = "x", SHAPE[0]
    for i, (wider, stride) in enumerate(layers):
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
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", SHAPE[0], "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", channels])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def picture(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


APPLICATION = """
from dovetail import App, onnx, workflow
network = onnx("network.onnx", batch={batch})
mean = onnx("mean.onnx", batch={batch})

@workflow(slo="1s")
def picture(x):
    return network(x)

@workflow(slo="1s")
def average(x):
    return mean(x)

app = App(picture, average)
"""


# -- the processes ---------------------------------------------------------------------------------------------------


def bare(pipe: Connection, directory: Path, cpu: int) -> None:
    """Child process: told (model, batch, seconds), it runs the model in a loop and tells the seconds of each run.

    Told gaps instead of seconds, it runs it at these times and tells the seconds from the time at which each was due.
    The model "nothing" is none: that is how late it wakes up.
    """
    os.sched_setaffinity(0, {cpu})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    sessions = {
        name: onnxruntime.InferenceSession(directory / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
        for name in ("network", "mean")
    }
    while (order := pipe.recv()) is not None:
        name, batch, seconds = order
        run = partial(sessions[name].run, None, {"x": np.stack([picture()] * batch)}) if name in sessions else int
        run()
        times = []
        if isinstance(seconds, list):
            due = time.perf_counter()
            for gap in seconds:
                due += gap
                if (wait := due - time.perf_counter()) > 0:
                    time.sleep(wait)
                run()
                times.append(time.perf_counter() - due)
        else:
            end = time.perf_counter() + seconds
            while (begin := time.perf_counter()) < end:
                run()
                times.append(time.perf_counter() - begin)
        pipe.send(times)


def echo(pipe: Connection, cpu: int) -> None:
    """Child process: tells its port, then reads whole requests and answers each with as many bytes as it was told."""
    os.sched_setaffinity(0, {cpu})
    listener = socket.create_server((HOST, 0), backlog=2 * MOST_OPEN)
    listener.setblocking(False)
    pipe.send(listener.getsockname()[1])
    answer = b""
    buffer = memoryview(bytearray(1 << 20))
    #: Connection -> bytes that have come of its request, and of the whole of it; 0 is not yet known.
    got: dict[socket.socket, list[int]] = {}
    poll = select.epoll()
    by_fd: dict[int, socket.socket] = {}
    for source in (listener, pipe):
        poll.register(source.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == pipe.fileno():
                if (order := pipe.recv()) is None:
                    return
                answer = order[0]
                pipe.send([])
            elif fd == listener.fileno():
                made = listener.accept()[0]
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                made.setblocking(False)
                by_fd[made.fileno()], got[made] = made, [0, 0]
                poll.register(made.fileno(), select.EPOLLIN)
            else:
                connection = by_fd[fd]
                state = got[connection]
                have = connection.recv_into(buffer)
                if not have:
                    poll.unregister(fd)
                    del by_fd[fd], got[connection]
                    connection.close()
                    continue
                if not state[1]:
                    head, _, _ = bytes(buffer[: min(have, 4096)]).partition(b"\r\n\r\n")
                    state[1] = len(head) + 4 + int(head.partition(b"Content-Length: ")[2].partition(b"\r")[0])
                state[0] += have
                if state[0] == state[1]:
                    connection.send(answer)
                    state[:] = 0, 0


class Connections:
    """Keep-alive connections that send the same request over and over, all of them in one thread: cheap and even."""

    def __init__(self, port: int, count: int, model: str = "picture", shape: tuple[int, ...] = SHAPE) -> None:
        self._port = port
        self._message = message(model, shape)
        self._buffer = memoryview(bytearray(1 << 16))
        #: Connection -> what the caller noted with the request that is under way.
        self.busy: dict[socket.socket, int] = {}
        self._idle = [self._connect(port) for _ in range(count)]
        #: The last answer that came.
        self.answer = b""

    def _connect(self, port: int) -> socket.socket:
        made = socket.socket()
        # Room for a whole request, so that sending it does not wait for the server to read it.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(self._message))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.connect((HOST, port))
        return made

    def ask(self, note: int = 0) -> None:
        """Send a request on an idle connection."""
        connection = self._idle.pop() if self._idle else self._connect(self._port)
        connection.sendall(self._message)
        self.busy[connection] = note

    def answers(self, wait_s: float | None) -> list[int]:
        """Notes of the requests whose answers have come, waiting so long for the first."""
        readable, _, _ = select.select(list(self.busy), [], [], wait_s)
        for connection in readable:
            have = need = 0
            while not need or have < need:
                have += connection.recv_into(self._buffer[have:])
                text = bytes(self._buffer[:have])
                if not text.startswith(b"HTTP/1.1 200 "):
                    raise RuntimeError(text.decode("latin-1"))
                head, end, _ = text.partition(b"\r\n\r\n")
                if end:
                    need = len(head) + 4 + int(head.partition(b"Content-Length: ")[2].partition(b"\r")[0])
            self._idle.append(connection)
            self.answer = text
        return [self.busy.pop(connection) for connection in readable]

    def close(self) -> None:
        while self.busy:
            self.answers(None)
        for connection in self._idle:
            connection.close()


def message(model: str, shape: tuple[int, ...]) -> bytes:
    """An inference request with the picture in binary."""
    data = picture(shape).tobytes()
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1",
        f"Host: {HOST}",
        f"Content-Length: {len(head) + len(data)}",
        f"Inference-Header-Content-Length: {len(head)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + head + data


def closed_loop(port: int, connections: int, seconds: float) -> list[float]:
    """Asks again as soon as an answer is there; the times at which answers came."""
    asking = Connections(port, connections)
    answered: list[float] = []
    warm = time.perf_counter() + WARM_SECONDS
    for _ in range(connections):
        asking.ask()
    while (now := time.perf_counter()) < warm + seconds:
        for _ in asking.answers(None):
            answered.append(time.perf_counter())
            asking.ask()
    asking.close()
    return [at for at in answered if warm <= at <= now]


def one_answer(port: int) -> list[bytes]:
    """One answer as it comes."""
    asking = Connections(port, 1)
    asking.ask()
    asking.answers(None)
    asking.close()
    return [asking.answer]


def open_loop(port: int, gaps: list[float]) -> list[float]:
    """Asks at fixed times, be the last answer there or not; latencies from the time at which each was due.

    Its connections are made before, and none is kept for the next time: the server closes idle ones.
    """
    asking = Connections(port, MOST_OPEN)
    time.sleep(SETTLE_SECONDS)
    latencies = [0.0] * len(gaps)
    due = (time.perf_counter() + np.cumsum(gaps)).tolist()
    sent = 0
    while sent < len(gaps) or asking.busy:
        wait_s = None
        if sent < len(gaps):
            wait_s = due[sent] - time.perf_counter()
            if wait_s <= 0:
                asking.ask(sent)
                sent += 1
                continue
        for index in asking.answers(wait_s):
            latencies[index] = time.perf_counter() - due[index]
    asking.close()
    return latencies


def lone_loop(port: int, shape: tuple[int, ...], seconds: float) -> list[float]:
    """One request at a time, of the model that does next to nothing; latencies."""
    asking = Connections(port, 1, "average", shape)
    latencies = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        asking.ask()
        asking.answers(None)
        latencies.append(time.perf_counter() - begin)
    asking.close()
    return latencies[len(latencies) // 10 :]


def triton_loop(port: int, connections: int, seconds: float) -> list[float]:
    """As `closed_loop`, with Triton's own client in a thread for each connection."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tritonclient.http as triton
    given = triton.InferInput("x", list(SHAPE), "FP32")
    given.set_data_from_numpy(picture())
    answered: list[float] = []
    warm = time.perf_counter() + WARM_SECONDS

    def loop() -> None:
        with triton.InferenceServerClient(f"{HOST}:{port}") as client:
            while time.perf_counter() < warm + seconds:
                client.infer("picture", [given]).as_numpy("output")
                answered.append(time.perf_counter())

    threads = [threading.Thread(target=loop) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [at for at in sorted(answered) if warm <= at <= warm + seconds]


LOOPS: dict[str, Callable[..., list[Any]]] = {
    "one": one_answer,
    "closed": closed_loop,
    "open": open_loop,
    "lone": lone_loop,
    "triton": triton_loop,
}


def client(pipe: Connection, cpu: int) -> None:
    """Child process: told which loop to run, it tells what that gave."""
    os.sched_setaffinity(0, {cpu})
    while (order := pipe.recv()) is not None:
        kind, *rest = order
        pipe.send(LOOPS[kind](*rest))


@dataclass
class Child:
    """A child process and the pipe to it."""

    process: Any
    pipe: Connection

    def ask(self, *order: Any) -> list[Any]:
        self.pipe.send(order)
        answer: list[Any] = self.pipe.recv()
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
def serving(
    directory: Path, batch: int, front_cpu: int, worker_cpu: int, options: Sequence[str] = ()
) -> Iterator[Server]:
    """`dovetail serve` with the models in batches of this size, its processes held on their CPUs."""
    sizes = tuple(2**i for i in range(batch.bit_length()))
    (directory / f"served_{batch}.py").write_text(APPLICATION.format(batch=sizes))
    command = [sys.executable, "-m", "dovetail", "serve", f"served_{batch}:app", "--device", "cpu:1", "--port", "0"]
    command += options
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


class Neighbours:
    """How busy the machine is with what is not ours."""

    def __init__(self) -> None:
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self.mark()

    def mark(self) -> None:
        self._at = self._read()

    def cpus(self) -> float:
        """CPUs that others have kept busy since the mark."""
        then, now = self._at, self._read()
        return max(0.0, (now[1] - then[1]) - (now[2] - then[2])) / (now[0] - then[0])

    def _read(self) -> tuple[float, float, float]:
        """Time, processor time of all, and of this process and its descendants."""
        fields = [int(f) for f in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        idle = fields[3] + fields[4]
        todo, ours = [os.getpid()], 0
        while todo:
            pid = todo.pop()
            todo += map(int, _children(pid))
            ours += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        return time.perf_counter(), (sum(fields) - idle) / self._ticks_per_s, ours / self._ticks_per_s

    def wait(self, until: float) -> None:
        """Come back when the last two seconds were quiet, or at that time."""
        while time.perf_counter() < until:
            self.mark()
            time.sleep(2.0)
            if self.cpus() < QUIET_BELOW:
                return


# -- the measurement -------------------------------------------------------------------------------------------------


def rate(answered: list[float], batch: int) -> float:
    """Answers per second between the first batch of them and the last; none if there were no two batches."""
    if len(answered) <= batch:
        return 0.0
    return (len(answered) - batch) / (answered[-1] - answered[batch - 1])


def p50(values: list[float]) -> float:
    return statistics.median(values)


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
        found["mean"] = p50(self.alone.ask("mean", 1, self.seconds / 4))
        self.progress("Triton's client")
        answered = self.asking.ask("triton", one.port, 2 + OPEN_BEYOND, self.seconds)
        found["triton"] = rate(answered, BATCHES[0])
        return found

    def _throughput(self, batch: int, server: Server, found: dict[str, float]) -> None:
        self.progress(f"batch {batch}")
        # The bare loop before and after: a neighbour who came meanwhile is seen in one half of it.
        times = self.alone.ask("network", batch, self.seconds / 2)
        cpu_s = server.front_cpu_s()
        answered = self.asking.ask("closed", server.port, 2 * batch + OPEN_BEYOND, self.seconds)
        cpu_s = server.front_cpu_s() - cpu_s
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
        found[f"{name}: front cpu"] = cpu_s / len(served)
        found[f"{name}: served"] = p50(served)
        found[f"{name}: ideal"] = p50(ideal)
        found[f"{name}: added"] = found[f"{name}: served"] - found[f"{name}: ideal"]
        # Those that find nobody before them: their time does not depend on how long others take.
        lone = [i for i in range(1, len(gaps)) if gaps[i] > ideal[i - 1]]
        found[f"{name}: added to lone ones"] = p50([served[i] for i in lone]) - p50([ideal[i] for i in lone])
        echoed = self.asking.ask("open", self.echo_port, gaps)
        found[f"{name}: echo"] = p50(echoed) - p50(self.alone.ask("nothing", 1, gaps))
        found[f"{name}: beyond the echo"] = found[f"{name}: added"] - found[f"{name}: echo"]


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
            free = max(due, free) + runs[at]
            added.setdefault((number, name), []).append(latency - (free - due))
            at += 1
    assert at == len(runs), "every request of the log was asked for here"
    return added


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
        added = added_by_request(bench.turns, runs_s(directory / "half.log"))
    for figures in kept:
        number = round(figures.pop("round"))
        for kind in ("paced", "poisson"):
            figures[f"{kind}: by request"] = p50(added[number, kind])
    figures_of = {name: [figures[name] for figures in kept] for name in kept[0]}
    return {"machine": machine(), "rounds": rounds, "disturbed": disturbed, "seconds": seconds, "figures": figures_of}


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
    parser.add_argument("--patience", type=float, default=900, metavar="S", help="how long to wait for quiet rounds")
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("bench/live.py needs two CPUs: one for the worker, one for the front and its clients")
    rounds, seconds, patience_s = (3, 0.5, 0.0) if args.quick else (ROUNDS, SECONDS, args.patience)
    with Progress("{task.description}", console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting")
        found = measure(rounds, seconds, patience_s, lambda text: bar.update(task, description=text))
    if args.json:
        print(json.dumps(found))
        return
    console = Console()
    heading = f"{found['machine']}; {rounds} rounds of {seconds:g} s, {found['disturbed']} more were disturbed"
    console.print(f"{heading}\n", soft_wrap=True, highlight=False)
    table = Table("", "median", "smallest", "largest", "", box=None)
    for title, name, scale, unit in ROWS:
        values = [v * scale for v in found["figures"][name]]
        table.add_row(title, *(f"{v:.4g}" for v in (p50(values), min(values), max(values))), unit)
    console.print(table)


def machine() -> str:
    """What it was measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{os.cpu_count()} × {name}, Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}"


if __name__ == "__main__":
    main()
