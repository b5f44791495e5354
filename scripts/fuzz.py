"""Feed changed requests to whatever reads bytes of clients: framing, connections, tensors, messages, compression.

    python scripts/fuzz.py --inputs 1000000 --seed 7

Every input is a sound request that was changed in a few places. An input is survived if it is answered, or refused
with a reason. It is a failure if something else is raised, a server error is answered, it takes more than two
seconds of the processor, or memory that was lent for it is not given back. At the end the process may not have grown
by more than 64 MiB. A failure is written as a file to --keep, and the exit code is 1.

There is no coverage to guide it. Requests are changed by what is known of the formats: numbers, lengths, brackets and
bytes with a meaning.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import random
import re
import resource
import signal
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.errors import BadRequest, DovetailError
from dovetail.serve.backend import BODY_ALIGN_BYTES, Answer, Call, ModelInfo
from dovetail.serve.compression import inflated
from dovetail.serve.connection import Connection
from dovetail.serve.framing import HttpError, Limits
from dovetail.serve.http import HttpServer
from dovetail.serve.inference import Inference
from dovetail.serve.oip import OpenInference
from dovetail.serve.oip_request import inputs_of, wanted_of
from dovetail.serve.rpc.messages import message_class
from dovetail.serve.rpc.requests import header_of, response_bytes, uploaded
from dovetail.serve.rpc.wire import split
from dovetail.workflow.graph import Port

MOST_SECONDS = 2
MOST_GROWTH_BYTES = 64 << 20
LIMITS = Limits(max_body_bytes=1 << 20, max_head_bytes=4096)
MODELS = {
    name: ModelInfo(name, "dovetail_workflow", inputs, inputs, True)
    for name, inputs in {
        "numbers": (Port("x", "FP32", (-1, 4)),),
        "text": (Port("t", "BYTES", (1,)),),
        "mixed": (Port("p", "UINT8", (-1, 3)), Port("w", "BYTES", (-1,)), Port("f", "BOOL", (2,))),
        "whole": (Port("i", "INT64", (2,)), Port("h", "FP16", (2,))),
    }.items()
}


class Body:
    """Memory on the heap; all that was lent is counted."""

    lent = 0

    def __init__(self, nbytes: int) -> None:
        raw = np.zeros(nbytes + BODY_ALIGN_BYTES, np.uint8)
        self.view = raw[-raw.ctypes.data % BODY_ALIGN_BYTES :][:nbytes].data
        Body.lent += 1

    def ref(self, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]) -> object:
        """An array."""
        return np.frombuffer(self.view, dtype, nbytes // np.dtype(dtype).itemsize, offset).reshape(shape)

    def release(self) -> None:
        """Given back."""
        Body.lent -= 1


class Backend:
    """Answers at once with what it was given."""

    def body(self, model: str, nbytes: int, priority: int = 0, generation: int = 0) -> Body:
        """Always room."""
        assert nbytes < 8 << 20, nbytes
        return Body(nbytes)

    def crowded(self) -> bool:
        """So that the class is looked for in the beginning of a body, too."""
        return True

    def claims(self, model: str, priority: int, who: Any = None) -> int:
        """Anybody may."""
        return priority

    def let_in(self, model: str, priority: int, who: Any) -> None:
        """Everybody."""

    def slices(self) -> list[dict[str, Any]]:
        """None."""
        return []

    def change_slice(self, client: str, wanted: Any) -> dict[str, Any]:
        """Nobody has one."""
        raise BadRequest("there is no such client")

    def models(self) -> Mapping[str, ModelInfo]:
        """All."""
        return MODELS

    def live(self) -> bool:
        """Yes."""
        return True

    ready = live

    def statistics(self, model: str | None) -> list[dict[str, Any]]:
        """None."""
        return []

    def metrics(self, http: list[Any]) -> str:
        """None."""
        return ""

    def infer(self, call: Call, done: Callable[[Answer | Exception], None]) -> Callable[[], object]:
        """An echo; that of BYTES is read once more."""
        done(Answer("ok", dict(call.inputs)))
        return lambda: None


class Transport(asyncio.Transport):
    """A client that takes whatever it is sent."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """None."""

    def write(self, data: Any) -> None:
        """Keep it."""
        self.sent += data

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.closing

    def close(self) -> None:
        """Over."""
        self.closing = True

    abort = close

    def write_eof(self) -> None:
        """Half over."""

    def pause_reading(self) -> None:
        """Nobody sends."""

    resume_reading = pause_reading


def http(head: str, body: bytes = b"", length: bool = True) -> bytes:
    """A request."""
    more = f"Content-Length: {len(body)}\r\n" if length and body else ""
    return f"{head}\r\nHost: localhost\r\n{more}\r\n".encode() + body


def posted(model: str, header: dict[str, Any] | bytes, raw: bytes = b"", more: str = "") -> bytes:
    """An inference."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return http(
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nInference-Header-Content-Length: {len(text)}{more}", text + raw
    )


X = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
MIXED = [
    {"name": "p", "datatype": "UINT8", "shape": [1, 3], "parameters": {"binary_data_size": 3}},
    {"name": "w", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 12}},
    {"name": "f", "datatype": "BOOL", "shape": [2], "data": [True, False]},
]
MIXED_RAW = b"abc" + b"\x02\0\0\0hi" + b"\x02\0\0\0yo"
TEXT = {"name": "t", "datatype": "BYTES", "shape": [1], "data": ["\u00e9\\u00e9"]}
INFERENCES: list[tuple[str, dict[str, Any], bytes]] = [
    ("numbers", {"inputs": [X | {"data": [1, 2, 3, 4.5]}], "parameters": {"priority": 1, "timeout": 7}}, b""),
    ("numbers", {"inputs": [X | {"parameters": {"binary_data_size": 16}}], "id": "7"}, bytes(16)),
    ("mixed", {"inputs": MIXED, "outputs": [{"name": "w", "parameters": {"binary_data": True}}]}, MIXED_RAW),
    ("mixed", {"inputs": MIXED, "parameters": {"binary_data_output": True, "slo_ms": 1.5}}, MIXED_RAW),
    ("text", {"inputs": [TEXT], "parameters": {"tenant": "blue"}}, b""),
]
REQUESTS = [
    http("GET /v2 HTTP/1.1"),
    http("GET /openapi.json HTTP/1.1\r\nAccept-Encoding: gzip"),
    http("POST /v2/repository/index HTTP/1.1", b'{"ready":true}'),
    *(posted(*each) for each in INFERENCES),
    http("POST /v2/models/text/infer HTTP/1.1\r\nContent-Type: image/png", b"\x89PNG\r\n"),
    http("POST /v2/models/text/infer HTTP/1.1\r\nInference-Header-Content-Length: 0", b"text"),
    http("POST /v2/models/numbers/infer HTTP/1.1\r\nTransfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n", False),
    http("POST /v2/models/numbers/infer HTTP/1.1\r\nExpect: 100-continue\r\nConnection: close", b"{}"),
]
Request = message_class("ModelInferRequest")
MESSAGES = [
    Request(
        model_name="mixed",
        inputs=[
            {"name": "p", "datatype": "UINT8", "shape": [1, 3]},
            {"name": "w", "datatype": "BYTES", "shape": [2]},
            {"name": "f", "datatype": "BOOL", "shape": [2], "contents": {"bool_contents": [True, False]}},
        ],
        raw_input_contents=[b"abc", MIXED_RAW[3:]],
        parameters={"priority": {"int64_param": 1}, "slo_ms": {"double_param": 1.5}},
    ),
    Request(
        model_name="whole",
        id="7",
        inputs=[
            {"name": "i", "datatype": "INT64", "shape": [2], "contents": {"int64_contents": [1, -1]}},
            {"name": "h", "datatype": "FP16", "shape": [2]},
        ],
        outputs=[{"name": "h", "parameters": {"shared_memory_region": {"string_param": "r"}}}],
        raw_input_contents=[b"\0<\0<"],
    ),
]
WORDS = [
    *(
        b"\r\n",
        b"\r\n\r\n",
        b":",
        b",",
        b"[",
        b"]",
        b"{",
        b"}",
        b'"',
        b"\\u0000",
        b"\\ud800",
        b"\0",
        b"\xff",
        b"\xff\xff\xff\xff",
    ),
    *(b"-1", b"0", b"1e999", b"2147483647", b"4294967296", b"9223372036854775807", b"18446744073709551616", b"NaN"),
    *(b"chunked", b"gzip", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"ffffffff\r\n", b"[[[[[[[["),
    *(b"BYTES", b"FP16", b"BOOL", b"null", b"true", b"binary_data_size", b"shared_memory_region", b"priority"),
    *(b"\x3a\x80\x80\x80\x80\x10", b"\x80" * 9 + b"\x01", b"\x0b\x0c", b"\x1a\x00"),
]


def changed(data: bytes, dice: random.Random) -> bytes:
    """A few places are different."""
    out = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 5))):
        at = dice.randrange(len(out) + 1)
        match dice.randrange(7):
            case 0 if out:
                out[at % len(out)] ^= 1 << dice.randrange(8)
            case 1:
                out[at:at] = dice.choice(WORDS)
            case 2:
                out[at : at + dice.randrange(1, 9)] = dice.choice(WORDS)
            case 3:
                del out[at : at + dice.randrange(1, 20)]
            case 4:
                out[at:at] = out[at : at + dice.randrange(1, 30)] * dice.randrange(1, 4)
            case 5:
                out[at:at] = dice.randbytes(dice.randrange(1, 9))
            case _:
                del out[at:]
                out += data[dice.randrange(len(data)) :]
    return bytes(out)


class Fuzzer:
    """The targets, and what is wrong with an answer."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        inference = Inference(Backend())
        self._server = HttpServer(OpenInference(inference, LIMITS.max_body_bytes), LIMITS)
        self._server.date = "now"
        self.outcomes: Counter[str] = Counter()

    def _request(self) -> bytes:
        """One that is changed anywhere, or one whose lengths are still right."""
        dice = self._dice
        if dice.random() < 0.15:
            return dice.choice(REQUESTS)
        if dice.random() < 0.4:
            return changed(dice.choice(REQUESTS), dice)
        model, header, raw = dice.choice(INFERENCES)
        text = json.dumps(header).encode()
        text, raw = (changed(text, dice), raw) if dice.random() < 0.7 or not raw else (text, changed(raw, dice))
        return posted(model, text, raw, dice.choice(("", "", "\r\nAccept-Encoding: gzip")))

    async def connection(self) -> bytes:
        """One to three requests on a connection, in pieces of any size."""
        dice = self._dice
        data = b"".join(self._request() for _ in range(dice.choice((1, 1, 1, 2, 3))))
        self.input = data
        connection, transport = Connection(self._server, "client"), Transport()
        connection.connection_made(transport)
        at = 0
        while at < len(data) and not transport.closing:
            room = connection.get_buffer(-1)
            taken = min(len(room), len(data) - at, dice.choice((1, 7, 100, 5000)))
            if not taken:
                break
            room[:taken] = data[at : at + taken]
            at += taken
            connection.buffer_updated(taken)
        connection.connection_lost(None)
        while self._server.handling:  # what was compressed is unpacked by a thread
            await asyncio.sleep(0)
        for line in re.findall(rb"HTTP/1\.1 (\d{3}) ", transport.sent):
            self.outcomes[f"HTTP {line.decode()}"] += 1
        assert b"HTTP/1.1 500" not in transport.sent, bytes(transport.sent[:500])
        left = self._server.chunked_bytes, self._server.bodies.unreceived_bytes
        assert left == (0, 0), f"{left} bytes are still counted"
        return data

    async def message(self) -> bytes:
        """A message of gRPC, up to its answer."""
        self.input = data = changed(self._dice.choice(MESSAGES).SerializeToString(), self._dice)
        upload = None
        try:
            head, raw = split(data)
            assert len(head) + sum(map(len, raw)) <= len(data)
            try:
                message = Request.FromString(head)
            except Exception:
                self.outcomes["gRPC: not a message"] += 1
                return data
            info = MODELS.get(message.model_name) or MODELS["mixed"]
            header, tensors = header_of(message, raw)
            upload = uploaded(Backend(), info, tensors, 0)
            call = Call(info.name, inputs_of(info, header, upload))
            wanted = wanted_of(info, header)
            Inference(Backend()).begin(upload, call, wanted, True, self._answered)
        except (DovetailError, HttpError):
            self.outcomes["gRPC: refused"] += 1
        finally:
            if upload is not None:
                upload.release()
        return data

    def _answered(self, outcome: Any) -> None:
        if isinstance(outcome, Exception):
            assert isinstance(outcome, HttpError) and outcome.status < 500, outcome
            self.outcomes["gRPC: refused"] += 1
        else:
            message_class("ModelInferResponse").FromString(response_bytes(outcome))
            self.outcomes["gRPC: answered"] += 1

    async def compressed(self) -> bytes:
        """A compressed body."""
        coding = self._dice.choice(("gzip", "deflate"))
        packed = (gzip.compress if coding == "gzip" else zlib.compress)(self._dice.choice(REQUESTS) * 3, 1)
        self.input = data = changed(packed, self._dice)
        try:
            found = inflated(memoryview(data), coding, 4096)
            assert len(found) <= 4096
            self.outcomes["compressed: unpacked"] += 1
        except HttpError:
            self.outcomes["compressed: refused"] += 1
        return data


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def fuzz(inputs: int, seed: int, keep: Path | None = None, say: Callable[[str], object] = print) -> int:
    """So many inputs; how many failed."""
    dice = random.Random(seed)
    fuzzer = Fuzzer(dice)
    targets = [fuzzer.connection] * 4 + [fuzzer.message] * 4 + [fuzzer.compressed] * 2
    failed = 0
    slowest, grown_from, began = 0.0, 0, time.perf_counter()

    def hangs(*_: object) -> None:
        raise TimeoutError(f"longer than {MOST_SECONDS} s of the processor")

    before = signal.signal(signal.SIGPROF, hangs)  # counts no time in which others had the processor
    for number in range(inputs):
        fuzzer.input = b""
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        start = time.process_time()
        try:
            await dice.choice(targets)()
            assert Body.lent == 0, f"{Body.lent} blocks of memory are still lent"
        except Exception:
            failed += 1
            say(f"input {number} failed: {fuzzer.input!r}\n{traceback.format_exc()}")
            Body.lent = 0
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{seed}-{number}").write_bytes(fuzzer.input)
        signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, time.process_time() - start)
        if number % 1000 == 999:
            await asyncio.sleep(0)  # what was put off
        if number == inputs // 10:
            grown_from = _rss()
    signal.signal(signal.SIGPROF, before)
    growth = _rss() - grown_from
    say(
        f"{inputs} inputs, seed {seed}: {failed} failed, {time.perf_counter() - began:.0f} s, slowest {slowest:.3f} s"
    )
    say(f"memory: {_rss() >> 20} MiB at the end, {growth / 2**20:+.1f} MiB since the first tenth")
    for name, count in sorted(fuzzer.outcomes.items()):
        say(f"  {name}: {count}")
    return failed + (growth > MOST_GROWTH_BYTES)


def main() -> int:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for inputs that fail")
    args = parser.parse_args()
    return 1 if asyncio.run(fuzz(args.inputs, args.seed, args.keep)) else 0


if __name__ == "__main__":
    sys.exit(main())
