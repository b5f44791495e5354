"""Outcomes of pairs on one device, made by hand: a figure for each way of sharing, a little different by pair."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.lab.experiments.fikit_world import PAIRS, Job, Outcome

#: Pairs differ by these factors, so that the lowest, the median and the highest are not the same.
FACTORS = tuple(1.0 + number / 10 for number in range(len(PAIRS)))
LOWEST, HIGHEST = FACTORS[0], FACTORS[-1]
MEDIAN = (FACTORS[5] + FACTORS[6]) / 2


def outcome(high: float = 1.0, low: float = 1.0, **fields: float) -> Outcome:
    figures: dict[str, float] = {
        "low_variation": 0.1,
        "busy": 0.5,
        "worst_wait_ns": 100,
        "low_wait_ns": 100,
        "longest_low_ns": 100,
        "end_ns": 1000,
        "low_rate": 0.5,
        **fields,
    }
    return Outcome(high, low, **figures)  # type: ignore[arg-type]


def factor(job: Job) -> float:
    """How far this job's pair is moved."""
    return FACTORS[PAIRS.index((job.high, job.low))]


def pairs_of(values: Mapping[str, tuple[float, float]], job: Job, **fields: float) -> Outcome:
    """An outcome whose completion times are those of its way of sharing; those of the default are moved by pair."""
    high, low = values[job.policy]
    moved = factor(job) if job.policy in ("slices", "fifo") else 1.0
    return outcome(high * moved, low * moved, **fields)
