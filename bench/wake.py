"""How long does a server that sleeps without a worker take to answer, with a spare worker and without?

    python bench/wake.py [--rounds 4] [--app examples.shares:two] [--json]

Two servers of the same application (`--workers 0..1 --slices --zero-after 1`), one with a spare worker and one
without, sleep at the same time. Then one request is sent to each, one after the other, and first to the other one in
the next round. Shown is the time from the request to its answer, and that of a second request right after it. The
memory is that of all processes that wait: the spare's, at rest (proportional, `Pss`).

Results go to stdout, progress to stderr. Needs a quiet machine, which is idle most of the time. Results:
docs/results/scaling.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dovetail.profile.samples import inputs_of
from dovetail.serve.launch import Options, Served, launch
from dovetail.units import SECOND
from dovetail.workflow.app import App, load_target
from weights import pss_bytes

#: A device is not needed for 15 s before it goes, and a spare is started some seconds later.
ASLEEP_SECONDS, SPARE_SECONDS = 60.0, 8.0
PATIENCE_NS = 120 * SECOND
SPARES = {"with": 1, "without": 0}


async def ask(served: Served, name: str, values: list[Any]) -> float:
    """Seconds until the answer."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def done(_: int, result: Any) -> None:
        result.release()
        ended.set_result(result.outcome)

    begin = time.monotonic()
    served.system.submit(name, values, done, objective_ns=PATIENCE_NS)
    outcome = await ended
    assert outcome == "ok", outcome
    return time.monotonic() - begin


async def asleep(servers: dict[str, Served]) -> None:
    give_up = time.monotonic() + ASLEEP_SECONDS
    while any(s.system.controller.workers for s in servers.values()):
        assert time.monotonic() < give_up, "a server does not go to sleep"
        await asyncio.sleep(0.2)
    await asyncio.sleep(SPARE_SECONDS)


async def measure(app: App, target: str, rounds: int) -> dict[str, Any]:
    name = next(iter(app.workflows))
    values, trouble = inputs_of(app.workflows[name])
    assert values is not None, trouble
    found: dict[str, Any] = {way: {"first_s": [], "second_s": [], "waiting_bytes": 0} for way in SPARES}
    servers: dict[str, Served] = {}
    try:
        for way, spares in SPARES.items():
            options = Options(
                port=0, workers=0, most_workers=1, spare_workers=spares, slices=True, zero_s=1, dashboard=False
            )
            print(f"starting the server {way} a spare worker", file=sys.stderr, flush=True)
            servers[way] = await launch(app, target, options)
        for number in range(rounds):
            print(f"round {number + 1}: both fall asleep", file=sys.stderr, flush=True)
            for served in servers.values():
                await ask(served, name, values)
            await asleep(servers)
            for way in list(SPARES) if number % 2 else reversed(SPARES):
                served, row = servers[way], found[way]
                spares = served.system.fleet.spares
                row["waiting_bytes"] = sum(pss_bytes(worker.pid) for worker in spares.workers.values())
                row["first_s"].append(await ask(served, name, values))
                row["second_s"].append(await ask(served, name, values))
    finally:
        for served in servers.values():
            await served.stop(10.0)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--app", default="examples.shares:two")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = asyncio.run(measure(load_target(args.app), args.app, args.rounds))
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    for way, row in found.items():
        first, second = (
            f"{statistics.median(row[key]):.3f} s ({min(row[key]):.3f}-{max(row[key]):.3f})"
            for key in ("first_s", "second_s")
        )
        print(f"{way:8} first {first}  second {second}  waiting {row['waiting_bytes'] / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
