"""A backend in memory that really computes, a server around it in a thread, and a client that sends any bytes."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.errors import BadRequest, Overloaded
from dovetail.serve.backend import BODY_ALIGN_BYTES, Answer, Call, Metric, ModelInfo
from dovetail.serve.framing import Limits
from dovetail.serve.http import HttpServer
from dovetail.serve.inference import Inference
from dovetail.serve.keys import Key
from dovetail.serve.oip import start
from dovetail.serve.shared_memory import Regions
from dovetail.workflow.graph import Port
from dovetail.workflow.tensor import NUMPY_OF

HOST = "127.0.0.1"
CONFIG = {"parameters": {"slo": {"string_value": "1s"}}}


def until(condition: Callable[[], object]) -> None:
    """Waits for something that the server is about to do."""
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up, "it never came"
        time.sleep(0.001)


def spec(name: str, datatype: str, *shape: int) -> Port:
    return Port(name, datatype, shape)


def model(name: str, inputs: list[Port], outputs: list[Port], ready: bool = True) -> ModelInfo:
    return ModelInfo(name, "dovetail_workflow", tuple(inputs), tuple(outputs), ready, CONFIG)


OUTCOMES = ("late", "shed", "expired", "failed", "cancelled")
X, Y = spec("x", "FP32", 2), spec("y", "FP32", 2)
MODELS = {
    info.name: info
    for info in (
        model("add_one", [spec("x", "FP32", -1, 4)], [spec("y", "FP32", -1, 4)]),
        model("reverse", [spec("text", "BYTES", 1)], [spec("text", "BYTES", 1)]),
        model(
            "mixed",
            [spec("pixels", "UINT8", -1, 3), spec("words", "BYTES", -1), spec("flags", "BOOL", 2)],
            [spec("words", "BYTES", -1), spec("mean", "FP64", 1), spec("count", "INT64", 1), spec("doc", "BYTES", 1)],
        ),
        model("half", [spec("x", "FP16", 2)], [spec("y", "FP16", 2)]),
        *(
            model(f"same_{datatype}", [spec("x", datatype, -1, 2)], [spec("y", datatype, -1, 2)])
            for datatype in (*NUMPY_OF, "BYTES")
        ),
        model("copy", [spec("x", "UINT8", -1)], [spec("y", "UINT8", -1)]),
        model("wait", [X], [Y]),
        model("crash", [X], [Y]),
        model("forgetful", [X], [Y]),
        model("refused", [X], [Y]),
        model("no room", [X], [Y]),
        model("asleep", [X], [Y], ready=False),
        *(model(outcome, [X], [Y]) for outcome in OUTCOMES),
    )
}


class MemoryBody:
    """A body on the heap, aligned as shared memory would be."""

    def __init__(self, backend: MemoryBackend, nbytes: int) -> None:
        raw = np.empty(nbytes + BODY_ALIGN_BYTES, np.uint8)
        self._array = raw[-raw.ctypes.data % BODY_ALIGN_BYTES :][:nbytes]
        self.view = self._array.data
        self._backend = backend
        backend.bodies.append(self)

    def ref(self, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]) -> object:
        return np.frombuffer(self.view, dtype, nbytes // np.dtype(dtype).itemsize, offset).reshape(shape)

    def release(self) -> None:
        self._backend.bodies.remove(self)  # a second release fails


@dataclass
class MemoryBackend:
    """Counts what it lends (`bodies`, `answers`), so that a test can see that all came back."""

    room_bytes: int = 1 << 30
    bodies: list[MemoryBody] = field(default_factory=list)
    answers: int = 0
    #: Classes of those that asked for room, as far as they were known.
    classes: list[int] = field(default_factory=list)
    is_crowded: bool = False
    calls: list[Call] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def body(self, model: str, nbytes: int, priority: int = 0, generation: int = 0) -> MemoryBody:
        self.classes.append(priority)
        if nbytes > self.room_bytes:
            raise Overloaded("no room for the body", 1500)
        return MemoryBody(self, nbytes)

    def metrics(self, http: list[Metric]) -> str:
        return "".join(f"{name} {value}\n" for name, _, _, value in http)

    def crowded(self) -> bool:
        return self.is_crowded

    def claims(self, model: str, priority: int, who: Key | None = None) -> int:
        if priority > 10:
            raise BadRequest("there are ten classes")
        return priority

    def let_in(self, model: str, priority: int, who: Key | None) -> None:
        """Nobody is limited."""

    def models(self) -> Mapping[str, ModelInfo]:
        return MODELS

    def slices(self) -> list[dict[str, Any]]:
        return []

    def change_slice(self, client: str, wanted: Any, admin: bool = False) -> dict[str, Any]:
        raise BadRequest(f"{client!r} has no quota")

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.room_bytes > 0

    def statistics(self, model: str | None) -> list[dict[str, Any]]:
        def entry(name: str) -> dict[str, Any]:
            zero = {"count": 0, "ns": 0}
            kinds = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit")
            count = sum(call.model == name for call in self.calls)
            return {
                "name": name,
                "version": "1",
                "last_inference": 0,
                "inference_count": count,
                "execution_count": count,
                "inference_stats": dict.fromkeys((*kinds, "cache_miss"), zero),
                "batch_stats": [],
            }

        return [entry(name) for name in ([model] if model else MODELS)]

    def infer(self, call: Call, done: Callable[[Answer | Exception], None]) -> Callable[[], object]:
        def ended(task: asyncio.Task[Answer]) -> None:
            done(Answer("cancelled") if task.cancelled() else task.exception() or task.result())

        task = asyncio.get_running_loop().create_task(self._infer(call))
        task.add_done_callback(ended)
        return task.cancel

    async def _infer(self, call: Call) -> Answer:
        self.calls.append(call)
        if call.model in OUTCOMES:
            answer = Answer(call.model, {"y": call.inputs["x"]}, "", 1500, {"note": 7}, self._returned)
        else:
            answer = Answer("ok", await self._outputs(call), release=self._returned)
        self.answers += 1
        return answer

    def _returned(self) -> None:
        self.answers -= 1

    async def _outputs(self, call: Call) -> dict[str, object]:
        inputs: dict[str, Any] = call.inputs
        match call.model:
            case "add_one":
                return {"y": inputs["x"] + np.float32(1)}
            case "reverse":
                return {"text": inputs["text"][::-1]}
            case "mixed":
                words = [word.upper() for word in inputs["words"]]
                doc = {"flags": inputs["flags"], "shape": inputs["pixels"].shape}
                return {"words": words, "mean": float(inputs["pixels"].mean()), "count": len(words), "doc": doc}
            case "same_BYTES":
                return {"y": np.array(inputs["x"], object).reshape(-1, 2)}
            case name if name in ("half", "copy") or name.startswith("same_"):
                return {"y": inputs["x"]}
            case "forgetful":
                return {}
        if call.model == "crash":
            raise RuntimeError("the secret cause")
        if call.model == "refused":
            raise BadRequest("x must be sorted")
        if call.model == "no room":
            raise Overloaded("the queue is full", 20)
        self.entered.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return {"y": inputs["x"]}


class Server:
    """`start` in a thread of its own, so that clients which block can be used."""

    def __init__(self, limits: Limits = Limits(), *, everything: bool = False, **backend: Any) -> None:  # noqa: B008
        """With `everything`: gRPC and shared memory, too."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.backend: MemoryBackend = self.run(self._backend(backend))
        self.regions = Regions(limits.max_body_bytes) if everything else None
        self.http: HttpServer = self.run(start(self.backend, HOST, 0, limits, regions=self.regions))
        self.port = self.http.port
        self.grpc: Any = None
        if everything:
            from dovetail.serve.rpc.server import start as start_grpc

            self.grpc = self.run(start_grpc(Inference(self.backend, self.regions), HOST, 0, limits))

    async def _backend(self, options: dict[str, Any]) -> MemoryBackend:
        return MemoryBackend(**options)

    def submit(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Any) -> Any:
        return self.submit(coroutine).result(30)

    def call(self, function: Callable[[], Any]) -> Any:
        async def wrapped() -> Any:
            return function()

        return self.run(wrapped())

    def open_gate(self) -> None:
        self._loop.call_soon_threadsafe(self.backend.gate.set)

    def wire(self) -> Wire:
        return Wire(self.port)

    def everything_returned(self) -> bool:
        """Whether no memory is lent or counted any more. Asked in the loop, after what it has to do already."""
        http = self.http
        counted = lambda: (self.backend.answers, http.chunked_bytes, http.bodies.unreceived_bytes)  # noqa: E731
        return bool(self.call(lambda: (len(self.backend.bodies), *counted())) == (0, 0, 0, 0))

    def stop(self) -> None:
        if self.grpc is not None:
            self.run(self.grpc.drain(0))
        self.run(self.http.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the loop does not end"
        self._loop.close()


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.status >= 400, self
        return str(self.json["error"])


class Wire:
    """A connection that sends any bytes and reads strictly."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=20)
        self._file = io.BufferedReader(socket.SocketIO(self.socket, "r"))

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> Wire:
        self.socket.sendall(data)
        return self

    def reply(self, to: str = "GET") -> Reply:
        """The next answer; fails if it is not well-formed."""
        line = self._file.readline()
        match = re.fullmatch(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [A-Za-z -]+\r\n", line)
        assert match, line
        headers: dict[str, str] = {}
        while (field := self._file.readline()) != b"\r\n":
            name, _, value = field.decode("latin-1").removesuffix("\r\n").partition(": ")
            assert name.lower() not in headers and name and value, field
            headers[name.lower()] = value
        status = int(match[1])
        length = 0 if status == 100 or to == "HEAD" else int(headers["content-length"])
        body = self._file.read(length)
        assert len(body) == length
        return Reply(status, headers, body)

    def ended(self) -> bool:
        """Whether the server closes the connection without sending more; waits for it."""
        try:
            return self._file.peek(1) == b""
        except ConnectionResetError:
            return True

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        return self.send(request(method, path, body, **headers)).reply(method)


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    fields = {"Host": HOST, **({"Content-Length": str(len(body))} if body else {})}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def infer_body(name: str = "x", shape: list[int] | None = None, data: object = None, **more: Any) -> bytes:
    """A request in JSON; by default one that the models with two floats take."""
    tensor = {"name": name, "datatype": "FP32", "shape": [2] if shape is None else shape, "data": data or [1, 2]}
    return json.dumps({"inputs": [tensor], **more}).encode()


def infer(name: str, body: bytes | None = None, **headers: str) -> bytes:
    path = f"/v2/models/{name.replace(' ', '%20')}/infer"
    return request("POST", path, infer_body() if body is None else body, **headers)
