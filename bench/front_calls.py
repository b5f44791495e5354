"""Which calls of functions does one request take, by part? Counts do not depend on how busy the machine is.

    python bench/front_calls.py [--connections N ...] [--requests N] [--functions N] [--options ...]

The server and the tiny model of `front.py`, closed loop over so many keep-alive connections. Front and worker count
their calls with `cProfile`, built-in functions included (`_counting`). A part is a set of files; a built-in function
counts for whoever calls it. Beside the counts stands the part's share of the time, which counting itself distorts.
`--functions` lists the functions that take most of it.
"""

from __future__ import annotations

import argparse
import os
import pstats
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from _clients import Connections
from _serverproc import Server, serving
from front import APP, BATCH, WIDTH, make_tiny

#: Part -> what the path of a file of it holds; the first that fits counts.
PARTS = {
    "asyncio": ("/asyncio/", "/selectors.py"),
    "HTTP": (
        "/serve/connection",
        "/serve/answering",
        "/serve/framing",
        "/serve/http.",
        "/serve/crowd",
        "/serve/bodies",
    ),
    "protocol": ("/dovetail/serve/",),
    "log, metrics, books": ("/record/", "/front/statistics", "/front/journal"),
    "decide": (
        "/dovetail/control/",
        "/dovetail/schedule/",
        "/dovetail/place/",
        "/dovetail/plan/",
        "/dovetail/predict/",
        "/dovetail/state/",
        "/dovetail/scale/",
        "/dovetail/profile/table",
    ),
    "device machine": ("/dovetail/device/",),
    "messages": ("/live/links/", "/front/link", "/front/messages", "/worker/link", "/worker/main", "/front/process"),
    "data in shared memory": ("/live/tensors/", "/front/memory", "/front/batches", "/front/checks"),
    "events and actions": ("/live/front/",),
    "carrying out": ("/live/worker/", "/live/kernels/", "/workflow/runners", "/onnxruntime/", "/numpy/"),
}
WARM_REQUESTS = 600


def ask(port: int, connections: int, requests: int) -> int:
    """So many answers in a closed loop."""
    clients = Connections(port, connections, shape=(WIDTH,))
    for _ in range(connections):
        clients.ask()
    got = 0
    while got < requests:
        for _ in clients.answers(None):
            got += 1
            clients.ask()
    clients.close()
    return got + connections


def counted(server: Server, folder: Path, connections: int, requests: int) -> tuple[int, dict[str, pstats.Stats]]:
    """Requests that were answered, and the calls of the front and of the worker."""
    ask(server.port, connections, WARM_REQUESTS)
    pids = {"front": server.front, "worker": server.workers[0]}
    for pid in pids.values():
        os.kill(pid, signal.SIGRTMIN)
    time.sleep(0.2)
    done = ask(server.port, connections, requests)
    found: dict[str, pstats.Stats] = {}
    for name, pid in pids.items():
        os.kill(pid, signal.SIGRTMAX)
        for _ in range(500):
            if Path(folder, f"{pid}.done").exists():
                break
            time.sleep(0.02)
        found[name] = pstats.Stats(*map(str, folder.glob(f"{pid}-*.prof")))
    return done, found


def part_of(path: str) -> str:
    return next((part for part, words in PARTS.items() if any(word in path for word in words)), "other")


def show(stats: pstats.Stats, requests: int, functions: int) -> None:
    """Calls per request, and the part of the time, by part."""
    calls: Counter[str] = Counter()
    own: Counter[str] = Counter()
    lines: list[tuple[float, float, str]] = []
    entries = stats.stats  # type: ignore[attr-defined]
    for (path, line, name), (_, count, own_s, _, callers) in entries.items():
        if "_counting" in path or name in (
            "<built-in method time.sleep>",
            "<method 'poll' of 'select.epoll' objects>",
        ):
            continue
        if path == "~":  # a built-in function is its callers'
            for (caller, *_), (n, _, spent_s, _) in callers.items():
                calls[part_of(caller)] += n
                own[part_of(caller)] += spent_s
        else:
            calls[part_of(path)] += count
            own[part_of(path)] += own_s
        lines.append((own_s, count, f"{path.rpartition('dovetail/')[2]}:{line} {name}"))
    whole = sum(own.values())
    for part, count in calls.most_common():
        print(
            f"  {part:24} {count / requests:7.1f} calls {own[part] / whole:6.1%} {own[part] / requests * 1e6:7.1f} µs"
        )
    print(f"  {'all':24} {sum(calls.values()) / requests:7.1f} calls {'':6} {whole / requests * 1e6:8.1f} µs")
    for own_s, count, name in sorted(lines, reverse=True)[:functions]:
        print(f"    {own_s / requests * 1e6:7.2f} µs {count / requests:6.2f} calls  {name}")


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--functions", type=int, default=0, help="the functions that take most")
    parser.add_argument("--keep", default="", help="a folder for the profiles")
    parser.add_argument("options", nargs="*", help="of `dovetail serve`, after --")
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    for connections in args.connections:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_tiny(folder / "network.onnx")
            counts = Path(args.keep, str(connections)) if args.keep else folder / "counts"
            counts.mkdir(parents=True)
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    [str(Path(__file__).with_name("_counting")), os.environ.get("PYTHONPATH", "")]
                ),
                "COUNTS_FOLDER": str(counts),
            }
            with serving(folder, BATCH, cpus[0], cpus[0], args.options, APP, environment) as server:
                os.sched_setaffinity(0, {cpus[-1]})
                done, found = counted(server, counts, connections, args.requests)
            for process, stats in found.items():
                print(f"{process}, {connections} connections, {done} requests")
                show(stats, done, args.functions)
                sys.stdout.flush()


if __name__ == "__main__":
    main()
