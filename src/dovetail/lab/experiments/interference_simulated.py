"""Interference on a simulated device whose contention no predictor is told: stationary, and after each change.

An error is |predicted / measured − 1| of a batch's time. "As it came" is what is said with the set looked at again
whenever it changes; "at the begin" is said once, when nobody knows who will come.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from ..experiment import Goal, Lab, over_seeds
from ..rivals.interference import RIVALS, Rival, Sample
from ..rivals.interference.ours import Ours
from .interference_world import CHANGES, World, samples

__all__ = ["CHANGE_AT", "Course", "Job", "along", "course", "simulated", "wrong_prior"]

OURS = "our own"
#: Batches that predictors are fitted on, and the batch at which the world changes.
FITTED, CHANGE_AT = 600, 1000
#: After a change: batches until errors have to be back, and those that are looked at then.
BACK, LOOK = 50, 150
#: Boosting takes minutes: on so many seeds.
_SLOW = {"boosting": 1}


class Job(msgspec.Struct, frozen=True):
    """One predictor in one world."""

    world: World
    rival: str


class Course(msgspec.Struct, frozen=True):
    """Errors batch by batch, from the last that was fitted on; and which were within the 95 % bound."""

    came: list[float]
    begin: list[float]
    within: list[bool]


def course(job: Job) -> Course:
    """Let a predictor run along."""
    seen = samples(job.world)
    rival = RIVALS[job.rival]()
    rival.fit(seen[:FITTED])
    return along(rival, seen[FITTED:])


def along(rival: Rival, seen: Sequence[Sample]) -> Course:
    """Errors of a predictor that runs along and learns if it can."""
    found = Course([], [], [])
    for sample in seen:
        begin, bound = rival.predict(sample), rival.bound(sample)
        came = rival.predict(sample, came=True)
        found.begin.append(100 * abs(begin / sample.slowdown - 1))
        found.came.append(100 * abs(came / sample.slowdown - 1))
        found.within.append(sample.slowdown <= bound)
        rival.observe(sample)
    return found


def wrong_prior(seed: int) -> tuple[Course, Course]:
    """A predictor that has learned another device of the same name, and one that begins anew, side by side."""
    other, here = samples(World(seed + 1000)), samples(World(seed))
    misled = Ours()
    misled.fit(other)
    return along(Ours(misled.model.state()), here), along(Ours(), here)


Courses = Mapping[tuple[str, str], Sequence[Course]]


def simulated(lab: Lab) -> Courses:
    """All claims of the simulated part; returns what is drawn."""
    courses = _run(lab)
    _stationary(lab, courses)
    for change in CHANGES:
        _changed(lab, courses, change)
    _coverage(lab, courses)
    _eight(lab)
    _wrong(lab)
    return courses


def _run(lab: Lab) -> dict[tuple[str, str], list[Course]]:
    after = BACK + LOOK
    rivals = [name for name in RIVALS if name != "boosting" or not lab.quick]
    keys = [
        (name, change, seed)
        for name in rivals
        for change in CHANGES
        for seed in lab.seeds[: _SLOW.get(name, len(lab.seeds))]
    ]
    jobs = [Job(World(seed, change, CHANGE_AT, after), name) for name, change, seed in keys]
    courses: dict[tuple[str, str], list[Course]] = {}
    for (name, change, _), found in zip(keys, lab.map(course, jobs, "simulated device"), strict=True):
        courses.setdefault((name, change), []).append(found)
    if lab.quick:
        lab.leave_out("sim.boosting", "boosting is fitted again and again, which takes minutes: without --quick")
    return courses


def _before(found: Sequence[float]) -> Sequence[float]:
    return found[: CHANGE_AT - FITTED]


def _back(found: Sequence[float]) -> Sequence[float]:
    """From so many batches after the change on."""
    return found[CHANGE_AT - FITTED + BACK :]


def _p95(values: Sequence[float]) -> float:
    return float(np.percentile(values, 95))


def _listed(courses: Courses, change: str, part: str) -> str:
    """Median errors of the rivals."""
    texts = []
    for name in RIVALS:
        if name != "ours" and (name, change) in courses:
            pick = _before if part == "before" else _back
            value = statistics.fmean(statistics.median(pick(c.came)) for c in courses[name, change])
            texts.append(f"{name} {value:.1f}")
    return ", ".join(texts)


def _stationary(lab: Lab, courses: Courses) -> None:
    ours = courses["ours", CHANGES[0]]
    for ident, of, limit in (("median", statistics.median, 5.0), ("p95", _p95, 20.0)):
        lab.claim(
            f"sim.stationary.{ident}",
            f"error as it came, up to four at once, {ident} of the batches; medians of the rivals in per cent: "
            f"{_listed(courses, CHANGES[0], 'before')}",
            source=OURS,
            goal=Goal("at most", limit, "%"),
            measured=over_seeds([of(_before(c.came)) for c in ours]),
        )
    best = _best(courses, CHANGES[0], "begin")
    lab.claim(
        "sim.stationary.begin",
        "median error at the begin, over that of the best rival but boosting",
        source=OURS,
        goal=Goal("at most", 1.0, "×"),
        measured=over_seeds([statistics.median(_before(c.begin)) / b for c, b in zip(ours, best, strict=True)]),
    )


def _best(courses: Courses, change: str, which: str) -> list[float]:
    """For each seed the smallest median error of a rival, before the change; boosting has fewer seeds."""
    names = [name for name, of in courses if of == change and name not in ("ours", "boosting")]
    seeds = len(courses["ours", change])
    return [
        min(statistics.median(_before(getattr(courses[name, change][n], which))) for name in names)
        for n in range(seeds)
    ]


def _changed(lab: Lab, courses: Courses, change: str) -> None:
    ours = courses["ours", change]
    ident = change.replace(" ", "-")
    lab.claim(
        f"sim.{ident}.back",
        f"{change}: median error as it came, from {BACK} batches after the change on, over the stationary one; "
        f"medians of the rivals in per cent: {_listed(courses, change, 'after')}",
        source=OURS,
        goal=Goal("at most", 1.5, "×"),
        measured=over_seeds([statistics.median(_back(c.came)) / statistics.median(_before(c.came)) for c in ours]),
    )
    static = courses["gpulets", change]
    lab.claim(
        f"sim.{ident}.coarse",
        f"{change}: the same error of the coarse static model over ours; its 95th percentile is "
        f"{statistics.fmean(_p95(_back(c.came)) for c in static):.0f} %",
        source="above 60 % in cases for the coarse static one: ML Inference Scheduling with Predictable Latency",
        goal=Goal("at least", 3.0, "×"),
        measured=over_seeds(
            [
                statistics.median(_back(s.came)) / statistics.median(_back(o.came))
                for s, o in zip(static, ours, strict=True)
            ]
        ),
    )


def _coverage(lab: Lab, courses: Courses) -> None:
    def covered(name: str, pick: Callable[[Sequence[float]], Sequence[float]]) -> list[float]:
        return [100 * statistics.fmean(pick(c.within)) - 95 for change in CHANGES for c in courses[name, change]]

    for ident, pick, text, limit in (
        ("before", _before, "before", 1.0),
        ("after", lambda w: w[CHANGE_AT - FITTED :], "after the change, its first batch included", 2.0),
    ):
        rivals = ", ".join(
            f"{name} {statistics.fmean(covered(name, pick)):+.1f}" for name in ("gpulets", "ewma", "fine", "rls")
        )
        lab.claim(
            f"sim.coverage.{ident}",
            f"part of the times within the 95 % bound said at the begin, less 95 %, {text}; rivals: {rivals}",
            source=OURS,
            goal=Goal("within", limit, "points"),
            measured=over_seeds(covered("ours", pick)),
        )


def _eight(lab: Lab) -> None:
    names = ("gpulets", "rls", "ours")
    jobs = [Job(World(seed, at_once=8, load=2.5, models=10), name) for name in names for seed in lab.seeds]
    found = lab.map(course, jobs, "eight at once")
    by_name = {name: found[n * len(lab.seeds) : (n + 1) * len(lab.seeds)] for n, name in enumerate(names)}
    others = ", ".join(
        f"{name} {statistics.fmean(statistics.median(c.came) for c in by_name[name]):.1f} %" for name in names[:-1]
    )
    for ident, of, limit in (("median", statistics.median, 5.0), ("p95", _p95, 20.0)):
        lab.claim(
            f"sim.eight.{ident}",
            f"up to eight at once: {ident} error as it came; medians of gpulets' form, static and by recursive least "
            f"squares: {others}",
            source=OURS,
            goal=Goal("at most", limit, "%"),
            measured=over_seeds([of(c.came) for c in by_name["ours"]]),
        )


def _wrong(lab: Lab) -> None:
    found = lab.map(wrong_prior, list(lab.seeds), "wrong prior")
    first = statistics.fmean(statistics.median(misled.came[:50]) for misled, _ in found)
    fresh = statistics.fmean(statistics.median(new.came[:50]) for _, new in found)
    lab.claim(
        "sim.wrong-prior",
        f"learned on another device: median error from batch 200 to 400 over that of one that began anew (in the "
        f"first 50 batches {first:.1f} and {fresh:.1f} %)",
        source=OURS,
        goal=Goal("at most", 1.5, "×"),
        measured=over_seeds(
            [statistics.median(misled.came[200:400]) / statistics.median(new.came[200:400]) for misled, new in found]
        ),
    )
