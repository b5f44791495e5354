"""A whole server, workers and all, in a thread of its own, so that clients which block can be used."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from tests.serve.support import HOST, Reply, Wire, request

from dovetail.serve.launch import Options, Served, launch
from dovetail.wiring import PolicySpec
from dovetail.workflow.app import load_target
from dovetail.workflow.tensor import OIP_OF

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.http as triton

PATIENCE_SECONDS = 60.0


class LiveServer:
    """`launch` for a target, on a free port."""

    def __init__(self, target: str, *, policy: PolicySpec | None = None, **options: Any) -> None:
        self.said: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._stopped = False
        chosen = Options(port=0, policy=policy or PolicySpec("by-class"), **options)
        try:
            self.served: Served = self.run(launch(load_target(target), target, chosen, say=self.said.append))
        except BaseException:
            self._end()
            raise
        self.system = self.served.system
        self.port = self.served.http.port

    def submit(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Any) -> Any:
        return self.submit(coroutine).result(PATIENCE_SECONDS)

    def call(self, function: Callable[[], Any]) -> Any:
        """What the system says, asked in its own thread."""

        async def wrapped() -> Any:
            return function()

        return self.run(wrapped())

    def open_requests(self) -> int:
        return int(self.call(lambda: len(self.system.controller.requests)))

    def outcomes(self) -> dict[str, int]:
        """Of all requests so far, from the ledger."""
        counted: dict[str, int] = {}
        for line in self.call(self.system.ledger.summary):
            for outcome, count in line.outcomes.items():
                counted[outcome] = counted.get(outcome, 0) + count
        return counted

    def clean(self) -> bool:
        """Whether no memory is in use and no request open."""
        memory, controller = self.system.memory, self.system.controller
        return bool(
            self.call(lambda: not (memory.front.used_bytes or any(memory.blocks.values()) or controller.requests))
        )

    def client(self) -> triton.InferenceServerClient:
        return triton.InferenceServerClient(f"{HOST}:{self.port}", network_timeout=PATIENCE_SECONDS)

    def ask(self, model: str, first: float, **more: Any) -> Reply:
        """One request for a workflow of `tests.live.apps` on a connection of its own."""
        with Wire(self.port) as wire:
            wire.socket.settimeout(PATIENCE_SECONDS)
            return wire.ask("POST", f"/v2/models/{model}/infer", item_body(first, **more))

    def stop(self, drain_s: float = 30.0, hurry: asyncio.Event | None = None) -> bool:
        if self._stopped:
            return True
        self._stopped = True
        try:
            return bool(self.run(self.served.stop(drain_s, hurry)))
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the loop does not end"
        self._loop.close()


def item_body(first: float, **more: Any) -> bytes:
    """Three equal numbers, in JSON."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [3], "data": [first] * 3}
    return json.dumps({"inputs": [tensor], **more}).encode()


def item_request(model: str, first: float, **more: Any) -> bytes:
    return request("POST", f"/v2/models/{model}/infer", item_body(first, **more))


def triton_inputs(inputs: dict[str, Any]) -> list[triton.InferInput]:
    """Inputs as Triton's client sends them: arrays in binary, bytes as one element."""
    given = []
    for name, value in inputs.items():
        array = np.array([value], object) if isinstance(value, bytes) else value
        datatype = "BYTES" if array.dtype == object else OIP_OF[array.dtype.name]
        tensor = triton.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        given.append(tensor)
    return given


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """All calls, each in a thread; their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(PATIENCE_SECONDS) for future in [pool.submit(call) for call in calls]]
