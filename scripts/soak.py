"""`make soak`: a server at 70 % of what the machine can do, for half an hour. Do memory or latency drift?

    python scripts/soak.py --minutes 30 --out docs/results/soak.md

The run is made of windows. Each begins with nothing to do: the workflow is run in a bare loop, in this process, which
says how fast the machine is now. Then the capacity is measured, with requests that always wait. Then requests come at
random (Poisson) at 70 % of it, whether the last one is answered or not. So other work on the machine changes the
load, and is not taken for a drift of the server: latencies count in times of the bare loop of the same minute. Every
few seconds the memory and descriptors of all processes are noted. Exit code 1: something drifted. What drifts is
judged by the last third of the windows beside the second one; the first is for warming up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dovetail.workflow.app import load_target

HOST = "127.0.0.1"
LOAD = 0.7
SAMPLE_SECONDS = 2.0
#: Requests that always wait while the capacity is measured, and the pause of one that was refused.
WAITING, COME_BACK_SECONDS = 4, 0.05
#: A window, and what of it goes to the bare loop and to the capacity. A short run has six windows all the same.
WINDOW_SECONDS, BARE_SECONDS, CAPACITY_SECONDS, LEAST_WINDOWS = 60.0, 1.5, 5.0, 6
#: What may grow from one third to the next: memory by this part and so many bytes, latency and the work for an
#: answer, in times of the bare loop, by this part and so many bare loops, refusals by this part of the requests. [our
#: choice: what the collector and the allocator move without a leak, and what medians over ten windows scatter]
MEMORY_PART, MEMORY_BYTES = 0.05, 16 << 20
LATENCY_PART, LATENCY_LOOPS, REFUSED_PART = 0.25, 0.25, 0.01


class Window(NamedTuple):
    """What was measured in a minute: all times in ms, rates per second."""

    bare_ms: float
    capacity: float
    rate: float
    latencies: list[float]
    statuses: Counter[int]


class Client:
    """Keep-alive connections to one model."""

    def __init__(self, port: int, path: str, body: bytes) -> None:
        self._port = port
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that is free; the server closes those that nobody uses for long."""
        while self._free:
            reader, writer = self._free.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(HOST, self._port)

    async def ask(self) -> int:
        """The status of one request; 0 if there was no answer."""
        reader, writer = await self._connection()
        try:
            writer.write(self._request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
            await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            return 0
        if b"connection: close" in head.lower():
            writer.close()
        else:
            self._free.append((reader, writer))
        return int(head.split(b" ", 2)[1])


def processes(pid: int) -> dict[int, str]:
    """The server and its children, with a name for each."""
    found = {pid: "front"}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found[int(child)] = f"worker {len(found)}"
    return found


def sample(pid: int) -> dict[str, float]:
    """Memory of its own of each process, and descriptors of the front."""
    values: dict[str, float] = {"descriptors": len(os.listdir(f"/proc/{pid}/fd"))}
    for process, name in processes(pid).items():
        text = Path(f"/proc/{process}/status").read_text()
        values[name] = int(re.search(r"RssAnon:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]
    return values


async def capacity(client: Client, seconds: float) -> float:
    """Answers per second with a few requests always waiting."""
    end = time.monotonic() + seconds
    answered = 0

    async def work() -> None:
        nonlocal answered
        while time.monotonic() < end:
            status = await client.ask()
            answered += status == 200
            if status != 200:  # it was told to come back
                await asyncio.sleep(COME_BACK_SECONDS)

    await asyncio.gather(*(work() for _ in range(WAITING)))
    return answered / seconds


def bare_ms(once: Callable[[], object], seconds: float) -> float:
    """The median time of the workflow in a bare loop."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        began = time.perf_counter()
        once()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


async def offered(
    client: Client, rate: float, seconds: float, rng: random.Random
) -> tuple[list[float], Counter[int]]:
    """Requests at random times: the ms of those that were answered, from when each was due, and all statuses."""
    latencies: list[float] = []
    statuses: Counter[int] = Counter()
    began = time.monotonic()
    tasks: set[asyncio.Task[None]] = set()

    async def one(due_s: float) -> None:
        status = await client.ask()
        statuses[status] += 1
        if status == 200:
            latencies.append((time.monotonic() - began - due_s) * 1000)

    due_s = rng.expovariate(rate)
    while due_s < seconds:
        await asyncio.sleep(max(0.0, began + due_s - time.monotonic()))
        task = asyncio.ensure_future(one(due_s))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due_s += rng.expovariate(rate)
    await asyncio.gather(*tasks)
    return latencies, statuses


async def soak(
    client: Client, once: Callable[[], object], minutes: float, pid: int, seed: int
) -> tuple[list[Window], list[dict[str, float]]]:
    """All windows, and samples of memory."""
    samples: list[dict[str, float]] = []
    rng = random.Random(seed)
    count = max(LEAST_WINDOWS, round(minutes * 60 / WINDOW_SECONDS))
    part = min(1.0, minutes * 60 / count / WINDOW_SECONDS)

    async def watch() -> None:
        while True:
            samples.append(sample(pid))
            await asyncio.sleep(SAMPLE_SECONDS * part)

    windows: list[Window] = []
    watching = asyncio.ensure_future(watch())
    before_ms = bare_ms(once, BARE_SECONDS * part)
    for number in range(count):
        found = await capacity(client, CAPACITY_SECONDS * part)
        rate = max(1.0, found * LOAD)
        left_s = (WINDOW_SECONDS - BARE_SECONDS - CAPACITY_SECONDS) * part
        latencies, statuses = await offered(client, rate, left_s, rng)
        after_ms = bare_ms(once, BARE_SECONDS * part)
        windows.append(Window((before_ms + after_ms) / 2, found, rate, latencies, statuses))
        before_ms = after_ms
        print(
            f"{number + 1} of {count}: bare {after_ms:.1f} ms, capacity {found:.0f}/s, {len(latencies)} answered, "
            f"p50 {np.percentile(latencies or [0], 50):.1f} ms, {dict(statuses)}",
            file=sys.stderr,
        )
    watching.cancel()
    return windows, samples


def thirds(values: list[Any]) -> list[list[Any]]:
    """In three parts of about the same length."""
    cuts = [round(len(values) * i / 3) for i in range(4)]
    return [values[a:b] for a, b in pairwise(cuts)]


def _percentile(q: float, window: Window) -> float:
    return float(np.percentile(window.latencies or [0.0], q))


def _in_loops(q: float, window: Window) -> float:
    return _percentile(q, window) / window.bare_ms


def judge(windows: list[Window], samples: list[dict[str, float]]) -> tuple[list[str], list[str]]:
    """Rows of a table, and what has drifted."""
    rows, drifted = [], []

    def row(what: str, value: Callable[[Window], float], digits: int) -> list[float]:
        parts = [statistics.median(value(window) for window in part) for part in thirds(windows)]
        rows.append(f"| {what} | " + " | ".join(f"{p:.{digits}f}" for p in parts) + " |")
        return parts

    row("bare loop, ms", lambda w: w.bare_ms, 1)
    row("capacity, answers per second", lambda w: w.capacity, 0)
    row("requests per second", lambda w: w.rate, 0)
    work = row(
        "bare loops in the time of an answer, at capacity", lambda w: 1000 / max(0.1, w.capacity) / w.bare_ms, 2
    )
    if work[2] > work[1] * (1 + LATENCY_PART):
        drifted.append(f"an answer took {work[1]:.2f} bare loops, then {work[2]:.2f}")
    for q in (50, 99):
        at_q = partial(_percentile, q)
        row(f"latency p{q}, ms", at_q, 1)
        parts = row(f"latency p{q}, bare loops", partial(_in_loops, q), 2)
        if parts[2] > parts[1] * (1 + LATENCY_PART) + LATENCY_LOOPS:
            drifted.append(f"latency p{q} grew from {parts[1]:.2f} to {parts[2]:.2f} bare loops")
    refused = []
    for part in thirds(windows):
        statuses = sum((window.statuses for window in part), Counter[int]())
        refused.append(statuses[429] / max(1, statuses.total()))
    rows.append("| refused, % | " + " | ".join(f"{100 * p:.2f}" for p in refused) + " |")
    if refused[2] > refused[1] + REFUSED_PART:
        drifted.append(f"{refused[1]:.1%} were refused, then {refused[2]:.1%}")
    for name in samples[0]:
        parts = [statistics.median(each[name] for each in part if name in each) for part in thirds(samples)]
        scale, unit = (1, "") if name == "descriptors" else (1 << 20, " memory, MiB")
        rows.append(f"| {name}{unit} | " + " | ".join(f"{p / scale:.1f}" for p in parts) + " |")
        room = 2 if name == "descriptors" else parts[1] * MEMORY_PART + MEMORY_BYTES
        if parts[2] > parts[1] + room:
            drifted.append(f"{name} grew from {parts[1] / scale:.1f} to {parts[2] / scale:.1f}{unit}")
    return rows, drifted


async def run(args: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "dovetail", "serve", args.target, "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    port = 0
    while not port and (line := await process.stderr.readline()):
        if line.startswith(b"{"):
            port = json.loads(line)["port"]
    reading = asyncio.ensure_future(process.stderr.read())
    if not port:
        raise SystemExit("the server did not start")
    pixels = np.zeros((args.side, args.side, 3), np.uint8)
    workflow = load_target(args.target).workflows[args.model]
    workflow.local(pixels)  # its model is there from now on
    tensor = {"name": "image", "datatype": "UINT8", "shape": list(pixels.shape)}
    head = json.dumps({"inputs": [{**tensor, "data": pixels.ravel().tolist()}]}).encode()
    client = Client(port, f"/v2/models/{args.model}/infer", head)
    try:
        await capacity(client, 3.0)
        windows, samples = await soak(client, lambda: workflow.local(pixels), args.minutes, process.pid, args.seed)
    finally:
        process.send_signal(signal.SIGTERM)
        code = await process.wait()
        await reading
    rows, drifted = judge(windows, samples)
    statuses = sum((window.statuses for window in windows), Counter[int]())
    if code:
        drifted.append(f"the server ended with exit code {code}")
    if odd := {status: count for status, count in statuses.items() if status not in (200, 429)}:
        drifted.append(f"answers that are neither 200 nor 429: {odd}")
    text = report(args, len(windows), statuses, rows, drifted)
    print(text)
    if args.out is not None:
        args.out.write_text(text)
    return 1 if drifted else 0


def report(args: argparse.Namespace, count: int, statuses: Counter[int], rows: list[str], drifted: list[str]) -> str:
    """A page."""
    when = time.strftime("%-d %B %Y", time.gmtime())
    answers = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    verdict = "**Nothing drifted.**" if not drifted else "**Drifted:** " + "; ".join(drifted) + "."
    lines = [
        "# A long run",
        "",
        f"{verdict} `python scripts/soak.py --minutes {args.minutes:g} --seed {args.seed}`, {when}, "
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}.",
        "",
        f"`dovetail serve {args.target}` and its client are on the same machine. There are {count} windows. Each",
        f"begins with a bare loop of the workflow and a measurement of the capacity, with {WAITING} requests always",
        f"waiting. Then requests come at {LOAD:.0%} of that, at random, whether others were answered or not.",
        "",
        f"Answers: {answers}.",
        "",
        "| | first third | second third | last third |",
        "|---|---|---|---|",
        *rows,
        "",
        "Each figure is the median of the windows of a third. Latency counts from when a request was due. Memory is",
        "what a process has for itself, without shared memory and files.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="examples.quickstart:app")
    parser.add_argument("--model", default="which_way_up", help="a workflow with one image as its input")
    parser.add_argument("--side", type=int, default=32, help="pixels of an image, in each direction")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report there, too")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
