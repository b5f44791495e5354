"""Studies beside the experiment on kernels: bounds, other gaps, kernels or beliefs, hints, and ageing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import compress

import msgspec

from ...units import MS, US
from ..experiment import Estimate, Goal, Lab, over_seeds
from ..kernels.hosts import AHEAD, HOSTS
from .fikit_bound import DELAY, lowest_low, most_left
from .fikit_plots import draw_ageing, draw_bound, draw_loads, draw_sensitivity, draw_stability
from .fikit_world import GRAIN_NS, PAIRS, THINK, Job, Outcome, alone_ns, simulate
from .fikit_world import tasks as tasks_of

__all__ = ["ageing", "bound", "hints", "loads", "low_ratios", "parts", "sensitivity", "stability"]

#: (host, way of sharing) -> for each seed the outcomes of all pairs.
Cells = Mapping[tuple[str, str], Sequence[Sequence[Outcome]]]

OURS = "our own"
#: Pairs of the studies in which something is varied.
SAMPLE = (PAIRS[1], PAIRS[3], PAIRS[5], PAIRS[7])
GAP_SCALES = (0.25, 1.0, 4.0, 16.0)
LENGTH_SCALES = (0.25, 1.0, 4.0)
#: (durations, gaps) are believed to be so many times as long as they are.
ERRORS = ((1.0, 1.0), (0.5, 1.0), (1.5, 1.0), (1.0, 0.5), (1.0, 1.5), (0.5, 1.5))
AGEING_MS = (0, 50, 20, 10, 5, 2)
PUBLISHED_LOW = 0.86
#: A pair whose low-priority tasks are short, so that a run has many of them.
STEADY = ("resnet50", "mobilenetv2")
#: Rests of the high client beside the usual one: it wants a half or an eighth of the time.
RESTS = (1.0, 7.0)


def bound(lab: Lab, tasks: int, cells: Cells) -> None:
    """What of the low client's speed could be had at all where the high client's host waits for every kernel."""
    defaults, ours, in_parts = (cells["sync", policy] for policy in ("fifo", "ours", "parts"))
    pairs = SAMPLE if lab.quick else PAIRS
    chosen = [PAIRS.index(pair) for pair in pairs]
    plain = [Job(high, low, "sync", "ours", seed, tasks) for seed in lab.seeds for high, low in pairs]

    def by_seed(found: Sequence[float]) -> list[list[float]]:
        return [list(found[i : i + len(pairs)]) for i in range(0, len(found), len(pairs))]

    def simulated(what: str, **variant: bool | int) -> list[Outcome]:
        return lab.map(simulate, [msgspec.structs.replace(job, **variant) for job in plain], what)

    bounds = by_seed(lab.map(lowest_low, plain, "bounds"))
    single = by_seed([1 / o.low_rate for o in simulated("one at a time", beside=False)])
    default, beside, in_part = (
        [[1 / seed[i].low_rate for i in chosen] for seed in seeds] for seeds in (defaults, ours, in_parts)
    )
    left = by_seed([1 / most_left(job) for job in plain])
    found = {
        "ours, one at a time": single,
        "ours": beside,
        "ours, in parts": in_part,
        "any plan, whole kernels": bounds,
        "all that is left": left,
    }
    draw_bound(lab, pairs, default, found)
    possible = _ratios(default, bounds)
    beyond = sum(mean < PUBLISHED_LOW for mean in _by_pair(possible))
    lab.claim(
        "low.bound",
        "low-priority work per time under ours, one kernel at a time, over the most that any plan could give that "
        f"knows all gaps and keeps the high client within {DELAY:.0%} of alone, host 'sync': lowest pair. That most "
        f"is {statistics.fmean(min(r) for r in possible):.3f} of what one queue gives for the lowest pair, and below "
        f"{PUBLISHED_LOW} for {beyond} of {len(pairs)} pairs",
        source=OURS,
        goal=Goal("at least", 0.9, "×"),
        measured=over_seeds([min(r) for r in _ratios(bounds, single)]),
    )
    lab.claim(
        "low.beside",
        "low-priority work per time with kernels beside each other, over that with one kernel at a time, ours, host "
        "'sync', median of pairs",
        source=OURS,
        goal=Goal("at least", 1.0, "×"),
        measured=over_seeds([statistics.median(r) for r in _ratios(single, beside)]),
    )


def parts(lab: Lab, tasks: int, cells: Cells) -> None:
    """How near to all that is left low-priority work comes in parts, and what parts may cost."""
    left = [
        [most_left(Job(high, low, host, "parts", seed, tasks)) for host in HOSTS for high, low in PAIRS]
        for seed in lab.seeds
    ]

    def rates(policy: str) -> list[list[float]]:
        return [[o.low_rate for o in _all(cells, policy, number)] for number in range(len(lab.seeds))]

    beyond = {
        default: sum(mean < PUBLISHED_LOW for mean in _by_pair(_ratios(left, rates(default))))
        for default in ("slices", "fifo")
    }
    lab.claim(
        "low.left",
        f"low-priority work per time in parts, over all that is left by the high client's kernels when its tasks are "
        f"{DELAY:.0%} late, one kernel at a time: lowest of {len(left[0])} (pair, host). All that is left is below "
        f"{PUBLISHED_LOW} of what slices give in {beyond['slices']} of them, of what one queue gives in "
        f"{beyond['fifo']}",
        source=OURS,
        goal=Goal("at least", 0.95, "×"),
        measured=over_seeds([min(r) for r in _ratios(rates("parts"), left)]),
    )
    enough = [mean >= PUBLISHED_LOW for mean in _by_pair(_ratios(left, rates("fifo")))]
    kept = [list(compress(r, enough)) for r in low_ratios(cells, "fifo", "parts", len(lab.seeds))]
    lab.claim(
        "low.parts.fifo.possible",
        f"low-priority completion time under one queue, over ours, in parts: lowest of those {sum(enough)} (pair, "
        f"host) in which at least {PUBLISHED_LOW} is left",
        source="FIKIT, abstract (0.86 to 1)",
        published=PUBLISHED_LOW,
        goal=Goal("at least", PUBLISHED_LOW, "×"),
        measured=over_seeds([min(r) for r in kept]),
    )
    _cost_of_parts(lab, tasks, cells["sync", "parts"])


def _cost_of_parts(lab: Lab, tasks: int, usual: Sequence[Sequence[Outcome]]) -> None:
    variants = ({"part_cost": 2.0}, {"grain_ns": 2 * GRAIN_NS})
    jobs = [
        msgspec.structs.replace(Job(high, low, "sync", "parts", seed, tasks), **variant)
        for variant in variants
        for seed in lab.seeds
        for high, low in PAIRS
    ]
    found = iter(lab.map(simulate, jobs, "what parts cost"))
    lost = [max(100 * (1 - o.low / next(found).low) for seed in usual for o in seed) for _ in variants]
    lab.claim(
        "low.parts.cost",
        "low-priority speed that is lost at the worst pair if parts cost twice as much as assumed and believed (5 % "
        f"and 3 µs), host 'sync'; with parts of {2 * GRAIN_NS // US} instead of {GRAIN_NS // US} µs: {lost[1]:.1f} %",
        source=OURS,
        goal=Goal("at most", 5.0, "%"),
        measured=lost[0],
    )


def stability(lab: Lab, cells: Cells) -> None:
    """How even low-priority completion times are, host 'sync': one pair over time, and all pairs by variation."""
    high, low = STEADY
    policies = ("fifo", "slices", "fikit", "ours", "parts")
    jobs = [Job(high, low, "sync", policy, lab.seeds[0], 3 if lab.quick else 6) for policy in policies]
    found = dict(zip(policies, lab.map(tasks_of, jobs, "stability"), strict=True))
    alone = alone_ns(low, AHEAD.name, 1.0, 1.0, lab.seeds[0])
    variation = {
        policy: _by_pair([[o.low_variation for o in seed] for seed in cells["sync", policy]]) for policy in policies
    }
    draw_stability(lab, STEADY, found, alone, variation)
    medians = {policy: statistics.median(pairs) for policy, pairs in variation.items()}
    listed = ", ".join(f"{policy} {value:.3f}" for policy, value in medians.items())

    def of(policy: str) -> list[float]:
        return [statistics.median(o.low_variation for o in seed) for seed in cells["sync", policy]]

    for ours in ("ours", "parts"):
        lab.claim(
            f"stability.{ours}",
            f"variation (deviation over mean) of low-priority completion times under {ours}, over that under FIKIT: "
            f"medians of pairs, host 'sync' ({listed})",
            source=f"{OURS}; the paper shows such a figure without numbers that could be read",
            goal=Goal("at most", 1.0, "×"),
            measured=over_seeds([a / b for a, b in zip(of(ours), of("fikit"), strict=True)]),
        )


def loads(lab: Lab, tasks: int, cells: Cells) -> None:
    """What the low client keeps where the high client wants more or less."""
    rests = RESTS[-1:] if lab.quick else RESTS
    keys = [(host, policy) for host in HOSTS for policy in ("slices", "fifo", "ours", "parts")]
    jobs = [
        Job(high, low, host, policy, seed, tasks, think=think)
        for think in rests
        for host, policy in keys
        for seed in lab.seeds
        for high, low in PAIRS
    ]
    found = iter(lab.map(simulate, jobs, "loads"))
    by_rest: dict[float, Cells] = {
        think: {key: [[next(found) for _ in PAIRS] for _ in lab.seeds] for key in keys} for think in rests
    }
    by_rest[THINK] = cells
    seeds = len(lab.seeds)
    drawn = {
        (default, ours): {
            1 / (1 + think): _by_pair(low_ratios(there, default, ours, seeds)) for think, there in by_rest.items()
        }
        for default in ("slices", "fifo")
        for ours in ("ours", "parts")
    }
    draw_loads(lab, drawn)
    seldom = max(rests)
    for default in ("slices", "fifo"):
        waits = by_rest[seldom]["sync", default], by_rest[seldom]["sync", "ours"]
        faster = [
            statistics.median(a.high / b.high for a, b in zip(*seed, strict=True))
            for seed in zip(*waits, strict=True)
        ]
        for ours, name in (("ours", ""), ("parts", ".parts")):
            lab.claim(
                f"low.{default}.seldom{name}",
                f"low-priority completion time under {default}, over ours{', in parts' if name else ''}: lowest of "
                f"pairs and hosts, where high-priority tasks want {1 / (1 + seldom):.1%} of the time instead of "
                f"{1 / (1 + THINK):.0%} (host 'sync': they are {statistics.fmean(faster):.3g} times as fast, median)",
                source="FIKIT, abstract (0.86 to 1); how often its high-priority tasks came is not known",
                published=PUBLISHED_LOW,
                goal=Goal("at least", PUBLISHED_LOW, "×"),
                measured=over_seeds([min(r) for r in low_ratios(by_rest[seldom], default, ours, seeds)]),
            )


def low_ratios(cells: Cells, default: str, ours: str, seeds: int) -> list[list[float]]:
    """For each seed, low-priority completion times of all hosts and pairs, default over ours."""
    return [
        [a.low / b.low for a, b in zip(_all(cells, default, n), _all(cells, ours, n), strict=True)]
        for n in range(seeds)
    ]


def _all(cells: Cells, policy: str, seed: int) -> list[Outcome]:
    """Outcomes of all hosts and pairs, for the seed of this number."""
    return [outcome for host in HOSTS for outcome in cells[host, policy][seed]]


def _by_pair(seeds: list[list[float]]) -> list[float]:
    return [statistics.fmean(pair) for pair in zip(*seeds, strict=True)]


def _ratios(over: list[list[float]], under: list[list[float]]) -> list[list[float]]:
    return [[a / b for a, b in zip(*seed, strict=True)] for seed in zip(over, under, strict=True)]


def sensitivity(lab: Lab, tasks: int) -> None:
    """Gaps, kernels and beliefs that are not what they were."""
    # The longest gaps take the longest to simulate.
    gap_scales = GAP_SCALES[:-1] if lab.quick else GAP_SCALES
    sample, seeds = SAMPLE[:2] if lab.quick else SAMPLE, lab.seeds
    errors_tried = ERRORS[::5] if lab.quick else ERRORS
    beliefs: list[dict[str, float | bool]] = [{"duration_error": d, "gap_error": g} for d, g in errors_tried]
    longer: list[dict[str, float | bool]] = [{"gap_scale": g} for g in gap_scales]
    studies: dict[tuple[str, str], tuple[str, list[dict[str, float | bool]]]] = {
        ("gaps", "slices"): ("slices", longer),
        ("gaps", "fikit"): ("fikit", longer),
        ("gaps", "ours"): ("ours", longer),
        ("lengths", "fikit"): ("fikit", [{"length_scale": x} for x in LENGTH_SCALES]),
        ("lengths", "ours"): ("ours", [{"length_scale": x} for x in LENGTH_SCALES]),
        ("errors", "fikit"): ("fikit", beliefs),
        ("errors", "ours"): ("ours", beliefs),
        ("errors", "ours, not learning"): ("ours", [{**b, "learn": False} for b in beliefs]),
    }
    jobs = [
        Job(high, low, "sync", policy, seed, tasks, **variant)  # type: ignore[arg-type]
        for policy, variants in studies.values()
        for variant in variants
        for seed in seeds
        for high, low in sample
    ]
    found = iter(lab.map(simulate, jobs, "sensitivity"))
    results = {
        key: [[next(found) for _ in sample for _ in seeds] for _ in variants]
        for key, (_, variants) in studies.items()
    }
    gaps, lengths, errors = (
        {name: outcomes for (study, name), outcomes in results.items() if study == wanted}
        for wanted in ("gaps", "lengths", "errors")
    )
    draw_sensitivity(lab, (gap_scales, gaps), (LENGTH_SCALES, lengths), (errors_tried, errors))
    worst = {name: max(statistics.median(o.high for o in v) for v in found) for name, found in errors.items()}
    for name in ("ours", "ours, not learning"):
        lab.claim(
            f"errors.{name.replace(', ', '-').replace(' ', '-')}",
            f"high-priority completion time over that alone under {name}, durations or gaps believed wrong by half, "
            f"median of pairs, worst error (under FIKIT: {worst['fikit']:.3f})",
            source=OURS,
            goal=Goal("at most", 1.07, "×"),
            measured=worst[name],
        )
    worst_gap = max(statistics.median(o.high for o in outcomes) for outcomes in gaps["ours"])
    lab.claim(
        "gaps",
        f"the same under ours, host times {gap_scales[0]:g} to {gap_scales[-1]:g} times as long, worst",
        source=OURS,
        goal=Goal("at most", 1.07, "×"),
        measured=worst_gap,
    )


def hints(lab: Lab, tasks: int) -> None:
    """What it is worth to know when the next high task begins."""
    jobs = [
        Job(high, low, "ahead", "ours", seed, tasks, hints=told)
        for told in (False, True)
        for seed in lab.seeds
        for high, low in SAMPLE
    ]
    found = lab.map(simulate, jobs, "hints")
    half = len(found) // 2
    excess = [100 * (statistics.fmean(o.high for o in part) - 1) for part in (found[:half], found[half:])]
    lost = 100 * (statistics.fmean(o.low for o in found[half:]) / statistics.fmean(o.low for o in found[:half]) - 1)
    lab.claim(
        "hints",
        "what hints save of the time that high-priority tasks lose, host 'ahead', in points of their time alone "
        f"(lost without: {excess[0]:.2f} %, with: {excess[1]:.2f} %; low-priority tasks take {lost:.2f} % longer)",
        source=OURS,
        goal=Goal("at least", 0.5, "points"),
        measured=excess[0] - excess[1],
    )


def ageing(lab: Lab, tasks: int) -> None:
    """A high client that never rests: what its low neighbour gets, and what that costs."""
    sample, ages_ms = (SAMPLE[:2], AGEING_MS[::3]) if lab.quick else (SAMPLE, AGEING_MS)
    jobs = [
        Job(high, low, host, "ours", seed, tasks, ageing_ns=ms * MS, think=0.0)
        for host in ("ahead", "sync")
        for ms in ages_ms
        for seed in lab.seeds
        for high, low in sample
    ]
    found = iter(lab.map(simulate, jobs, "ageing"))
    cells = {
        (host, ms): [next(found) for _ in lab.seeds for _ in sample] for host in ("ahead", "sync") for ms in ages_ms
    }
    draw_ageing(lab, cells, ages_ms)
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
