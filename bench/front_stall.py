"""How long the front's thread is held up by one legal request: the longest callback of its event loop, by request.

    PYTHONPATH=. python bench/front_stall.py

Each request is the worst of its kind that is within the bounds of docs/serve.md. The goal is 50 ms. Callbacks are
timed by CPU time of the front's thread, so that other work on the machine counts little; the least of five runs is
shown beside the most.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import numpy as np
from tests.serve.live_support import LiveServer
from tests.serve.support import Wire, infer, until

from dovetail.live.front.checks import MAX_RESULT_WEIGHT
from dovetail.serve.oip import MAX_JSON_BYTES
from dovetail.serve.tensors import MAX_JSON_ELEMENTS, MAX_TEXTS

GOAL_MS = 50.0
ROUNDS = 5


class Longest:
    """Times every callback of every loop of this process; `take` says the longest since the last time."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        plain = asyncio.events.Handle._run

        def run(handle: asyncio.Handle) -> None:
            begin = time.thread_time()
            plain(handle)
            self._longest_s = max(self._longest_s, time.thread_time() - begin)

        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        asyncio.events.TimerHandle._run = run  # type: ignore[method-assign]

    def take(self) -> float:
        longest, self._longest_s = self._longest_s, 0.0
        return longest * 1000


def body(inputs: list[dict[str, object]], data: bytes = b"", **more: object) -> tuple[bytes, int]:
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + data, len(head)


def item(first: float, **more: object) -> tuple[bytes, int]:
    return body([{"name": "x", "datatype": "FP32", "shape": [3], "data": [first] * 3}], **more)


def cases() -> list[tuple[str, str, Callable[[], tuple[bytes, int]]]]:
    def texts(binary: bool) -> tuple[bytes, int]:
        tensor: dict[str, object] = {"name": "texts", "datatype": "BYTES", "shape": [MAX_TEXTS]}
        if binary:
            return body([{**tensor, "parameters": {"binary_data_size": 4 * MAX_TEXTS}}], bytes(4 * MAX_TEXTS))
        return body([{**tensor, "data": [""] * MAX_TEXTS}])

    def rows(count: int, width: int) -> tuple[bytes, int]:
        data = np.zeros((count, width), np.float32).tobytes()
        tensor = {"name": "rows", "datatype": "FP32", "shape": [count, width]}
        return body([{**tensor, "parameters": {"binary_data_size": len(data)}}], data)

    def json_rows() -> tuple[bytes, int]:
        tensor = {"name": "rows", "datatype": "FP32", "shape": [64, MAX_JSON_ELEMENTS // 64]}
        return body([{**tensor, "data": [0.5] * MAX_JSON_ELEMENTS}])

    def parameters() -> tuple[bytes, int]:
        text = b'{"inputs":[],"parameters":{%s}}' % b",".join(b'"%06x":1' % i for i in range(MAX_JSON_BYTES // 12))
        return text, len(text)

    most = MAX_RESULT_WEIGHT - 100
    return [
        ("BYTES, empty elements, binary", "words", lambda: texts(True)),
        ("BYTES, empty elements, JSON", "words", lambda: texts(False)),
        ("numbers, JSON", "each", json_rows),
        ("parameters that nobody knows", "each", parameters),
        ("60 MB, binary", "each", lambda: rows(1000, 15_000)),
        ("fan-out of an input", "each", lambda: rows(1024, 3)),
        ("fan-out of a stage", "fan", lambda: item(1024)),
        ("a list of numbers as answer", "tree", lambda: item(most)),
        ("numbers as answer, JSON", "pixels", lambda: item(MAX_JSON_ELEMENTS)),
        ("numbers inside a document", "document", lambda: item(MAX_JSON_ELEMENTS - 1)),
        ("200 MB as answer, binary", "pixels", lambda: item(50e6, parameters={"binary_data_output": True})),
    ]


def main() -> int:
    longest = Longest()
    server = LiveServer("tests.live.bounds_app:app", device="cpu:1")
    worst = 0.0
    print(f"{'request':36} {'bytes':>10}  status  longest callback, ms (least to most of {ROUNDS})")
    try:
        for name, model, make in cases():
            data, head = make()
            found = []
            for _ in range(ROUNDS):
                until(server.clean)
                longest.take()
                with Wire(server.port) as wire:
                    wire.socket.settimeout(60)
                    request = infer(model, data, Inference_Header_Content_Length=str(head))
                    status = wire.send(request).reply("POST").status
                until(server.clean)
                found.append(longest.take())
            worst = max(worst, min(found))
            print(f"{name:36} {len(data):10}  {status}     {min(found):5.1f} to {max(found):5.1f}", flush=True)
    finally:
        server.stop()
    verdict = "met" if worst <= GOAL_MS else "missed"
    print(f"{verdict}: at most {GOAL_MS:g} ms; {worst:.1f} ms")
    return 0 if worst <= GOAL_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())
