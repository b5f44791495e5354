"""Parts of the front, served alone, so that each can be counted: `front.py --parts`.

    python bench/_part_server.py http|protocol    prints its port, and 0 for the worker that it has not

`http` is the HTTP server with all its limits before an application that answers every body with the same bytes.
`protocol` has the Open Inference Protocol in between, before a backend that answers every call at once. Neither has a
controller or a worker.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from dovetail.serve import oip
from dovetail.serve.backend import Answer, Call, ModelInfo
from dovetail.serve.framing import DEFAULT_LIMITS, HttpRequest, HttpResponse
from dovetail.serve.http import serve
from dovetail.workflow.graph import Port

WIDTH, RESULTS = 64, 8


class Memory:
    """A body."""

    def __init__(self, nbytes: int) -> None:
        self.data = bytearray(nbytes)
        self.view = memoryview(self.data)

    def ref(self, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]) -> object:
        return offset, nbytes, dtype, shape

    def release(self) -> None:
        pass


class Echo:
    """An application that answers the same whatever it is asked."""

    def check(self, request: HttpRequest, nbytes: int) -> int:
        return 1

    def body(self, request: HttpRequest, nbytes: int, begun: memoryview) -> Memory:
        return Memory(nbytes)

    def renew(self) -> None:
        pass

    def vital(self, request: HttpRequest) -> bool:
        return False

    def respond(self, request: HttpRequest, done: Callable[[HttpResponse | Exception], None]) -> HttpResponse:
        return HttpResponse(200, [bytes(250)], content_type="application/octet-stream")


class AtOnce:
    """A backend whose every call ends as it begins."""

    def __init__(self) -> None:
        given, result = Port("x", "FP32", (WIDTH,)), Port("output", "FP32", (RESULTS,))
        self._models = MappingProxyType({"picture": ModelInfo("picture", "none", (given,), (result,), True)})
        self._outputs: dict[str, object] = {"output": np.zeros(RESULTS, np.float32)}
        self._calls = 0

    def models(self) -> Any:
        return self._models

    def body(self, model: str, nbytes: int, priority: int = 0, generation: int = 0) -> Memory:
        return Memory(nbytes)

    def crowded(self) -> bool:
        return False

    def claims(self, model: str, priority: int, who: object = None) -> int:
        return priority

    def let_in(self, model: str, priority: int, who: object) -> None:
        pass

    def infer(self, call: Call, done: Callable[[Answer | Exception], None]) -> Callable[[], object]:
        self._calls += 1
        done(Answer("ok", self._outputs, parameters={"dovetail_request": self._calls}))
        return list


async def run(part: str) -> None:
    """Serve until the process is ended."""
    if part == "http":
        server = await serve(Echo(), "127.0.0.1", 0, DEFAULT_LIMITS)
    else:
        server = await oip.start(AtOnce())  # type: ignore[arg-type]
    print(server.port, 0, flush=True)
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
