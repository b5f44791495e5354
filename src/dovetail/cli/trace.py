"""`dovetail trace`: the lanes of a device, kernel by kernel: a pair of models simulated, or a live gate's log.

Writes lanes.png, lanes.json.gz for ui.perfetto.dev and kernels.jsonl, and prints what the lanes add up to. The same
arguments give the same files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..arbiters import ARBITERS, find_arbiter
from ..errors import DovetailError
from ..extras import has, load
from ..profile.catalogue.kernels import sequence
from ..record.kernels import KernelRecord, decode_records, encode_record
from ..tools.lanes import Lane, draw_lanes, lanes, write_lanes
from ..tools.table import results_console
from ..units import MS, format_ns, parse_duration
from .flags import refuse
from .reading import new_table, print_json, writing

__all__ = ["configure", "run"]

#: Flags of a simulation.
_SIMULATED = ("--high", "--low", "--policy", "--host", "--tasks", "--seed", "--ageing")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("--high", metavar="MODEL", help="kernel sequence of the high class (resnet50)")
    parser.add_argument("--low", metavar="MODEL", help="kernel sequence of the low class (bert-large)")
    parser.add_argument("--policy", metavar="NAME", help=f"one of {', '.join(ARBITERS)} (default: ours)")
    parser.add_argument("--host", metavar="NAME", help="how high launches: ahead, host, sync (default: sync)")
    parser.add_argument("--tasks", type=int, metavar="N", help="tasks of the high class (3)")
    parser.add_argument("--seed", type=int, metavar="N", help="which sequences (1)")
    parser.add_argument("--ageing", metavar="TIME", help="give a low task a start at least this often, e.g. 10ms")
    parser.add_argument("--log", type=Path, metavar="FILE", help="draw this log of kernels instead of simulating")
    parser.add_argument("--ms", type=float, metavar="N", default=0.0, help="how much of it the picture shows")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("out", "trace"), help="default: out/trace")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Simulate or read, draw, and sum up; the exit code."""
    drawn = has("matplotlib")
    if args.log is not None:
        refuse(args, *_SIMULATED, because="it is for a simulation, and --log draws what was recorded; give one")
        records, title = _read(args.log), args.log.name
    else:
        records, title = _simulate(args)
    if not records:
        raise DovetailError("there is no kernel to draw")
    with writing(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
        if drawn:
            draw_lanes(records, args.out / "lanes.png", title=title, length_ns=round(args.ms * MS))
        write_lanes(records, args.out / "lanes.json.gz", title=title)
        if args.log is None:
            (args.out / "kernels.jsonl").write_bytes(b"".join(map(encode_record, records)))
    if drawn:
        _say(f"drew {args.out}/lanes.png; {args.out}/lanes.json.gz is for ui.perfetto.dev")
    else:
        _say(f"wrote {args.out}/lanes.json.gz, which is for ui.perfetto.dev")
        _say("no lanes.png: it needs matplotlib, which is not installed; run: pip install 'dovetail[plot]'")
    found = lanes(records)
    if args.json:
        print_json(found)
    else:
        _show(found, max(r.end_ns for r in records) - min(r.begin_ns for r in records))
    return 0


def _say(text: str) -> None:
    print(f"dovetail trace: {text}", file=sys.stderr)


def _simulate(args: argparse.Namespace) -> tuple[list[KernelRecord], str]:
    """What runs on the lab's simulated device, and a title for it."""
    policy, host = args.policy or "ours", args.host or "sync"
    tasks, seed = 3 if args.tasks is None else args.tasks, 1 if args.seed is None else args.seed
    find_arbiter(policy)
    if host not in (hosts := load("lab.kernels.hosts:HOSTS")):
        raise DovetailError(f"there is no host {host!r}; there are: {', '.join(hosts)}")
    if tasks < 1:
        raise DovetailError(f"--tasks {tasks}: at least one task is needed")
    ageing_ns = 0 if args.ageing is None else parse_duration(args.ageing, "--ageing")
    high, low = sequence(args.high or "resnet50").name, sequence(args.low or "bert-large").name
    world = "lab.experiments.fikit_world"
    job = load(f"{world}:Job")(high, low, host, policy, seed, tasks, ageing_ns=ageing_ns)
    records: list[KernelRecord] = load(f"{world}:record")(job)
    return records, f"{policy}: {high} before {low}, host {host!r}, seed {seed}"


def _read(path: Path) -> list[KernelRecord]:
    try:
        with path.open("rb") as file:
            return list(decode_records(file))
    except OSError as error:
        raise DovetailError(f"cannot read {path}: {error.strerror}") from None
    except DovetailError as error:
        raise DovetailError(f"{path}: {error}") from None


def _show(found: list[Lane], whole_ns: int) -> None:
    table = new_table("lane", ">class", ">tasks", ">kernels", ">filled", ">busy", ">longest kernel", ">longest wait")
    for lane in found:
        wait = "-" if lane.worst_wait_ns < 0 else format_ns(lane.worst_wait_ns)
        cells = (lane.priority, lane.tasks, lane.kernels, lane.filled)
        busy = f"{lane.busy_ns / whole_ns:.0%}"
        table.add_row(lane.name, *(f"{c:,}" for c in cells), busy, format_ns(lane.longest_kernel_ns), wait)
    results_console().print(table)
