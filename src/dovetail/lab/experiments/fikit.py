"""When may a kernel start? Two clients on one device: default sharing, FIKIT as reconstructed, rivals, and ours.

Read with care: FIKIT's body, code, models, device and tables were not at hand; the published ranges are those of its
abstract, and what it compares with ("default sharing") is not known exactly. So two kinds stand for it here, time
slices and one queue, and three kinds of host, because those decide more than anything else. Everything here is
simulated, on sequences made from fitted distributions; what a gate costs on a real processor is not measured here.

Each part below takes the lab and adds claims; others can be added behind them in `run`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from ...sim.sequences import HOSTS
from ...units import MS
from ..experiment import Estimate, Goal, Lab, over_seeds
from .fikit_plots import draw_ageing, draw_policies, draw_sensitivity, draw_speedups
from .fikit_world import PAIRS, POLICIES, Job, Outcome, simulate

SEEDS = (1, 2, 3)
QUICK_SEEDS = (1,)

PAPER = "FIKIT, arXiv 2311.10359 v5, abstract"
OURS = "our own"
TOGETHER = ("slices", "fifo", "fikit", "ours")
#: Pairs of the studies in which something is varied.
SAMPLE = (PAIRS[1], PAIRS[3], PAIRS[5], PAIRS[7])
GAP_SCALES = (0.25, 1.0, 4.0, 16.0)
LENGTH_SCALES = (0.25, 1.0, 4.0)
#: (durations, gaps) are believed to be so many times as long as they are.
ERRORS = ((1.0, 1.0), (0.5, 1.0), (1.5, 1.0), (1.0, 0.5), (1.0, 1.5), (0.5, 1.5))
AGEING_MS = (0, 50, 20, 10, 5, 2)

#: (mode, host, policy) -> for each seed the outcomes of all pairs.
Cells = dict[tuple[str, str, str], list[list[Outcome]]]
Ratio = Callable[[Outcome, Outcome], float]


def run(lab: Lab) -> None:
    """All parts."""
    cells = _pairs(lab)
    _high(lab, cells)
    _low(lab, cells)
    _against_fikit(lab, cells)
    _waits(lab, cells)
    _sensitivity(lab)
    _ageing(lab)
    lab.leave_out("overhead", "what a gate costs is assumed here (0.2 µs, 2 µs to notice an end), not measured")


def _tasks(lab: Lab) -> int:
    return 2 if lab.quick else 6


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
    for mode in ("preemptive", "together"):
        for default in ("slices", "fifo"):
            found = _ratios(cells, mode, default, "ours", _high_ratio, hosts)
            name = f"high.{mode}.{default}"
            what = f"high-priority completion time under {POLICIES[default]}, over ours; arrivals {mode}"
            for ident, value, limit in (
                ("lowest", [min(r) for r in found], 1.32),
                ("median", [statistics.median(r) for r in found], 3.4),
                ("highest", [max(r) for r in found], 16.41),
            ):
                lab.claim(
                    f"{name}.{ident}",
                    f"{what}: {ident} of {count} (pair, host)",
                    source=f"{PAPER}; whether that is its default sharing is unverified",
                    published=limit,
                    goal=Goal("at least", limit, "×"),
                    measured=over_seeds(value),
                )
    for host in hosts:
        medians = [statistics.median(o.high for o in seed) for seed in cells["preemptive", host, "ours"]]
        lab.claim(
            f"exclusive.{host}",
            f"high-priority completion time under ours over that alone, median of the pairs, host {host!r}",
            source=OURS,
            goal=Goal("at most", 1.05, "×"),
            measured=over_seeds(medians),
        )
    worst = [max(o.high for h in hosts for o in cells["preemptive", h, "ours"][i]) for i in range(len(lab.seeds))]
    lab.claim(
        "exclusive.worst",
        "the same, the worst pair and host",
        source=OURS,
        goal=Goal("at most", 1.1, "×"),
        measured=over_seeds(worst),
    )


def _low(lab: Lab, cells: Cells) -> None:
    for mode in ("preemptive", "together"):
        for default in ("slices", "fifo"):
            found = _ratios(cells, mode, default, "ours", _low_ratio, tuple(HOSTS))
            for ident, value in (
                ("lowest", [min(r) for r in found]),
                ("median", [statistics.median(r) for r in found]),
            ):
                lab.claim(
                    f"low.{mode}.{default}.{ident}",
                    f"low-priority completion time under {POLICIES[default]}, over ours; arrivals {mode}: {ident}",
                    source=f"{PAPER} (0.86 to 1; read as a ratio of speeds, unverified)",
                    published=0.86 if mode == "preemptive" else None,
                    goal=Goal("at least", 0.86, "×"),
                    measured=over_seeds(value),
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
    spread = [
        [a.low_variation - b.low_variation for h in ("host", "sync") for a, b in _both(cells, h, "fikit", "ours", i)]
        for i in range(len(lab.seeds))
    ]
    lab.claim(
        "fikit.stability",
        "variation (deviation over mean) of low-priority completion times under FIKIT less that under ours, median",
        source=f"{OURS}; the paper shows stability without a figure that could be read",
        goal=Goal("at least", 0.0),
        measured=over_seeds([statistics.median(s) for s in spread]),
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
        Job("mobilenetv2", "retinanet", host, policy, seed, _tasks(lab))
        for policy in ("ours", "slices")
        for host in HOSTS
        for seed in lab.seeds
    ]
    found = lab.map(simulate, jobs, "the longest kernel")
    ours = [o for job, o in zip(jobs, found, strict=True) if job.policy == "ours"]
    longest_ms = max(o.longest_low_ns for o in ours) / MS
    lab.claim(
        "wait.longest",
        f"the same beside retinanet, whose longest kernel takes {longest_ms:.1f} ms and cannot be interrupted",
        source="promise 7 (docs/invariants.md)",
        goal=Goal("at most", 1.13, "kernels"),
        measured=max(o.worst_wait_ns / o.longest_low_ns for o in ours),
    )


def _sensitivity(lab: Lab) -> None:
    """Gaps, kernels and beliefs that are not what they were."""
    sample, seeds, tasks = SAMPLE, lab.seeds, _tasks(lab)

    def measure(what: str, variants: Sequence[dict[str, float | bool]], policy: str) -> list[list[Outcome]]:
        jobs = [
            Job(high, low, "sync", policy, seed, tasks, **variant)  # type: ignore[arg-type]
            for variant in variants
            for seed in seeds
            for high, low in sample
        ]
        found = iter(lab.map(simulate, jobs, what))
        return [[next(found) for _ in sample for _ in seeds] for _ in variants]

    gaps = {p: measure("gaps", [{"gap_scale": g} for g in GAP_SCALES], p) for p in ("slices", "fikit", "ours")}
    lengths = {p: measure("lengths", [{"length_scale": s} for s in LENGTH_SCALES], p) for p in ("fikit", "ours")}
    beliefs: list[dict[str, float | bool]] = [{"duration_error": d, "gap_error": g} for d, g in ERRORS]
    frozen: list[dict[str, float | bool]] = [{**b, "learn": False} for b in beliefs]
    errors = {
        "fikit": measure("errors", beliefs, "fikit"),
        "ours": measure("errors", beliefs, "ours"),
        "ours, not learning": measure("errors", frozen, "ours"),
    }
    draw_sensitivity(lab, (GAP_SCALES, gaps), (LENGTH_SCALES, lengths), (ERRORS, errors))
    for name, cells in errors.items():
        worst = max(statistics.median(o.high for o in outcomes) for outcomes in cells)
        lab.claim(
            f"errors.{name.replace(', ', '-').replace(' ', '-')}",
            f"high-priority completion time over that alone under {name}, durations or gaps believed wrong by half, "
            "median of pairs, worst error",
            source=OURS,
            goal=Goal("at most", 1.07, "×"),
            measured=worst,
        )
    worst_gap = max(statistics.median(o.high for o in outcomes) for outcomes in gaps["ours"])
    lab.claim(
        "gaps",
        f"the same under ours, host times {GAP_SCALES[0]:g} to {GAP_SCALES[-1]:g} times as long, worst",
        source=OURS,
        goal=Goal("at most", 1.07, "×"),
        measured=worst_gap,
    )


def _ageing(lab: Lab) -> None:
    """A high client that never rests: what its low neighbour gets, and what that costs."""
    tasks = _tasks(lab) * 2
    jobs = [
        Job(high, low, host, "ours", seed, tasks, ageing_ns=ms * MS, saturated=True)
        for host in ("ahead", "sync")
        for ms in AGEING_MS
        for seed in lab.seeds
        for high, low in SAMPLE
    ]
    found = iter(lab.map(simulate, jobs, "ageing"))
    cells = {
        (host, ms): [next(found) for _ in lab.seeds for _ in SAMPLE] for host in ("ahead", "sync") for ms in AGEING_MS
    }
    draw_ageing(lab, cells, AGEING_MS)
    late = max((o.low_wait_ns - 10 * MS) / o.longest_low_ns for o in cells["ahead", 10])
    lab.claim(
        "ageing.bound",
        "longest wait of a low kernel beside a high client that never rests, with ageing after 10 ms: what is beyond "
        "10 ms, in longest kernels of the low client (those of the high client that run or are launched count, too)",
        source=OURS,
        goal=Goal("at most", 2.0, "kernels"),
        measured=late,
    )
    cost = [o.high for o in cells["ahead", 10]]
    lab.claim(
        "ageing.cost",
        "high-priority completion time over that alone, for the same: mean of the sample",
        source=OURS,
        goal=Goal("at most", 1.05, "×"),
        measured=Estimate(statistics.fmean(cost), min(cost), max(cost)),
    )
