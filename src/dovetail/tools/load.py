"""A load generator: requests over real HTTP at times that were fixed before, whether or not the server keeps up.

Rules of this file
- Open loop: a slow server does not get fewer requests. A latency counts from the time at which its request was due,
  so what a request waits in here for a connection is part of it (leaving that out is "coordinated omission").
- Bounded: so many connections, so many bytes of an answer, so long for each; no request is ever sent twice.
- Every shot gives exactly one `Answer`: what the server said, or why there is nothing.
- Bodies are sent from where they lie; two hundred requests for one picture hold it once.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..units import SECOND
from ..workflow.tensor import OIP_OF

__all__ = ["Answer", "Client", "Shot", "infer_shot", "post_shot"]

MAX_ANSWER_BYTES = 16 << 20
MAX_HEAD_BYTES = 64 << 10


class Shot(msgspec.Struct, frozen=True):
    """One request: when it is due, counted from the start, and the bytes to send."""

    ident: str
    due_ns: int
    parts: tuple[bytes | memoryview, ...]


class Answer(msgspec.Struct, frozen=True):
    """What became of a shot. `status` is that of HTTP, or 0 if there was no answer; then `error` says why."""

    ident: str
    due_ns: int
    sent_ns: int
    done_ns: int
    status: int
    body: bytes
    error: str = ""

    @property
    def latency_ns(self) -> int:
        """From the time at which it was due."""
        return self.done_ns - self.due_ns

    def json(self) -> dict[str, object]:
        """The body; empty if it is not JSON."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, object])
        except msgspec.DecodeError:
            return {}


def infer_shot(
    path: str,
    ident: str,
    due_ns: int,
    tensors: Mapping[str, npt.NDArray[Any]],
    headers: Mapping[str, str] = MappingProxyType({}),
    /,
    **parameters: int | float | str,
) -> Shot:
    """An inference of the Open Inference Protocol v2 with binary inputs and a JSON answer.

    Arrays of objects are BYTES; their elements are bytes.
    """
    data = {name: _binary(array) for name, array in tensors.items()}
    header = msgspec.json.encode(
        {
            "id": ident,
            "parameters": parameters,
            "inputs": [
                {
                    "name": name,
                    "datatype": "BYTES" if tensors[name].dtype == object else OIP_OF[tensors[name].dtype.name],
                    "shape": tensors[name].shape,
                    "parameters": {"binary_data_size": len(part)},
                }
                for name, part in data.items()
            ],
        }
    )
    lines = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(header))}
    return post_shot(path, ident, due_ns, (header, *data.values()), {**lines, **headers})


def _binary(array: npt.NDArray[Any]) -> memoryview:
    """A tensor as the binary extension has it; where it lies, if it can stay there."""
    if array.dtype == object:
        return memoryview(b"".join(len(each).to_bytes(4, "little") + each for each in array.reshape(-1).tolist()))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def post_shot(
    path: str, ident: str, due_ns: int, parts: Sequence[bytes | memoryview], headers: Mapping[str, str]
) -> Shot:
    """Any body."""
    first, *rest = parts
    lines = {"Host": "localhost", **headers, "Content-Length": str(sum(map(len, parts)))}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    return Shot(ident, due_ns, (head.encode("latin-1") + first, *rest))


class Client:
    """Connections to one server, used again and again, never more than `connections` at a time."""

    def __init__(self, host: str, port: int, *, connections: int = 256, timeout_s: float = 60.0) -> None:
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._room = asyncio.Semaphore(connections)
        self._idle: list[socket.socket] = []
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Close what is idle; shots that are still open close their own."""
        while self._idle:
            self._idle.pop().close()

    async def open_loop(self, shots: Iterable[Shot], on_answer: Callable[[Answer], None]) -> None:
        """Send every shot when it is due, counted from now on; return when the last is answered."""
        begin_ns = time.monotonic_ns()
        async with asyncio.TaskGroup() as open_shots:
            for shot in shots:
                wait_ns = begin_ns + shot.due_ns - time.monotonic_ns()
                if wait_ns > 0:
                    await asyncio.sleep(wait_ns / SECOND)
                open_shots.create_task(self.shoot(shot, begin_ns, on_answer))

    async def closed_loop(
        self, shots: Iterator[Shot], on_answer: Callable[[Answer], None], *, at_a_time: int, seconds: float
    ) -> None:
        """Keep so many requests open for so long, the next one as soon as one is answered; `due_ns` is not read."""
        begin_ns = time.monotonic_ns()

        async def one_after_the_other() -> None:
            while (now_ns := time.monotonic_ns() - begin_ns) < seconds * SECOND:
                shot = next(shots, None)
                if shot is None:
                    return
                await self.shoot(msgspec.structs.replace(shot, due_ns=now_ns), begin_ns, on_answer)

        async with asyncio.TaskGroup() as loops:
            for _ in range(at_a_time):
                loops.create_task(one_after_the_other())

    async def shoot(self, shot: Shot, begin_ns: int, on_answer: Callable[[Answer], None]) -> None:
        """Send one shot now; times count from `begin_ns` of the monotonic clock."""
        status, body, error = 0, b"", ""
        async with self._room:
            sent_ns = time.monotonic_ns() - begin_ns
            try:
                async with asyncio.timeout(self._timeout_s):
                    status, body = await self._exchange(shot)
            except TimeoutError:
                error = f"no answer within {self._timeout_s:g} s"
            except (OSError, ValueError) as trouble:
                error = f"{type(trouble).__name__}: {trouble}"
        done_ns = time.monotonic_ns() - begin_ns
        on_answer(Answer(shot.ident, shot.due_ns, sent_ns, done_ns, status, body, error))

    async def _exchange(self, shot: Shot) -> tuple[int, bytes]:
        connection = self._rested() or await self._connect()
        try:
            for part in shot.parts:
                await self._loop.sock_sendall(connection, part)
            status, body, reusable = await self._receive(connection)
        except BaseException:
            connection.close()
            raise
        if reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return status, body

    def _rested(self) -> socket.socket | None:
        """A connection that is idle and that the server has not closed meanwhile."""
        while self._idle:
            connection = self._idle.pop()
            try:
                connection.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return connection
            except OSError:
                pass
            connection.close()
        return None

    async def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(connection, self._address)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _receive(self, connection: socket.socket) -> tuple[int, bytes, bool]:
        """Status and body of an answer, and whether the connection may be used again."""
        buffer = bytearray()
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            if len(buffer) > MAX_HEAD_BYTES:
                raise ValueError(f"the head of the answer is longer than {MAX_HEAD_BYTES} bytes")
            await self._more(connection, buffer)
        first, *lines = buffer[:end].decode("latin-1").lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        del buffer[: end + 4]
        status, reusable = int(first.split(" ")[1]), fields.get("connection") != "close"
        if fields.get("transfer-encoding") == "chunked":
            return status, await self._chunks(connection, buffer), reusable
        length = int(fields.get("content-length", -1))
        if not 0 <= length <= MAX_ANSWER_BYTES:
            raise ValueError(f"the answer does not state a length of up to {MAX_ANSWER_BYTES} bytes")
        while len(buffer) < length:
            await self._more(connection, buffer)
        return status, bytes(buffer), reusable

    async def _chunks(self, connection: socket.socket, buffer: bytearray) -> bytes:
        """A body that comes in chunks, without trailers (RFC 9112, 7.1)."""
        body = bytearray()
        while True:
            while (end := buffer.find(b"\r\n")) < 0:
                await self._more(connection, buffer)
            length = int(buffer[:end].partition(b";")[0], 16)
            if len(body) + length > MAX_ANSWER_BYTES:
                raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
            while len(buffer) < end + 4 + length:
                await self._more(connection, buffer)
            body += buffer[end + 2 : end + 2 + length]
            del buffer[: end + 4 + length]
            if not length:
                return bytes(body)

    async def _more(self, connection: socket.socket, buffer: bytearray) -> None:
        data = await self._loop.sock_recv(connection, 1 << 16)
        if not data:
            raise ConnectionResetError("the server closed the connection before its answer was complete")
        buffer += data
