"""What a server is worth when more is asked than it can do: answers in time per second against the offered load.

    python bench/overload.py --search [--apps one document shelf] --json search.json
    python bench/overload.py [--capacity search.json] [--apps one document shelf]
                             [--policies dovetail "by-class --max-batch 2"] [--loads 0.5 0.8 1 1.5 2 3]
                             [--seconds 6] [--rounds 3] [--first-round 0] [--json FILE]
    python bench/overload.py --merge search.json FILE... [--plot FILE]

Requests are sent over real HTTP at times that a seed gives, whether or not the server keeps up; a quarter of them is
of class 1, the rest of class 2. Policies take turns in every round, each with a server of its own that knows nothing
at the beginning; it first gets 200 requests at half load, which do not count.

**Load 1 is the most that anybody answers in time under such arrivals** (`--search`): every fixed configuration of
`FIXED` and the default policy are offered a few rates around what a closed loop does, with requests of another seed,
and the best goodput of all counts. A closed loop alone would say more than can be had: with eight requests open a
model that has to be loaded is loaded once for several of them. The search also names the fixed configuration that
answers the most in time, which is the one to compare with (`best`, as a policy).

A run can be done in pieces. `--merge` makes one table and one plot of what they wrote. Results:
docs/results/overload.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from dovetail.tools.load import Answer, Client, Shot, infer_shot  # noqa: E402
from dovetail.units import MS, SECOND  # noqa: E402

#: Class of a quarter of the requests, and of the others.
HIGH, LOW = 1, 2
HIGH_PART = 0.25
WARM_REQUESTS = 200
WARM_LOAD = 0.5
#: Between two loads: what is left of one must not be in the way of the next.
PAUSE_SECONDS = 1.0
#: Closed loop: only to know which rates to search around.
CLOSED_SECONDS = 2.0
CLOSED_OPEN = 8
CONNECTIONS = 512
#: All that can be fixed by hand: order of requests, and largest batch.
FIXED = tuple(f"{policy} --max-batch {batch}" for policy in ("by-class", "first-come") for batch in (1, 2, 4, 8))
OURS = "dovetail"
#: The fixed configuration that the search found to be best.
BEST = "best"
#: Rates that are searched, in parts of what the closed loop does, for so long each, after so many requests.
SEARCHED, SEARCH_SECONDS, SEARCH_WARM = (0.6, 0.8, 1.0), 2.5, 60

#: A model of about 13 ms and nothing else.
ONE = """
from dovetail import App, onnx, workflow
network = onnx("network.onnx", batch=(1, 2, 4, 8))

@workflow(slo="200ms")
def one(x):
    return network(x)

app = App(one)
"""
ONE_LAYERS = ((32, 2), (64, 2), *((128, 1),) * 8)

#: What a request asks for: workflow and inputs.
Ask = tuple[str, dict[str, Any]]


@dataclass
class Application:
    """Something to be served, and what it is asked."""

    target: str
    directory: Path
    asks: Sequence[Ask]
    slo_ms: dict[str, float]
    options: Sequence[str] = ()


@dataclass
class Load:
    """What became of the requests of one load."""

    offered: float
    seconds: float
    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    in_time: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    refused: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    #: Status that is neither an answer nor a refusal -> how many; 0 is no answer at all.
    others: Counter[int] = field(default_factory=Counter)
    latencies_ms: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def figures(self) -> dict[str, float]:
        """One row of the table."""
        sent, high = sum(self.sent.values()), max(1, self.sent[HIGH])
        return {
            "offered": self.offered,
            "goodput": sum(self.in_time.values()) / self.seconds,
            "high_in_time": self.in_time[HIGH] / high,
            "low_in_time": self.in_time[LOW] / max(1, self.sent[LOW]),
            "refused": sum(self.refused.values()) / max(1, sent),
            "high_refused": self.refused[HIGH] / high,
            "high_p50_ms": statistics.median(self.latencies_ms[HIGH] or [0.0]),
            "low_p50_ms": statistics.median(self.latencies_ms[LOW] or [0.0]),
            **{f"status_{status}": float(count) for status, count in self.others.items()},
        }


def applications(scratch: Path) -> dict[str, Application]:
    """What can be served, by name."""
    from examples.document import app as document
    from examples.shelf import app as shelf

    from _models import make_model, picture
    from examples import pages

    make_model(scratch / "network.onnx", ONE_LAYERS)
    (scratch / "one_model.py").write_text(ONE)
    one = [("one", {"x": picture()})]
    page = [("document", {"page": pages.page(seed).pixels}) for seed in (0, 1)]
    line = [
        (name, {"line": pages.text_line(seed).pixels})
        for name, seed in (("careful_line", 2), ("careful_line", 3), ("second_opinion", 4), ("second_opinion", 6))
    ]

    def slo_ms(app: Any) -> dict[str, float]:
        return {name: workflow.graph.slo_ns / MS for name, workflow in app.workflows.items()}

    return {
        "one": Application("one_model:app", scratch, one, {"one": 200.0}),
        "document": Application("examples.document:app", PROJECT, page, slo_ms(document)),
        "shelf": Application(
            "examples.shelf:app", PROJECT, page + line, slo_ms(shelf), ("--workers", "2", "--memory", "120MB")
        ),
    }


@contextmanager
def served(app: Application, options: Sequence[str]) -> Iterator[int]:
    """A server in a process of its own that has never run: its port."""
    from memory import serving

    with tempfile.TemporaryDirectory(prefix="dovetail-overload-") as empty:
        arguments = (app.target, "--store", f"{empty}/store.sqlite", *app.options, *options)
        with serving(app.directory, *arguments) as (port, _):
            yield port


def shot(app: Application, number: int, due_ns: int, ask: Ask, priority: int) -> Shot:
    workflow, inputs = ask
    path = f"/v2/models/{workflow}/infer"
    return infer_shot(path, f"{number} {workflow} {priority}", due_ns, inputs, priority=priority)


def schedule(app: Application, rate: float, count: int, seed: str) -> list[Shot]:
    """Poisson arrivals."""
    rng = random.Random(seed)
    shots, at_s = [], 0.0
    for number in range(count):
        at_s += rng.expovariate(rate)
        priority = HIGH if rng.random() < HIGH_PART else LOW
        shots.append(shot(app, number, round(at_s * SECOND), rng.choice(app.asks), priority))
    return shots


def judge(app: Application, load: Load, answer: Answer) -> None:
    """Count an answer."""
    _, workflow, priority = answer.ident.split(" ")
    level = int(priority)
    load.sent[level] += 1
    latency_ms = answer.latency_ns / MS
    if answer.status == 200:
        load.latencies_ms[level].append(latency_ms)
        load.in_time[level] += latency_ms <= app.slo_ms[workflow]
    elif answer.status == 429:
        load.refused[level] += 1
    else:
        load.others[answer.status] += 1


async def closed_rate(app: Application, port: int) -> float:
    """Answers per second when it is asked as fast as it answers."""
    client = Client("127.0.0.1", port, connections=CONNECTIONS)
    done = 0

    def count(answer: Answer) -> None:
        nonlocal done
        done += answer.status == 200

    shots = (shot(app, i, 0, app.asks[i % len(app.asks)], LOW) for i in itertools.count())
    await client.closed_loop(shots, count, at_a_time=CLOSED_OPEN, seconds=1.0)
    done = 0
    await client.closed_loop(shots, count, at_a_time=CLOSED_OPEN, seconds=CLOSED_SECONDS)
    client.close()
    return done / CLOSED_SECONDS


async def offer(app: Application, port: int, rate: float, load: float, count: int, seed: str) -> Load:
    """One load from the first request to the last answer."""
    client = Client("127.0.0.1", port, connections=CONNECTIONS)
    shots = schedule(app, rate * load, count, seed)
    seen = Load(load, shots[-1].due_ns / SECOND)
    await client.open_loop(shots, lambda answer: judge(app, seen, answer))
    client.close()
    return seen


def measure(
    app: Application, options: Sequence[str], rate: float, loads: Sequence[float], seconds: float, seed: str
) -> list[Load]:
    """All loads on one server, in an order that the seed gives."""
    order = list(loads)
    random.Random(seed).shuffle(order)

    async def run(port: int) -> list[Load]:
        await offer(app, port, rate, WARM_LOAD, WARM_REQUESTS, f"{seed} warm")
        found = []
        for load in order:
            await asyncio.sleep(PAUSE_SECONDS)
            found.append(await offer(app, port, rate, load, round(rate * load * seconds), f"{seed} {load}"))
        return found

    with served(app, options) as port:
        return sorted(asyncio.run(run(port)), key=lambda seen: seen.offered)


def search(name: str, app: Application, seed: int) -> dict[str, Any]:
    """What each configuration answers in time per second at each rate, and the best of all."""
    with served(app, ("--policy", "by-class", "--max-batch", "2")) as port:
        closed = asyncio.run(closed_rate(app, port))
    print(f"{name}: {closed:.1f} per second in a closed loop", file=sys.stderr, flush=True)

    async def run(port: int) -> dict[str, float]:
        await offer(app, port, closed, WARM_LOAD, SEARCH_WARM, f"{seed} search warm")
        found = {}
        for part in SEARCHED:
            await asyncio.sleep(PAUSE_SECONDS / 2)
            count = round(closed * part * SEARCH_SECONDS)
            seen = await offer(app, port, closed, part, count, f"{seed} search {part}")
            found[f"{part:g}"] = seen.figures()["goodput"]
        return found

    goodput: dict[str, dict[str, float]] = {}
    for policy in (OURS, *FIXED):
        with served(app, ("--policy", *policy.split())) as port:
            goodput[policy] = asyncio.run(run(port))
        said = ", ".join(f"{rate} {value:.1f}" for rate, value in goodput[policy].items())
        print(f"{name} {policy}: {said}", file=sys.stderr, flush=True)
    peak = {policy: max(found.values()) for policy, found in goodput.items()}
    best = max(FIXED, key=lambda policy: peak[policy])
    return {"closed": closed, "goodput": goodput, "peak": peak, "best": best, "capacity": max(peak.values())}


def searched(found: dict[str, Any], say: Callable[[str], None]) -> None:
    """The search as a table."""
    say("| application | configuration | most in time per second | at | of the best |")
    say("|---|---|---|---|---|")
    for name, one in found.items():
        for policy, peak in sorted(one["peak"].items(), key=lambda pair: -pair[1]):
            at = max(one["goodput"][policy], key=lambda rate: one["goodput"][policy][rate])
            offered = float(at) * one["closed"]
            say(f"| {name} | `{policy}` | {peak:.1f} | {offered:.1f} per second | {peak / one['capacity']:.0%} |")


def table(rows: dict[tuple[str, str, float], list[dict[str, float]]], say: Callable[[str], None]) -> None:
    columns = ("application", "policy", "load", "in time per second", "class 1 in time", "class 2 in time")
    say(f"| {' | '.join((*columns, 'refused', 'class 1 p50', 'other statuses'))} |")
    say("|---|---|---|---|---|---|---|---|---|")
    for (name, policy, load), found in rows.items():
        good = sorted(r["goodput"] for r in found)
        mean = {key: statistics.mean(r[key] for r in found) for key in found[0] if not key.startswith("status_")}
        others: Counter[str] = Counter()
        for row in found:
            others.update({key[7:]: int(value) for key, value in row.items() if key.startswith("status_")})
        listed = ", ".join(f"{count} × {status}" for status, count in sorted(others.items()))
        say(
            f"| {name} | `{policy}` | {load:g} | {statistics.median(good):.1f} ({good[0]:.1f} to {good[-1]:.1f}) | "
            f"{mean['high_in_time']:.1%} | {mean['low_in_time']:.1%} | {mean['refused']:.1%} | "
            f"{mean['high_p50_ms']:.0f} ms | {listed} |"
        )


def plot(rows: dict[tuple[str, str, float], list[dict[str, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for name, _, _ in rows))
    figure = Figure(figsize=(4.2 * len(names), 3.6), layout="constrained")
    for axes, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
        for policy in dict.fromkeys(policy for n, policy, _ in rows if n == name):
            points = [
                (load, [r["goodput"] for r in found])
                for (n, p, load), found in rows.items()
                if (n, p) == (name, policy)
            ]
            loads = [load for load, _ in points]
            middle = [statistics.median(found) for _, found in points]
            axes.plot(loads, middle, marker="o", label=policy)
            axes.fill_between(loads, [min(f) for _, f in points], [max(f) for _, f in points], alpha=0.2)
        axes.set_title(name)
        axes.set_xlabel("offered load, in capacities")
        axes.set_ylabel("answers in time per second")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)


Rows = dict[tuple[str, str, float], list[dict[str, float]]]


def merged(paths: Sequence[Path]) -> tuple[dict[str, Any], Rows]:
    """Searches and rows of several pieces; of rows with the same name, all rounds."""
    found: dict[str, Any] = {}
    rows: Rows = defaultdict(list)
    for path in paths:
        piece = json.loads(path.read_text())
        found |= piece["search"]
        for row in piece["rows"]:
            rows[row["application"], row["policy"], row["load"]] += row["rounds"]
    names = list(dict.fromkeys(name for name, _, _ in rows))
    policies = list(dict.fromkeys(policy for _, policy, _ in rows))
    ordered = sorted(rows, key=lambda key: (names.index(key[0]), policies.index(key[1]), key[2]))
    return found, {key: rows[key] for key in ordered}


def run_all(args: argparse.Namespace, known: dict[str, Application], found: dict[str, Any]) -> Rows:
    """All loads of all policies, in turns."""
    rows: Rows = defaultdict(list)
    for name in args.apps:
        rate = found[name]["capacity"]
        print(f"{name}: {rate:.1f} per second is load 1", file=sys.stderr, flush=True)
        for turn in range(args.first_round, args.first_round + args.rounds):
            for each in args.policies:
                policy = found[name]["best"] if each == BEST else each
                options = ("--policy", *policy.split())
                for seen in measure(known[name], options, rate, args.loads, args.seconds, f"{args.seed} {turn}"):
                    figures = seen.figures()
                    rows[name, policy, seen.offered].append(figures)
                    said = ", ".join(f"{key} {value:.3g}" for key, value in figures.items())
                    print(f"{name} {policy} round {turn}: {said}", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--apps", nargs="+", default=["one", "document", "shelf"])
    parser.add_argument("--policies", nargs="+", default=[OURS, BEST])
    parser.add_argument("--loads", nargs="+", type=float, default=[0.5, 0.8, 1.0, 1.5, 2.0, 3.0])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first-round", type=int, default=0)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--search", action="store_true", help="only look for the capacity")
    parser.add_argument("--capacity", type=Path, nargs="+", help="what --search wrote")
    parser.add_argument("--merge", type=Path, nargs="+", help="measure nothing; show what other runs wrote")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    rows: Rows = {}
    if args.merge:
        found, rows = merged(args.merge)
    else:
        with tempfile.TemporaryDirectory(prefix="dovetail-overload-") as scratch:
            known = applications(Path(scratch))
            found = merged(args.capacity)[0] if args.capacity else {}
            for name in args.apps:
                if name not in found:
                    found[name] = search(name, known[name], args.seed)
            if not args.search:
                rows = run_all(args, known, found)
    if args.json:
        listed = [{"application": n, "policy": p, "load": o, "rounds": f} for (n, p, o), f in rows.items()]
        args.json.write_text(json.dumps({"search": found, "rows": listed}, indent=1))
    searched(found, print)
    if rows:
        print()
        table(rows, print)
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
