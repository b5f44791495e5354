"""Studies beside the experiment on kernels: bounds, other gaps, kernels or beliefs, hints, and ageing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from ...units import MS, US
from ..experiment import Estimate, Goal, Lab, over_seeds
from .fikit_bound import DELAY, lowest_low
from .fikit_plots import draw_ageing, draw_bound, draw_loads, draw_sensitivity
from .fikit_world import PAIRS, THINK, Job, Outcome, simulate

__all__ = ["ageing", "bound", "hints", "loads", "sensitivity"]

OURS = "our own"
#: Pairs of the studies in which something is varied.
SAMPLE = (PAIRS[1], PAIRS[3], PAIRS[5], PAIRS[7])
GAP_SCALES = (0.25, 1.0, 4.0, 16.0)
LENGTH_SCALES = (0.25, 1.0, 4.0)
#: (durations, gaps) are believed to be so many times as long as they are.
ERRORS = ((1.0, 1.0), (0.5, 1.0), (1.5, 1.0), (1.0, 0.5), (1.0, 1.5), (0.5, 1.5))
AGEING_MS = (0, 50, 20, 10, 5, 2)
#: Parts of divided kernels: 50 µs were worse on tuning seeds, for what they cost.
PART_NS = 100 * US
PUBLISHED_LOW = 0.86
#: Rests of the high client beside the usual one: it wants a half or an eighth of the time.
RESTS = (1.0, 7.0)


def bound(lab: Lab, tasks: int, defaults: Sequence[Sequence[Outcome]], ours: Sequence[Sequence[Outcome]]) -> None:
    """What of the low client's speed could be had at all where the high client's host waits for every kernel.

    `defaults` and `ours` are outcomes with one queue and with our arbiter, for each seed those of all pairs.
    """
    pairs = SAMPLE if lab.quick else PAIRS
    chosen = [PAIRS.index(pair) for pair in pairs]
    plain = [Job(high, low, "sync", "ours", seed, tasks) for seed in lab.seeds for high, low in pairs]

    def by_seed(found: Sequence[float]) -> list[list[float]]:
        return [list(found[i : i + len(pairs)]) for i in range(0, len(found), len(pairs))]

    def simulated(what: str, **variant: bool | int) -> list[Outcome]:
        return lab.map(simulate, [msgspec.structs.replace(job, **variant) for job in plain], what)

    bounds = by_seed(lab.map(lowest_low, plain, "bounds"))
    single = by_seed([1 / o.low_rate for o in simulated("one at a time", beside=False)])
    parts = by_seed([o.low for o in simulated("divided kernels", part_ns=PART_NS)])
    default = [[1 / seed[i].low_rate for i in chosen] for seed in defaults]
    beside = [[1 / seed[i].low_rate for i in chosen] for seed in ours]
    completion = [[seed[i].low for i in chosen] for seed in defaults]
    draw_bound(lab, pairs, default, {"ours, one at a time": single, "ours": beside, "any plan, at most": bounds})
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
    lab.claim(
        "low.divided.lowest",
        "low-priority completion time under one queue, over ours with kernels divided into parts of 100 µs at most "
        "(assumed: each can be, for 5 % and 3 µs per part), host 'sync': lowest pair",
        source=OURS,
        published=PUBLISHED_LOW,
        goal=Goal("at least", PUBLISHED_LOW, "×"),
        measured=over_seeds([min(r) for r in _ratios(completion, parts)]),
    )


def loads(lab: Lab, tasks: int, known: Mapping[str, Sequence[Sequence[Outcome]]]) -> None:
    """What the low client keeps where the high client, whose host waits for every kernel, wants more or less.

    `known` are the outcomes with the usual rest, by way of sharing, for each seed those of all pairs.
    """
    rests = RESTS[-1:] if lab.quick else RESTS
    outcomes = {(policy, THINK): seeds for policy, seeds in known.items()}
    keys = [(policy, think) for policy in known for think in rests]
    jobs = [
        Job(high, low, "sync", policy, seed, tasks, think=think)
        for policy, think in keys
        for seed in lab.seeds
        for high, low in PAIRS
    ]
    found = iter(lab.map(simulate, jobs, "loads"))
    outcomes |= {key: [[next(found) for _ in PAIRS] for _ in lab.seeds] for key in keys}
    times = {key: [[o.low for o in seed] for seed in seeds] for key, seeds in outcomes.items()}
    ratios = {
        default: {1 / (1 + think): _ratios(times[default, think], times["ours", think]) for think in (THINK, *rests)}
        for default in known
        if default != "ours"
    }
    draw_loads(lab, {default: {x: _by_pair(seeds) for x, seeds in by.items()} for default, by in ratios.items()})
    least = min(1 / (1 + think) for think in rests)
    for default, by_load in ratios.items():
        lab.claim(
            f"low.{default}.seldom",
            f"low-priority completion time under {default}, over ours, host 'sync': lowest pair, where high-priority "
            f"tasks want {least:.1%} of the time instead of {1 / (1 + THINK):.0%}",
            source="FIKIT, abstract (0.86 to 1); how often its high-priority tasks came is not known",
            published=PUBLISHED_LOW,
            goal=Goal("at least", PUBLISHED_LOW, "×"),
            measured=over_seeds([min(r) for r in by_load[least]]),
        )


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
