"""`make soak`: a server at 70 % of what the machine can do, for half an hour. Do memory or latency drift?

    python scripts/soak.py --minutes 30 --out docs/results/soak.md

The capacity is measured first, with requests that always wait. Then requests come at random (Poisson), whether the
last one is answered or not. Every few seconds the memory and descriptors of all processes are noted. Exit code 1:
something drifted. What drifts is judged by the last third beside the second one; the first is for warming up.
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
from pathlib import Path

import numpy as np

HOST = "127.0.0.1"
LOAD = 0.7
SAMPLE_SECONDS = 2.0
#: Requests that always wait while the capacity is measured, and the pause of one that was refused.
WAITING, COME_BACK_SECONDS = 4, 0.05
#: What may grow from one third to the next: memory by this part and so many bytes, latency by this part and so many
#: ms. [our choice: what the collector and the allocator move without a leak; and what other work on the machine does]
MEMORY_PART, MEMORY_BYTES = 0.05, 16 << 20
LATENCY_PART, LATENCY_MS = 0.25, 2.0


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


async def soak(client: Client, rate: float, seconds: float, pid: int, seed: int) -> tuple[list, list, Counter[int]]:
    """(when, ms) of answers, (when, sample), and statuses."""
    latencies: list[tuple[float, float]] = []
    samples: list[tuple[float, dict[str, float]]] = []
    statuses: Counter[int] = Counter()
    rng = random.Random(seed)
    began = time.monotonic()
    tasks: set[asyncio.Task[None]] = set()

    async def one(due_s: float) -> None:
        status = await client.ask()
        statuses[status] += 1
        if status == 200:
            latencies.append((due_s, (time.monotonic() - began - due_s) * 1000))

    async def watch() -> None:
        while True:
            samples.append((time.monotonic() - began, sample(pid)))
            await asyncio.sleep(SAMPLE_SECONDS)

    watching = asyncio.ensure_future(watch())
    due_s = 0.0
    while due_s < seconds:
        due_s += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, began + due_s - time.monotonic()))
        task = asyncio.ensure_future(one(due_s))  # its latency counts from when it was due
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    watching.cancel()
    return latencies, samples, statuses


def thirds(points: list, seconds: float) -> list[list]:
    return [[v for at, v in points if i * seconds / 3 <= at < (i + 1) * seconds / 3] for i in range(3)]


def judge(latencies: list, samples: list, seconds: float) -> tuple[list[str], list[str]]:
    """Rows of a table, and what has drifted."""
    rows, drifted = [], []
    for q in (50, 99):
        parts = [float(np.percentile(part, q)) for part in thirds(latencies, seconds)]
        rows.append(f"| latency p{q}, ms | " + " | ".join(f"{p:.1f}" for p in parts) + " |")
        if parts[2] > parts[1] * (1 + LATENCY_PART) + LATENCY_MS:
            drifted.append(f"latency p{q} grew from {parts[1]:.1f} to {parts[2]:.1f} ms")
    for name in samples[0][1]:
        parts = [statistics.median(each[name] for each in part if name in each) for part in thirds(samples, seconds)]
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
    tensor = {"name": "image", "datatype": "UINT8", "shape": list(pixels.shape)}
    head = json.dumps({"inputs": [{**tensor, "data": pixels.ravel().tolist()}]}).encode()
    client = Client(port, f"/v2/models/{args.model}/infer", head)
    try:
        await capacity(client, 3.0)
        found = await capacity(client, args.calibrate)
        rate = found * LOAD
        seconds = args.minutes * 60
        print(f"capacity {found:.0f}/s; {rate:.0f}/s for {args.minutes:g} minutes ...", file=sys.stderr)
        latencies, samples, statuses = await soak(client, rate, seconds, process.pid, args.seed)
    finally:
        process.send_signal(signal.SIGTERM)
        code = await process.wait()
        await reading
    rows, drifted = judge(latencies, samples, seconds)
    if code:
        drifted.append(f"the server ended with exit code {code}")
    if odd := {status: count for status, count in statuses.items() if status not in (200, 429)}:
        drifted.append(f"answers that are neither 200 nor 429: {odd}")
    text = report(args, found, rate, statuses, rows, drifted)
    print(text)
    if args.out is not None:
        args.out.write_text(text)
    return 1 if drifted else 0


def report(args: argparse.Namespace, found: float, rate: float, statuses: Counter, rows: list, drifted: list) -> str:
    when = time.strftime("%-d %B %Y", time.gmtime())
    answers = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    verdict = "Nothing drifted." if not drifted else "**Drifted:** " + "; ".join(drifted) + "."
    lines = [
        "# A long run",
        "",
        f"`python scripts/soak.py --minutes {args.minutes:g} --seed {args.seed}`, {when}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}.",
        "",
        f"`dovetail serve {args.target}` and its client are on the same machine.",
        f"It can answer {found:.0f} requests a second with {WAITING} always waiting.",
        f"They came at {rate:.0f} a second, {LOAD:.0%} of that, at random, whether others were answered or not.",
        "",
        f"Answers: {answers}. {verdict}",
        "",
        "| | first third | second third | last third |",
        "|---|---|---|---|",
        *rows,
        "",
        "Latency counts from when a request was due. Memory is what a process has for itself, without shared",
        "memory and files; the median of a sample every 2 s.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="examples.quickstart:app")
    parser.add_argument("--model", default="which_way_up", help="a workflow with one image as its input")
    parser.add_argument("--side", type=int, default=32, help="pixels of an image, in each direction")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--calibrate", type=float, default=10.0, metavar="S", help="how long the capacity is measured"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report there, too")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
