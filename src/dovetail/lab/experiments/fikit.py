"""When may a kernel start? Two clients on one device: default sharing, FIKIT as reconstructed, rivals, and ours.

Read with care: FIKIT's body, code, models, device and tables were not at hand; the published ranges are those of its
abstract, and what it compares with ("default sharing") is not known exactly. So two kinds stand for it here, time
slices and one queue, and three kinds of host, because those decide more than anything else. Claims are simulated, on
sequences made from fitted distributions, with an assumed cost of the gate (0.2 µs, 2 µs to notice an end); those
named `live.*` are measured on this machine's processor with real models, and differ from run to run.

Each part below takes the lab and adds claims; others can be added behind them in `run`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from ...units import MS
from ..experiment import Goal, Lab, over_seeds
from ..kernels.hosts import HOSTS
from .fikit_live import run_live
from .fikit_plots import draw_policies, draw_speedups
from .fikit_recorded import recorded
from .fikit_studies import PUBLISHED_LOW, ageing, bound, hints, loads, parts, sensitivity, stability
from .fikit_world import PAIRS, POLICIES, Job, Outcome, simulate

SEEDS = (1, 2, 3)
QUICK_SEEDS = (1,)

PAPER = "FIKIT, arXiv 2311.10359 v5, abstract"
OURS = "our own"
TOGETHER = ("slices", "fifo", "fikit", "ours")

#: (mode, host, policy) -> for each seed the outcomes of all pairs.
Cells = dict[tuple[str, str, str], list[list[Outcome]]]
Ratio = Callable[[Outcome, Outcome], float]


def run(lab: Lab) -> None:
    """All parts."""
    cells = _pairs(lab)
    _high(lab, cells)
    _low(lab, cells)
    preemptive = {(host, policy): found for (mode, host, policy), found in cells.items() if mode == "preemptive"}
    bound(lab, _tasks(lab), preemptive)
    parts(lab, _tasks(lab), preemptive)
    loads(lab, _tasks(lab), preemptive)
    stability(lab, preemptive)
    recorded(lab, _tasks(lab), preemptive)
    _against_fikit(lab, cells)
    _waits(lab, cells)
    sensitivity(lab, _tasks(lab))
    hints(lab, _tasks(lab))
    ageing(lab, 2 * _tasks(lab))
    run_live(lab, lab.show)


def _tasks(lab: Lab) -> int:
    return 2 if lab.quick else 3


def _pairs(lab: Lab) -> Cells:
    """Every pair with every host, way of sharing and seed."""
    keys = [("preemptive", host, policy) for host in HOSTS for policy in POLICIES]
    keys += [("together", host, policy) for host in HOSTS for policy in TOGETHER]
    jobs = [
        Job(high, low, host, policy, seed, _tasks(lab), mode)
        for mode, host, policy in keys
        for seed in lab.seeds
        for high, low in PAIRS
    ]
    found = iter(lab.map(simulate, jobs, "pairs"))
    cells: Cells = {key: [[next(found) for _ in PAIRS] for _ in lab.seeds] for key in keys}
    draw_speedups(lab, cells, PAIRS)
    draw_policies(lab, cells)
    return cells


def _ratios(cells: Cells, mode: str, over: str, under: str, of: Ratio, hosts: Sequence[str]) -> list[list[float]]:
    """For each seed, one ratio per host and pair."""
    seeds = len(cells[mode, hosts[0], over])
    return [
        [
            of(a, b)
            for host in hosts
            for a, b in zip(cells[mode, host, over][seed], cells[mode, host, under][seed], strict=True)
        ]
        for seed in range(seeds)
    ]


def _high_ratio(a: Outcome, b: Outcome) -> float:
    return a.high / b.high


def _low_ratio(a: Outcome, b: Outcome) -> float:
    return a.low / b.low


def _high(lab: Lab, cells: Cells) -> None:
    hosts = tuple(HOSTS)
    count = len(hosts) * len(PAIRS)
    source = f"{PAPER}; whether that is its default sharing is unverified"
    for mode in ("preemptive", "together"):
        for default in ("slices", "fifo"):
            found = _ratios(cells, mode, default, "ours", _high_ratio, hosts)
            what = f"high-priority completion time under {POLICIES[default]}, over ours; arrivals {mode}"
            highest = statistics.fmean(max(r) for r in found)
            for ident, value, limit in (
                ("lowest", [min(r) for r in found], 1.32),
                ("median", [statistics.median(r) for r in found], 3.4),
            ):
                lab.claim(
                    f"high.{mode}.{default}.{ident}",
                    f"{what}: {ident} of {count} (pair, host); the highest is {highest:.3g}",
                    source=source,
                    published=limit,
                    goal=Goal("at least", limit, "×"),
                    measured=over_seeds(value),
                )
            if mode == "together":
                continue
            for host in hosts:
                found = _ratios(cells, mode, default, "ours", _high_ratio, (host,))
                lab.claim(
                    f"high.{default}.{host}",
                    f"the same with host {host!r} alone: median of the pairs",
                    source=source,
                    published=3.4,
                    goal=Goal("at least", 3.4, "×"),
                    measured=over_seeds([statistics.median(r) for r in found]),
                )
    for ours, name in (("ours", ""), ("parts", ".parts")):
        _exclusive(lab, {host: cells["preemptive", host, ours] for host in hosts}, name)


def _exclusive(lab: Lab, by_host: Mapping[str, Sequence[Sequence[Outcome]]], name: str) -> None:
    for host, seeds in by_host.items():
        lab.claim(
            f"exclusive.{host}{name}",
            f"high-priority completion time under ours{', in parts,' if name else ''} over that alone, median of the "
            f"pairs, host {host!r}",
            source=OURS,
            goal=Goal("at most", 1.05, "×"),
            measured=over_seeds([statistics.median(o.high for o in seed) for seed in seeds]),
        )
    lab.claim(
        f"exclusive.worst{name}",
        "the same, the worst pair and host",
        source=OURS,
        goal=Goal("at most", 1.1, "×"),
        measured=over_seeds(
            [max(o.high for found in seed for o in found) for seed in zip(*by_host.values(), strict=True)]
        ),
    )


def _low(lab: Lab, cells: Cells) -> None:
    for default in ("slices", "fifo"):
        for ours, name in (("ours", ""), ("parts", "parts.")):
            found = _ratios(cells, "preemptive", default, ours, _low_ratio, tuple(HOSTS))
            below = statistics.fmean(sum(r < PUBLISHED_LOW for r in seed) for seed in found)
            for ident, value in (
                ("lowest", [min(r) for r in found]),
                ("median", [statistics.median(r) for r in found]),
            ):
                lab.claim(
                    f"low.{name}{default}.{ident}",
                    f"low-priority completion time under {POLICIES[default]}, over ours"
                    f"{', in parts' if name else ''}: {ident} of {len(found[0])} (pair, host), of which "
                    f"{below:.1f} are below {PUBLISHED_LOW}",
                    source=f"{PAPER} (0.86 to 1; read as a ratio of speeds, unverified)",
                    published=PUBLISHED_LOW,
                    goal=Goal("at least", PUBLISHED_LOW, "×"),
                    measured=over_seeds(value),
                )
        ends = _ratios(cells, "together", default, "ours", lambda a, b: a.end_ns / b.end_ns, tuple(HOSTS))
        lab.claim(
            f"together.{default}",
            f"time until both clients that began together are done, under {POLICIES[default]} over ours (the gate "
            "takes its part): median",
            source=OURS,
            goal=Goal("at least", 0.97, "×"),
            measured=over_seeds([statistics.median(r) for r in ends]),
        )
    gains = [
        [100 * (a.busy - b.busy) for h in ("host", "sync") for a, b in _both(cells, h, "ours", "tasks", i)]
        for i in range(len(lab.seeds))
    ]
    lab.claim(
        "busy",
        "time that the device is at work under ours above that without filling, hosts 'host' and 'sync', median",
        source=OURS,
        goal=Goal("at least", 5.0, "points"),
        measured=over_seeds([statistics.median(g) for g in gains]),
    )


def _both(cells: Cells, host: str, one: str, other: str, seed: int) -> list[tuple[Outcome, Outcome]]:
    return list(zip(cells["preemptive", host, one][seed], cells["preemptive", host, other][seed], strict=True))


def _against_fikit(lab: Lab, cells: Cells) -> None:
    for ident, of, text, goal in (
        ("low", _low_ratio, "low-priority completion time under FIKIT over ours", Goal("at least", 1.0, "×")),
        ("high", _high_ratio, "high-priority completion time under FIKIT over ours", Goal("at least", 0.97, "×")),
    ):
        found = _ratios(cells, "preemptive", "fikit", "ours", of, ("host", "sync"))
        lab.claim(
            f"fikit.{ident}",
            f"{text}, median of pairs and of the hosts that leave gaps",
            source=OURS,
            goal=goal,
            measured=over_seeds([statistics.median(r) for r in found]),
        )
    for rival in ("priority", "orion"):
        found = _ratios(cells, "preemptive", rival, "ours", _high_ratio, ("sync",))
        lab.claim(
            f"rivals.{rival}",
            f"high-priority completion time under {POLICIES[rival]} over ours, host 'sync', median of pairs",
            source=OURS,
            goal=Goal("at least", 1.0, "×"),
            measured=over_seeds([statistics.median(r) for r in found]),
        )
        found = _ratios(cells, "preemptive", rival, "ours", _low_ratio, ("host",))
        lab.claim(
            f"rivals.{rival}.low",
            f"low-priority completion time under {POLICIES[rival]} over ours, host 'host', median of pairs",
            source=OURS,
            goal=Goal("at least", 0.97, "×"),
            measured=over_seeds([statistics.median(r) for r in found]),
        )


def _waits(lab: Lab, cells: Cells) -> None:
    """The law: no higher class waits longer than one kernel. Durations scatter by 3 %, so four deviations more."""
    ratios = [
        max(
            o.worst_wait_ns / o.longest_low_ns
            for host in HOSTS
            for o in cells["preemptive", host, "ours"][i]
        )
        for i in range(len(lab.seeds))
    ]  # fmt: skip
    lab.claim(
        "wait.kernels",
        "longest wait of a high-priority kernel over the low client's longest kernel, worst pair and host",
        source="promise 7 (docs/invariants.md)",
        goal=Goal("at most", 1.13, "kernels"),
        measured=over_seeds(ratios),
    )
    jobs = [
        Job("mobilenetv2", "retinanet", host, "ours", seed, 5 if lab.quick else 30)
        for host in HOSTS
        for seed in lab.seeds
    ]
    ours = lab.map(simulate, jobs, "the longest kernel")
    longest_ms = max(o.longest_low_ns for o in ours) / MS
    waited_ms = max(o.worst_wait_ns for o in ours) / MS
    lab.claim(
        "wait.longest",
        f"the same beside retinanet, whose longest kernel takes {longest_ms:.1f} ms and cannot be interrupted: "
        f"{waited_ms:.1f} ms",
        source="promise 7 (docs/invariants.md)",
        goal=Goal("at most", 1.13, "kernels"),
        measured=max(o.worst_wait_ns / o.longest_low_ns for o in ours),
    )
