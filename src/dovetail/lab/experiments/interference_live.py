"""Interference on this machine's cores: real models, stationary and after each change, our predictor and its rivals.

    dovetail reproduce interference-live

It is a part of `dovetail reproduce interference` as well. It needs a quiet machine: other work counts as if it were a
neighbour's that nobody sees. About five minutes are measured; predictors are judged afterwards on what was measured.
Each of seven models is the new one once; the one that is most unlike the others (`HARDEST`) is judged apart as well.
Batches that happened to be alone count: nobody knows beforehand that they will be.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from ..experiment import Estimate, Goal, Lab
from ..rivals.interference import RIVALS, Sample
from .interference_machine import NEW, Course, measured
from .interference_simulated import Course as Errors
from .interference_simulated import along
from .interference_world import CHANGES, Change

__all__ = ["HARDEST", "judge", "judge_new", "live", "measure_all", "measure_new", "run"]

#: One for each course, in turn.
SEEDS = (11, 12, 13, 14)
QUICK_SEEDS = (11, 12)
OURS = "our own"
#: The new model that is unlike all others.
HARDEST = "file_kind"
#: Batches that predictors are fitted on, that are stationary, that follow a change; and when errors have to be back.
FITTED, BEFORE, AFTER, BACK = 300, 150, 200, 50
QUICK = (120, 60, 100, 50)
#: Batches that have to be left when errors have to be back.
_LEAST = 20


def _course(lab: Lab, number: int, change: Change, new: str = HARDEST) -> list[Sample]:
    fitted, before, after, _ = QUICK if lab.quick else (FITTED, BEFORE, AFTER, BACK)
    course = Course(lab.seeds[number % len(lab.seeds)], change, fitted + before, after, new=new)
    return measured(course, partial(lab.show, f"live: {change}{f', {new}' if change == 'new model' else ''}"))


def measure_all(lab: Lab) -> dict[Change, list[Sample]]:
    """One course for each change."""
    return {change: _course(lab, number, change) for number, change in enumerate(CHANGES)}


def measure_new(lab: Lab) -> dict[str, list[Sample]]:
    """One course for each other model as the new one; with `lab.quick` for two of them."""
    names = [name for name in NEW if name != HARDEST]
    return {
        name: _course(lab, number + 1, "new model", name)
        for number, name in enumerate(names[:2] if lab.quick else names)
    }


def run(lab: Lab) -> None:
    """Measure and judge."""
    courses = measure_all(lab)
    judge(lab, courses)
    judge_new(lab, {**measure_new(lab), HARDEST: courses["new model"]})


live = run


def judge(lab: Lab, courses: Mapping[Change, Sequence[Sample]]) -> None:
    """Claims on what was measured."""
    fitted, before, _, back = QUICK if lab.quick else (FITTED, BEFORE, AFTER, BACK)
    short = [change for change, samples in courses.items() if len(samples) < fitted + before + back + _LEAST]
    if short:
        lab.leave_out("live", f"the machine was too slow: too few batches ended ({', '.join(short)})")
        return
    names = [name for name in RIVALS if name != "boosting" or not lab.quick]
    errors: dict[tuple[str, Change], Errors] = {}
    for at, name in enumerate(names):
        for change, samples in courses.items():
            lab.show("live: predictors", at / len(names))
            rival = RIVALS[name]()
            rival.fit(samples[:fitted])
            errors[name, change] = along(rival, samples[fitted:])
    stationary = {name: [e for c in courses for e in errors[name, c].came[:before]] for name in names}
    begins = {name: [e for c in courses for e in errors[name, c].begin[:before]] for name in names}
    medians = ", ".join(
        f"{name} {statistics.median(found):.1f} and {np.percentile(found, 95):.0f}"
        for name, found in stationary.items()
        if name != "ours"
    )
    floor = _alone([s for samples in courses.values() for s in samples])
    for ident, at, limit in (("median", 50, 5.0), ("p95", 95, 20.0)):
        lab.claim(
            f"live.stationary.{ident}",
            f"error as it came, up to four at once on this machine's cores, percentile {at}; {floor}; median and "
            f"95th percentile of the rivals in per cent: {medians}",
            source=OURS,
            goal=Goal("at most", limit, "%"),
            measured=_percentile(stationary["ours"], at),
        )
    begun = ", ".join(f"{n} {statistics.median(f):.1f}" for n, f in begins.items() if n != "ours")
    best = min(statistics.median(found) for name, found in begins.items() if name not in ("ours", "boosting"))
    lab.claim(
        "live.stationary.begin",
        f"median error at the begin, over that of the best rival but boosting ({best:.1f} %); all: {begun}",
        source=OURS,
        goal=Goal("at most", 1.0, "×"),
        measured=_percentile([e / best for e in begins["ours"]], 50),
    )
    usual = statistics.median(stationary["ours"])
    for change in courses:
        later = errors["ours", change].came[before + back :]
        first = statistics.median(errors["ours", change].came[before : before + back])
        rivals = ", ".join(
            f"{name} {statistics.median(errors[name, change].came[before + back :]):.1f}"
            for name in names
            if name != "ours"
        )
        lab.claim(
            f"live.{change.replace(' ', '-')}.back",
            f"{change}: median error from {back} batches after the change on over the stationary one ({usual:.1f} %; "
            f"in the first {back} batches {first:.1f} %); rivals in per cent: {rivals}",
            source=OURS,
            goal=Goal("at most", 1.5, "×"),
            measured=_percentile([e / usual for e in later], 50),
        )
    for ident, part, limit in (("before", slice(0, before), 2.0), ("after", slice(before, None), 3.0)):
        covered = {name: [100.0 * w for c in courses for w in errors[name, c].within[part]] for name in names}
        rivals = ", ".join(f"{n} {statistics.fmean(f):.1f}" for n, f in covered.items() if n != "ours")
        value = statistics.fmean(covered["ours"]) - 95
        lab.claim(
            f"live.coverage.{ident}",
            f"part of the times within the 95 % bound said at the begin, less 95 %, {ident} the change; part of the "
            f"rivals: {rivals}",
            source=OURS,
            goal=Goal("within", limit, "points"),
            measured=Estimate(value, value, value),
        )


def _alone(samples: Sequence[Sample]) -> str:
    """How far batches are from their time alone that had nobody beside them: the machine itself, and no predictor."""
    off = [100 * abs(sample.slowdown - 1) for sample in samples if not sample.beside]
    if not off:
        return "no batch was alone"
    return (
        f"{len(off)} batches that were alone were off their time alone by {statistics.median(off):.1f} % in the "
        f"median and {np.percentile(off, 95):.0f} % at the 95th percentile"
    )


def judge_new(lab: Lab, courses: Mapping[str, Sequence[Sample]]) -> None:
    """The claim on new models: each of them is the new one once."""
    fitted, before, _, back = QUICK if lab.quick else (FITTED, BEFORE, AFTER, BACK)
    ratios: dict[str, float] = {}
    for name, samples in courses.items():
        if len(samples) < fitted + before + back + _LEAST:
            lab.leave_out(f"live.new-models.{name}", "the machine was too slow: too few batches ended")
            continue
        ours = RIVALS["ours"]()
        ours.fit(samples[:fitted])
        came = along(ours, samples[fitted:]).came
        ratios[name] = statistics.median(came[before + back :]) / statistics.median(came[:before])
    if not ratios:
        return
    each = ", ".join(f"{name} {ratio:.2f}" for name, ratio in sorted(ratios.items(), key=lambda row: row[1]))
    rng = np.random.default_rng(1)
    found = list(ratios.values())
    drawn = [float(np.median(rng.choice(found, len(found)))) for _ in range(400)]
    lab.claim(
        "live.new-models.back",
        f"each of {len(found)} models is the new one once: median error from {back} batches after it came on, over "
        f"that of the same course before; the median over models. Each: {each}",
        source=OURS,
        goal=Goal("at most", 1.5, "×"),
        measured=Estimate(
            statistics.median(found), float(np.percentile(drawn, 2.5)), float(np.percentile(drawn, 97.5))
        ),
    )


def _percentile(values: Sequence[float], percent: float) -> Estimate:
    """With an interval by bootstrap over batches."""
    found = float(np.percentile(values, percent))
    rng = np.random.default_rng(1)
    drawn = [np.percentile(rng.choice(values, len(values)), percent) for _ in range(400)]
    return Estimate(found, float(np.percentile(drawn, 2.5)), float(np.percentile(drawn, 97.5)))
