"""Studies beside the experiment on kernels: what if gaps, kernels or beliefs are others, hints, and ageing."""

from __future__ import annotations

import statistics

from ...units import MS
from ..experiment import Estimate, Goal, Lab
from .fikit_plots import draw_ageing, draw_sensitivity
from .fikit_world import PAIRS, Job, simulate

__all__ = ["ageing", "hints", "sensitivity"]

OURS = "our own"
#: Pairs of the studies in which something is varied.
SAMPLE = (PAIRS[1], PAIRS[3], PAIRS[5], PAIRS[7])
GAP_SCALES = (0.25, 1.0, 4.0, 16.0)
LENGTH_SCALES = (0.25, 1.0, 4.0)
#: (durations, gaps) are believed to be so many times as long as they are.
ERRORS = ((1.0, 1.0), (0.5, 1.0), (1.5, 1.0), (1.0, 0.5), (1.0, 1.5), (0.5, 1.5))
AGEING_MS = (0, 50, 20, 10, 5, 2)


def sensitivity(lab: Lab, tasks: int) -> None:
    """Gaps, kernels and beliefs that are not what they were."""
    # The longest gaps take the longest to simulate.
    gap_scales = GAP_SCALES[:-1] if lab.quick else GAP_SCALES
    sample, seeds = SAMPLE[:2] if lab.quick else SAMPLE, lab.seeds
    beliefs: list[dict[str, float | bool]] = [{"duration_error": d, "gap_error": g} for d, g in ERRORS]
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
    draw_sensitivity(lab, (gap_scales, gaps), (LENGTH_SCALES, lengths), (ERRORS, errors))
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
