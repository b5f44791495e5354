"""How long does a planning decision take? A* search against look-ups in frontiers.

    python bench/plan.py [--json]

Synthetic profiles with a fixed seed: 256 configurations per stage (8 batch sizes × 4 core counts × 8 shares), time
falling with share and cores by a power below 1, growing with the batch by a power below 1, ±3 % of noise. Objectives
are 0.8, 1.0 and 1.2 times the time with every stage in its smallest configuration. All contenders take
turns in every round, so that a busy neighbour meets all of them; a figure is the median over rounds, with the least
and the most. In every round the costs found by both ways are compared, and must be equal. Results go to stdout,
progress to stderr. Takes about half a minute.

It also says what groups cost: the same chains planned in groups of three with deadlines by average normalised length
(dovetail.plan.distribute, our reconstruction of ESG's way), every group planned exactly, against the whole planned at
once. That is a matter of counting, not of timing.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from _figures import over_rounds, ratio, table_or_json
from dovetail.lab.rivals.astar import search
from dovetail.lab.rivals.unverified import GROUP_SIZE, K_BEST
from dovetail.plan.distribute import average_normalised_lengths, distribute
from dovetail.plan.frontier import Frontiers, build
from dovetail.plan.options import Option, Prices, item_cost_usd, pareto
from dovetail.plan.quantile import z_value
from dovetail.plan.series_parallel import Series, decompose
from dovetail.profile import catalogue
from dovetail.state import Config

SEED = 2024
ROUNDS = 5
WORKLOADS = 4
#: Number of stages -> workloads.
LONGER = {4: 4, 5: 1, 8: 1}
TIGHTNESS = (0.8, 1.0, 1.2)
LOOKUPS_PER_ROUND = 4000
BUILDS_PER_ROUND = 3
#: Where A* on four and more stages is stopped. On eight it is nowhere near its end at ten times as many, either.
NODE_CAP = 300_000
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32)
CPUS = (1, 2, 4, 8)
SHARES_PCT = (10, 20, 30, 40, 50, 60, 80, 100)
SPREAD = 0.08
#: ESG's device is seven vGPUs; its unit prices are a recollection, unverified (profile/catalogue/devices.toml).
VGPUS = 7

Stages = list[list[Option]]
T = TypeVar("T")


def stage(rng: np.random.Generator, prices: Prices) -> list[Option]:
    """One stage's 256 options."""
    device_ms, host_ms, fixed = rng.uniform(30, 120), rng.uniform(10, 60), rng.uniform(0.05, 0.2)
    by_batch, by_share, by_cpus = rng.uniform(0.8, 1.0), rng.uniform(0.7, 0.95), rng.uniform(0.5, 0.95)

    def latency_ns(batch: int, cpus: int, share_pct: int) -> int:
        on_device = device_ms * (fixed + (1 - fixed) * batch**by_batch / (share_pct / 10) ** by_share)
        on_host = host_ms * batch**by_batch / cpus**by_cpus
        return int((on_device + on_host) * 1e6 * rng.uniform(0.97, 1.03))

    configs = [Config(batch, cpus, pct) for batch in BATCHES for cpus in CPUS for pct in SHARES_PCT]
    times = [(config, latency_ns(config.batch, config.cpus, config.share_pct)) for config in configs]
    return [Option(config, ns, SPREAD, item_cost_usd(config, ns, prices)) for config, ns in times]


def stages_of(count: int, seed: int) -> Stages:
    """So many stages, the same for the same seed."""
    units = catalogue.unit_prices()
    prices = Prices(VGPUS * units.usd_per_vgpu_hour, units.usd_per_vcpu_hour)
    rng = np.random.default_rng([SEED, seed])
    return [stage(rng, prices) for _ in range(count)]


def smallest_ns(stages: Stages) -> int:
    """Time with every stage in its smallest configuration, which comes first."""
    return sum(options[0].mean_ns for options in stages)


def chain(count: int) -> Series:
    return decompose([[i + 1] for i in range(count - 1)] + [[]])


def timed_ns(what: Callable[..., T], *args: Any, **named: Any) -> tuple[int, T]:
    begin_ns = time.perf_counter_ns()
    answer = what(*args, **named)
    return time.perf_counter_ns() - begin_ns, answer


class Bench:
    """The contenders. Each method is one turn and appends its durations, in nanoseconds, to the round's lists."""

    def __init__(self) -> None:
        self.three = [stages_of(3, seed) for seed in range(WORKLOADS)]
        self.frontiers = [build(chain(3), s, int(1.2 * smallest_ns(s))) for s in self.three]
        self.longer = {n: [stages_of(n, 100 * n + seed) for seed in range(w)] for n, w in LONGER.items()}
        self.nodes: list[int] = []
        #: Stages -> per workload whether A* finished, and partial paths generated.
        self.ends: dict[int, list[tuple[bool, int]]] = {}
        self.rng = np.random.default_rng(SEED)

    def astar(self, pareto_tails: bool) -> list[int]:
        """A* on three stages; with `pareto_tails` the later stages keep only their Pareto fronts."""
        durations = []
        for stages, frontiers in zip(self.three, self.frontiers, strict=True):
            rows = [stages[0], *(pareto(s) for s in stages[1:])] if pareto_tails else stages
            for tightness in TIGHTNESS:
                budget_ns = int(tightness * smallest_ns(stages))
                duration, found = timed_ns(search, rows, budget_ns, K_BEST)
                durations.append(duration)
                looked_up = frontiers.choose(0, budget_ns).cost_usd
                if abs(found.paths[0].cost_usd - looked_up) > 1e-9 * looked_up:
                    raise SystemExit(f"A* found {found.paths[0].cost_usd}, the frontier {looked_up}")
                if not pareto_tails:
                    self.nodes.append(found.generated)
        return durations

    def lookups(self, workloads: Sequence[tuple[Stages, Frontiers]]) -> list[int]:
        """Warm decisions: any node, any leftover time, any queue length."""
        durations = []
        count = LOOKUPS_PER_ROUND // len(workloads)
        for stages, frontiers in workloads:
            most_ns = smallest_ns(stages)
            nodes = self.rng.integers(0, len(stages), count).tolist()
            leftovers = self.rng.integers(most_ns // 10, most_ns, count).tolist()
            waiting = self.rng.integers(1, 40, count).tolist()
            for node, leftover_ns, batch_max in zip(nodes, leftovers, waiting, strict=True):
                begin_ns = time.perf_counter_ns()
                frontiers.choose(node, leftover_ns, batch_max)
                durations.append(time.perf_counter_ns() - begin_ns)
        return durations

    def builds(self, count: int, z: float = 0.0) -> list[int]:
        """All tables of a chain of so many stages, from nothing."""
        return [timed_ns(self.whole, count, z)[0] for _ in range(BUILDS_PER_ROUND)]

    def whole(self, count: int, z: float = 0.0) -> Frontiers:
        stages = self.three[0] if count == 3 else self.longer[count][0]
        return build(chain(count), stages, smallest_ns(stages), z=z)

    def long_astar(self, count: int) -> list[int]:
        """A* on more stages, until it is done or at the cap."""
        durations, self.ends[count] = [], []
        for stages in self.longer[count]:
            duration, found = timed_ns(search, stages, smallest_ns(stages), K_BEST, max_generated=NODE_CAP)
            durations.append(duration)
            self.ends[count].append((found.finished, found.generated))
        return durations


def cost_of_groups_pct(count: int) -> list[float]:
    """How much dearer chains are in groups than as a whole, by chain and objective; times are the means."""
    excess = []
    for seed in range(WORKLOADS):
        stages = stages_of(count, 200 + seed)
        shares = distribute(
            chain(count), average_normalised_lengths([[o.mean_ns for o in s] for s in stages]), GROUP_SIZE
        )
        groups = list(dict.fromkeys(share.group for share in shares))
        for tightness in TIGHTNESS:
            objective_ns = int(tightness * smallest_ns(stages))
            now_ns, cost_usd = 0, 0.0
            for group in groups:
                leftover_ns = int(shares[group[0]].group_deadline * objective_ns) - now_ns
                members = [stages[node] for node in group]
                plan = build(chain(len(group)), members, objective_ns).plan(leftover_ns)
                if plan is None:
                    raise SystemExit(f"group {group} has no plan within {leftover_ns} ns")
                now_ns += sum(option.mean_ns for option in plan)
                cost_usd += sum(option.cost_usd for option in plan)
            best = build(chain(count), stages, objective_ns).choose(0, objective_ns).cost_usd
            excess.append(100 * (cost_usd / best - 1))
    return excess


def measure() -> dict[str, Any]:
    """All contenders in every round; the order turns by one each round."""
    bench = Bench()
    z = z_value(0.99, spread=SPREAD)
    turns: dict[str, Callable[[], list[int]]] = {
        "A*, 3 × 256": partial(bench.astar, False),
        "A*, 3 × 256, Pareto tails": partial(bench.astar, True),
        "frontier look-up, 3 × 256": partial(bench.lookups, list(zip(bench.three, bench.frontiers, strict=True))),
        "frontier look-up, 8 × 256": partial(bench.lookups, [(bench.longer[8][0], bench.whole(8))]),
        **{f"frontier build, {n} × 256": partial(bench.builds, n) for n in (3, 5, 8)},
        "frontier build, 8 × 256, p99": partial(bench.builds, 8, z),
        "A*, 4 × 256": partial(bench.long_astar, 4),
        "A*, 8 × 256, until its cap": partial(bench.long_astar, 8),
    }
    for turn in turns.values():
        turn()  # warm up
    bench.nodes.clear()
    rounds: dict[str, list[list[int]]] = {name: [] for name in turns}
    names = list(turns)
    for number in track(range(ROUNDS), "rounds", console=Console(stderr=True), transient=True):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rounds[name].append(turns[name]())
    wholes = {f"{n} × 256": bench.whole(n) for n in (3, 5, 8)}
    return {
        "rounds": ROUNDS,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cpus": os.cpu_count(),
        "us": {name: figures(durations) for name, durations in rounds.items()},
        "ratio_to_look_up": {
            name: ratio(rounds[name], rounds["frontier look-up, 3 × 256"])
            for name in ("A*, 3 × 256", "A*, 3 × 256, Pareto tails")
        },
        "front_points": {name: len(frontiers.points(0)[0]) for name, frontiers in wholes.items()},
        "loss_ns": {name: frontiers.loss_ns for name, frontiers in wholes.items()},
        "stage_front": [len(pareto(s)) for stages in bench.three for s in stages],
        "astar_nodes": {"least": min(bench.nodes), "most": max(bench.nodes)},
        "long_astar": {
            f"{n} × 256": {"finished": sum(done for done, _ in ends), "of": len(ends), "nodes": [m for _, m in ends]}
            for n, ends in bench.ends.items()
        },
        "cost_of_groups_pct": {f"{n} × 256": over_rounds(cost_of_groups_pct(n)) for n in (5, 8)},
    }


def figures(rounds: Sequence[Sequence[int]]) -> dict[str, dict[str, float]]:
    """Median and 99th percentile of each round in microseconds; over rounds their median, least and most."""
    p50 = [float(np.percentile(r, 50)) / 1e3 for r in rounds]
    p99 = [float(np.percentile(r, 99)) / 1e3 for r in rounds]
    return {"p50": over_rounds(p50), "p99": over_rounds(p99)}


def short(us: float) -> str:
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.1f} ms" if us >= 1e3 else f"{us:.2f} µs"


def show(result: dict[str, Any]) -> None:
    """A table for people."""
    table = Table("", "p50", "least to most", "p99", "least to most", box=None)
    for name, row in result["us"].items():
        cells = []
        for which in ("p50", "p99"):
            cell = row[which]
            cells += [short(cell["median"]), f"{short(cell['least'])} to {short(cell['most'])}"]
        table.add_row(name, *cells)
    console = Console(width=110)
    console.print(f"{result['rounds']} interleaved rounds; median over rounds, least to most")
    console.print(table)
    for name, row in result["ratio_to_look_up"].items():
        console.print(f"{name}: {row['median']:,.0f} times a look-up ({row['least']:,.0f} to {row['most']:,.0f})")
    nodes = result["astar_nodes"]
    console.print(f"A* on 3 × 256 generates {nodes['least']:,} to {nodes['most']:,} partial paths")
    for name, ends in result["long_astar"].items():
        generated = f"{min(ends['nodes']):,} to {max(ends['nodes']):,}"
        console.print(f"A* on {name} finished {ends['finished']} of {ends['of']} searches; it generated {generated}")
    stage_front = result["stage_front"]
    console.print(f"Pareto front of one stage: {min(stage_front)} to {max(stage_front)} of 256 options")
    for name, points in result["front_points"].items():
        console.print(f"front of the whole workflow, {name}: {points:,} points, loss {result['loss_ns'][name]} ns")
    for name, row in result["cost_of_groups_pct"].items():
        console.print(
            f"groups of three, {name}: {row['median']:.1f} % dearer ({row['least']:.1f} to {row['most']:.1f} %)"
        )


if __name__ == "__main__":
    sys.exit(table_or_json(__doc__, measure, show))
