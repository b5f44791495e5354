"""Clients of a server under measurement: they ask as soon as they may, or at given times, and note what came when.

They are written against bare sockets, because a client that takes its time would be measured with the server.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from _models import SHAPE, picture

#: Connections that the open loop begins with; at half load more than this are hardly ever needed.
MOST_OPEN = 12
#: Time at the beginning of a closed loop that does not count.
WARM_SECONDS = 0.3
#: Time for a server to accept connections before the first request is due.
SETTLE_SECONDS = 0.1
HOST = "127.0.0.1"
#: How an answer begins that is a refusal: no room, or no time. A cold server may refuse, or one on a busy machine.
REFUSED = (b"HTTP/1.1 429 ", b"HTTP/1.1 503 ")
#: Who is refused comes back after this time, where nothing else says when.
COME_BACK_SECONDS = 0.05
#: Refusals of this process so far.
refused = 0


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
        #: Notes of requests that were refused, until `refusals` is asked.
        self._refused: list[int] = []

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
        """Notes of the requests whose results have come, waiting so long for the first answer, be it a refusal."""
        readable, _, _ = select.select(list(self.busy), [], [], wait_s)
        notes = []
        for connection in readable:
            have = need = 0
            while not need or have < need:
                have += connection.recv_into(self._buffer[have:])
                text = bytes(self._buffer[:have])
                if not text.startswith((b"HTTP/1.1 200 ", *REFUSED)):
                    raise RuntimeError(text.decode("latin-1"))
                head, end, _ = text.partition(b"\r\n\r\n")
                if end:
                    need = len(head) + 4 + int(head.partition(b"Content-Length: ")[2].partition(b"\r")[0])
            self._idle.append(connection)
            note = self.busy.pop(connection)
            if text.startswith(REFUSED):
                self._refused.append(note)
                continue
            self.answer = text
            notes.append(note)
        return notes

    def refusals(self) -> list[int]:
        """Notes of the requests that were refused since this was last asked."""
        global refused
        notes, self._refused = self._refused, []
        refused += len(notes)
        return notes

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
    """Asks again as soon as an answer is there; the times at which answers came, of which there is one at least."""
    asking = Connections(port, connections)
    answered: list[float] = []
    warm = time.perf_counter() + WARM_SECONDS
    for _ in range(connections):
        asking.ask()
    while (now := time.perf_counter()) < warm + seconds or not answered or answered[-1] < warm:
        for _ in asking.answers(None):
            answered.append(time.perf_counter())
            asking.ask()
        for _ in asking.refusals():
            asking.ask()
    asking.close()
    return [at for at in answered if warm <= at <= now]


def counted_loop(
    port: int, connections: int, seconds: float, model: str, shape: tuple[int, ...]
) -> tuple[int, float]:
    """Asks again as soon as an answer is there; how many answers came, and in how many seconds."""
    asking = Connections(port, connections, model, shape)
    count = 0
    begin = time.perf_counter()
    for _ in range(connections):
        asking.ask()
    while time.perf_counter() < begin + seconds:
        for _ in asking.answers(None):
            count += 1
            asking.ask()
        for _ in asking.refusals():
            asking.ask()
    count += len(asking.busy)
    asking.close()
    return count, time.perf_counter() - begin


def one_answer(port: int) -> list[bytes]:
    """One answer as it comes; who is refused comes back."""
    asking = Connections(port, 1)
    asking.ask()
    while not asking.answers(None):
        asking.refusals()
        time.sleep(COME_BACK_SECONDS)
        asking.ask()
    asking.close()
    return [asking.answer]


def open_loop(port: int, gaps: list[float]) -> list[float]:
    """Asks at fixed times, be the last answer there or not; latencies from the time at which each was due.

    One that was refused has none (NaN).
    Its connections are made before, and none is kept for the next time: the server closes idle ones.
    """
    asking = Connections(port, MOST_OPEN)
    time.sleep(SETTLE_SECONDS)
    latencies = [math.nan] * len(gaps)
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
        asking.refusals()
    asking.close()
    return latencies


def lone_loop(port: int, shape: tuple[int, ...], seconds: float) -> list[float]:
    """One request at a time, of the model that does next to nothing; latencies."""
    asking = Connections(port, 1, "average", shape)
    latencies = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        asking.ask()
        if asking.answers(None):
            latencies.append(time.perf_counter() - begin)
        asking.refusals()
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
                try:
                    client.infer("picture", [given]).as_numpy("output")
                except triton.InferenceServerException:
                    time.sleep(COME_BACK_SECONDS)  # refused
                else:
                    answered.append(time.perf_counter())

    threads = [threading.Thread(target=loop) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [at for at in sorted(answered) if warm <= at <= warm + seconds]


def refused_so_far() -> int:
    """Requests of all loops but Triton's that a server has refused."""
    return refused


LOOPS: dict[str, Callable[..., Any]] = {
    "one": one_answer,
    "closed": closed_loop,
    "counted": counted_loop,
    "open": open_loop,
    "lone": lone_loop,
    "triton": triton_loop,
    "refused": refused_so_far,
}


def client(pipe: Connection, cpu: int) -> None:
    """Child process: told which loop to run, it tells what that gave."""
    os.sched_setaffinity(0, {cpu})
    while (order := pipe.recv()) is not None:
        kind, *rest = order
        pipe.send(LOOPS[kind](*rest))


def rate(answered: list[float], batch: int) -> float:
    """Answers per second between the first batch of them and the last; none if there were no two batches."""
    if len(answered) <= batch:
        return 0.0
    return (len(answered) - batch) / (answered[-1] - answered[batch - 1])
