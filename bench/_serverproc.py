"""The processes of a measurement, each held on its CPU: `dovetail serve`, and children told what to do.

And the neighbours: how busy the machine is with what is not ours.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from _clients import HOST, MOST_OPEN
from _models import picture

#: Processor time of others, in CPUs, that a measurement may have beside it.
QUIET_BELOW = 0.1

#: Serves what `make_model` wrote into files of these names.
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


# -- children ------------------------------------------------------------------------------------------------------


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
    theirs.close()  # so that the end of a child that raises is noticed
    try:
        yield Child(process, ours)
    finally:
        with contextlib.suppress(BrokenPipeError):
            ours.send(None)
        process.join()


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


# -- servers -------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """A running `dovetail serve`: its port and its processes."""

    port: int
    front: int
    workers: tuple[int, ...] = ()

    def front_cpu_s(self) -> float:
        """Processor time that the front has used."""
        return _cpu_s(self.front)

    def workers_cpu_s(self) -> float:
        """Processor time that its workers have used."""
        return sum(map(_cpu_s, self.workers))

    def hold(self, front_cpu: int, worker_cpu: int) -> None:
        """Hold its processes on their CPUs."""
        for pid, cpu in ((self.front, front_cpu), *((worker, worker_cpu) for worker in self.workers)):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {cpu})


def _cpu_s(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((t / "schedstat").read_text().split()[0]) for t in threads) / 1e9


@contextmanager
def serving(
    directory: Path,
    batch: int,
    front_cpu: int,
    worker_cpu: int,
    options: Sequence[str] = (),
    application: str = APPLICATION,
    environment: dict[str, str] | None = None,
) -> Iterator[Server]:
    """`dovetail serve` with the models in batches of this size, its processes held on their CPUs."""
    sizes = tuple(2**i for i in range(batch.bit_length()))
    (directory / f"served_{batch}.py").write_text(application.format(batch=sizes))
    command = [sys.executable, "-m", "dovetail", "serve", f"served_{batch}:app", "--device", "cpu:1", "--port", "0"]
    command += options
    process = subprocess.Popen(command, cwd=directory, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        said = []
        while not (line := process.stderr.readline()).startswith('{"ready"'):
            said.append(line)
            if not line:
                raise RuntimeError("".join(said))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        server = Server(json.loads(line)["port"], process.pid, tuple(map(int, _children(process.pid))))
        server.hold(front_cpu, worker_cpu)
        yield server
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
