"""The least that a front and a worker can be: what the server's cost is compared with.

Two processes, as `feasibility-serving` built them: asyncio with a hand-written protocol (httptools for heads) and a
worker that calls ONNX Runtime. A body is received into a slot of shared memory, a packet of a Unix socket says which
slot, the worker runs the model on it and says when the result is there. One route, one model, one tensor in binary.
There is no validation, no limit, no time-out, no scheduler, no batch, no metric, no log and no error handling.

    python bench/_bare_server.py MODEL    prints its port and the pid of its worker
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import sys
from typing import Any, cast

import httptools
import msgspec
import numpy as np
import onnxruntime

SLOTS, SLOT_BYTES = 256, 4096
RESULT_AT = 2048  # of a slot: the result goes behind the request
PAD = 64  # tensors begin at a multiple of this
_encode = msgspec.json.encode
_decode = msgspec.json.decode


def worker(bell: socket.socket, memory: mmap.mmap, model: str) -> None:
    """Run what the packets say: slot, offset and number of floats."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    view = memoryview(memory)
    while packet := bell.recv(64):
        slot, offset, count = np.frombuffer(packet, np.int64).tolist()
        base = slot * SLOT_BYTES
        given = np.frombuffer(view, np.float32, count, base + offset)[None]
        result = session.run(None, {"x": given})[0]
        raw = result.tobytes()
        view[base + RESULT_AT : base + RESULT_AT + len(raw)] = raw
        bell.send(np.array([slot, len(raw)], np.int64).tobytes())


class Front(asyncio.BufferedProtocol):
    """One client."""

    _transport: asyncio.Transport

    def __init__(self, bell: socket.socket, memory: memoryview, free: list[int], waiting: dict[int, Front]) -> None:
        self._bell, self._memory, self._free, self._waiting = bell, memory, free, waiting
        self._buffer = bytearray(SLOT_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._headers: dict[bytes, bytes] = {}
        self._url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        stop = self._buffer.find(b"\r\n\r\n", 0, self._end) + 4
        if stop < 4:
            return
        self._headers = {}
        httptools.HttpRequestParser(self).feed_data(self._view[:stop])
        length = int(self._headers[b"content-length"])
        if self._end < stop + length:
            return
        json_bytes = int(self._headers[b"inference-header-content-length"])
        head = _decode(self._view[stop : stop + json_bytes])
        slot = self._free.pop()
        base = slot * SLOT_BYTES
        data = self._view[stop + json_bytes : stop + length]
        self._memory[base + PAD : base + PAD + len(data)] = data
        self._end = 0
        self._waiting[slot] = self
        count = head["inputs"][0]["shape"][0]
        self._bell.send(np.array([slot, PAD, count], np.int64).tobytes())

    def answered(self, slot: int, nbytes: int) -> None:
        base = slot * SLOT_BYTES + RESULT_AT
        data = self._memory[base : base + nbytes]
        tensor = {"name": "y", "datatype": "FP32", "shape": [nbytes // 4], "parameters": {"binary_data_size": nbytes}}
        head = _encode({"model_name": "tiny", "model_version": "1", "outputs": [tensor]})
        lines = (
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
            f"Content-Length: {len(head) + nbytes}\r\nInference-Header-Content-Length: {len(head)}\r\n\r\n"
        )
        self._transport.write(b"".join((lines.encode(), head, data)))
        self._free.append(slot)


async def front(bell: socket.socket, memory: mmap.mmap, pid: int) -> None:
    """Serve until the process is ended."""
    view = memoryview(memory)
    free, waiting = list(range(SLOTS)), cast(dict[int, Front], {})
    loop = asyncio.get_running_loop()

    def rang() -> None:
        slot, nbytes = np.frombuffer(bell.recv(64), np.int64).tolist()
        waiting.pop(slot).answered(slot, nbytes)

    bell.setblocking(False)
    loop.add_reader(bell.fileno(), rang)
    server = await loop.create_server(lambda: Front(bell, view, free, waiting), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], pid, flush=True)
    await server.serve_forever()


def main() -> None:
    """Two processes from one."""
    memory: Any = mmap.mmap(-1, SLOTS * SLOT_BYTES)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        ours.close()
        worker(theirs, memory, sys.argv[1])
        os._exit(0)
    theirs.close()
    asyncio.run(front(ours, memory, pid))


if __name__ == "__main__":
    main()
