"""What a server says of its batches beside others, and what that is worth: ours in the place of each of its rivals.

    python bench/beside.py [--arms ours none rls] [--rounds 2] [--seconds 20] [--load 2.4] [--slo-ms 100]
                            [--seed 1] [--json FILE]
    python bench/beside.py --read FILE [FILE ...]

`dovetail serve` with six real models gets requests of two classes over HTTP. Each model declares half of the device:
left to itself, the default policy gives every batch the whole of a machine with two cores, and nobody has neighbours.
The arms take turns in every round, in another order each time, and have the same requests. They differ in who says
how long a batch takes beside others, and in nothing else: ours; nobody (`interference = false`); rivals of the lab.
Before each round one more server runs in which nobody predicts. Its batches are what all arms but `none` begin with:
static rivals are fitted on them, the others go on from there. The first half of a run does not count.

Errors are of the log of the server: what was said when a batch was sent, and what it took. "Beside" are batches that
ran beside another one. Coverage is the server's own: batches within the 95 % bound of what was said when they began.
Each figure is a mean over rounds. Differences to ours are within rounds, with Student's t interval of 95 %.
It needs a quiet machine. A run takes `--seconds` and about five seconds more. `--read` shows results that were kept,
those of several files together.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dovetail.control.actions import RunBatch
from dovetail.control.events import BatchFinished
from dovetail.lab.experiment import over_seeds
from dovetail.lab.rivals.interference import RIVALS
from dovetail.record.log import LogReader

PROJECT = Path(__file__).resolve().parents[1]
#: Each model is a workflow of its own and declares half of the device, so that two run at once on two cores.
#: Answers are cut to a few numbers by a stage of Python, so that the front has little to write.
APPLICATION = """
from dovetail import App, onnx, stage, tensor, workflow
from examples import weights

@stage
def first(outputs):
    return [output.reshape(-1)[:8].copy() for output in outputs]

def flow(path, name, priority, *shape):
    model = onnx(path, name=name, batch=(1, 2, 4), share=50)

    def run(x):
        return first(model(x))

    run.__annotations__["x"] = tensor("float32", *shape)
    return workflow(slo="SLO", name=f"flow_{name}", priority=priority)(run)

app = App(
    flow(weights.page_way(), "page_way", 1, 3, 224, 224),
    flow(weights.tiny_reader(), "read", 1, 3, 48, 320),
    flow(weights.line_way(), "line_way", 2, 3, 48, 192),
    flow(weights.text_detector(), "detect", 2, 3, 320, 320),
    flow(weights.small_reader(), "read_carefully", 2, 3, 48, 320),
    flow(weights.nudity(), "nudity", 2, 224, 224, 3),
)
"""
#: Model, its class, and requests per second at a load of 1.
ASKED = (
    ("page_way", 1, 16.0), ("read", 1, 16.0), ("line_way", 2, 30.0), ("detect", 2, 8.0), ("read_carefully", 2, 6.0),
    ("nudity", 2, 6.0),
)  # fmt: skip
#: Before a server begins, by who says how long beside others. WATCHED is where batches of the first run are kept.
_NOBODY = """
import msgspec
from dovetail.cli import serve
policy = serve._policy
serve._policy = lambda args, app: msgspec.structs.replace(policy(args, app), interference=False)
"""
_WATCHER = """
import atexit, pathlib, msgspec
from dovetail import wiring
from dovetail.lab.rivals.interference import RIVALS
from dovetail.lab.rivals.interference.served import Served
watcher = Served(RIVALS["none"]())
wiring.Interference = lambda: watcher
atexit.register(lambda: pathlib.Path(WATCHED).write_bytes(msgspec.json.encode(watcher.told)))
"""
_FITTED = """
import pathlib, msgspec
from dovetail import wiring
from dovetail.predict.interference import Interference
from dovetail.lab.rivals.interference import RIVALS, Sample
from dovetail.lab.rivals.interference.served import Served
samples = msgspec.json.decode(pathlib.Path(WATCHED).read_bytes(), type=list[Sample])
if ARM == "ours":
    model = Interference()
    for s in samples:
        model.observe(s.kind, s.victim, s.solo_ns, s.duration_ns, s.beside)
else:
    rival = RIVALS[ARM]()
    rival.fit(samples)
    model = Served(rival)
wiring.Interference = lambda: model
"""
#: Boosting takes milliseconds for an answer, and a scheduler asks for many.
ARMS = ("ours", *(name for name in RIVALS if name not in ("ours", "boosting")))
WATCH = "watch"
_MAIN = "import sys\nfrom dovetail.cli import main\nsys.exit(main())\n"
_READY = re.compile(r"http://127\.0\.0\.1:(\d+)")


def _before(arm: str, watched: Path) -> str:
    """What a server does before it begins."""
    scripts = {"none": _NOBODY, WATCH: _WATCHER}
    return f"ARM, WATCHED = {arm!r}, {str(watched)!r}\n" + scripts.get(arm, _FITTED)


def run(arm: str, args: argparse.Namespace, seed: int, watched: Path) -> dict[str, Any]:
    """One server, and what became of it."""
    with tempfile.TemporaryDirectory(prefix="dovetail-beside-") as name:
        scratch = Path(name)
        (scratch / "beside_app.py").write_text(APPLICATION.replace("SLO", f"{args.slo_ms}ms"))
        paths = {**os.environ, "PYTHONPATH": f"{scratch}:{PROJECT}"}
        command = [sys.executable, "-c", _before(arm, watched) + _MAIN, "serve", "beside_app:app", "--port", "0"]
        command += ["--store", str(scratch / "store.sqlite"), "--log", str(scratch / "log"), "--no-dashboard"]
        lines = (scratch / "stderr").open("w+")
        server = subprocess.Popen(command, cwd=scratch, env=paths, stdout=lines, stderr=subprocess.STDOUT)
        try:
            port = _port(server, scratch / "stderr")
            asks = [
                subprocess.Popen(
                    _dovetail(
                        f"load flow_{model} --url http://127.0.0.1:{port} "
                        f"--rate {rate * args.load:g}/s,{rate * args.load:g}/s --classes {priority}:1 "
                        f"--seconds {args.seconds / 2:g} --seed {seed} --json"
                    ),
                    cwd=PROJECT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
                for model, priority, rate in ASKED
            ]
            answers = [json.loads(ask.communicate(timeout=args.seconds + 120)[0]) for ask in asks]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
            lines.close()
        found = _errors(scratch / "log")
        shown = subprocess.run(
            _dovetail(f"interference --show --json --store {scratch / 'store.sqlite'}"),
            cwd=PROJECT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        found["interference"] = json.loads(shown.stdout) if shown.returncode == 0 else shown.stderr
        found["answers"] = answers
        found["bought"] = _bought(answers)
        return found


def _bought(answers: list[dict[str, Any]]) -> dict[str, float]:
    """What came of the requests of the second half: of each class the part that was not in time, and goodput."""
    rows = [row for answer in answers for row in answer["results"][-1]["classes"]]
    found = {"in_time_per_s": sum(row["goodput_per_s"] for row in rows)}
    for priority in (1, 2):
        sent = sum(row["sent"] for row in rows if row["priority"] == priority)
        in_time = sum(row["in_time"] for row in rows if row["priority"] == priority)
        found[f"class_{priority}_missed_pct"] = 100 * (1 - in_time / max(1, sent))
    return found


def _dovetail(line: str) -> list[str]:
    return [sys.executable, "-m", "dovetail", *line.split()]


def _port(server: subprocess.Popen[bytes], said: Path) -> int:
    for _ in range(1200):
        found = _READY.search(said.read_text())
        if found:
            return int(found[1])
        try:
            server.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        raise RuntimeError(f"the server has ended: {said.read_text()}")
    raise RuntimeError("the server does not begin")


def _errors(log: Path) -> dict[str, Any]:
    """Per cent by which batches of models were off, in the second half of the log."""
    sent: dict[int, RunBatch] = {}
    ran: list[tuple[RunBatch, BatchFinished]] = []
    with LogReader(log) as steps:
        for step in steps:
            for action in step.actions:
                if isinstance(action, RunBatch):
                    sent[action.batch] = action
            if isinstance(step.event, BatchFinished) and step.event.batch in sent:
                ran.append((sent.pop(step.event.batch), step.event))
    names = [model for model, _, _ in ASKED]
    models = [(said, was) for said, was in ran if said.stage in names]
    half = len(models) // 2
    every, beside = [], []
    for said, was in models[half:]:
        took = was.busy_ns or was.end_ns - was.begin_ns
        off = 100 * abs(said.expected_ns / max(1, took) - 1)
        every.append(off)
        if any(
            other is not was
            and w.worker == said.worker
            and other.begin_ns < was.end_ns
            and other.end_ns > was.begin_ns
            for w, other in models
        ):
            beside.append(off)
    shares = Counter(said.share_pct for said, _ in models[half:])
    return {
        "batches": len(every), "beside": len(beside), "error": _tail(every), "error_beside": _tail(beside),
        "shares": dict(sorted(shares.items())),
    }  # fmt: skip


def _tail(values: list[float]) -> dict[str, float]:
    return {"median": float(np.median(values)), "p95": float(np.percentile(values, 95))} if values else {}


#: Title -> figure of a run.
_FIGURES: dict[str, Callable[[dict[str, Any]], float]] = {
    "class 1 missed %": lambda row: row["bought"]["class_1_missed_pct"],
    "class 2 missed %": lambda row: row["bought"]["class_2_missed_pct"],
    "in time per s": lambda row: row["bought"]["in_time_per_s"],
    "error beside, median %": lambda row: row["error_beside"].get("median", 0.0),
    "p95 %": lambda row: row["error_beside"].get("p95", 0.0),
}


def show(rounds: list[dict[str, Any]]) -> None:
    """Means over rounds, and by how much each arm differs from ours in the same round."""
    arms = [arm for arm in ARMS if all(arm in one for one in rounds)]
    table = Table(box=None)
    for title in ("", "batches", "beside", *_FIGURES):
        table.add_column(title, justify="right")
    for arm in arms:
        cells = [str(sum(one[arm][key] for one in rounds)) for key in ("batches", "beside")]
        cells += [f"{np.mean([of(one[arm]) for one in rounds]):.1f}" for of in _FIGURES.values()]
        table.add_row(arm, *cells)
    Console().print(table)
    if "ours" not in arms:
        return
    table = Table(box=None, title=f"more than ours, in {len(rounds)} rounds (95 % interval)")
    for title in ("", *_FIGURES):
        table.add_column(title, justify="right")
    for arm in arms[1:]:
        apart = [over_seeds([of(one[arm]) - of(one["ours"]) for one in rounds]) for of in _FIGURES.values()]
        table.add_row(arm, *(f"{e.mean:+.1f} ({e.low:+.1f} to {e.high:+.1f})" for e in apart))
    Console().print(table)


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rounds: what became of each arm."""
    rounds: list[dict[str, Any]] = []
    for number in range(args.rounds):
        seed = args.seed + number
        arms = [arm for arm in ARMS if arm in args.arms]
        random.Random(seed).shuffle(arms)
        with tempfile.TemporaryDirectory(prefix="dovetail-watched-") as name:
            watched = Path(name) / "batches.json"
            run(WATCH, args, seed + 1000, watched)
            rounds.append({})
            for arm in arms:
                rounds[-1][arm] = run(arm, args, seed, watched)
                print(f"round {number + 1}: {arm}", file=sys.stderr, flush=True)
    return rounds


def main() -> int:
    """All rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--load", type=float, default=2.4)
    parser.add_argument("--slo-ms", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the results there as well")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="measure nothing; show these results")
    args = parser.parse_args()
    if args.read:
        rounds = [one for path in args.read for one in json.loads(path.read_text())]
    else:
        rounds = measure(args)
        if args.json:
            args.json.write_text(json.dumps(rounds))
    show(rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
