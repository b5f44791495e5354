"""What no arbiter can exceed: the most low-priority work while the high-priority client is within 5 % of alone.

`most_left` is the plain one: what high-priority kernels leave. `lowest_low` is sharper where kernels are whole: for a
high client that waits for every kernel, on a device that runs one kernel at a time. There every delay lengthens
the task by itself, so a plan is nothing but a choice, gap by gap, of how many low kernels to run in it. This planner
knows all gaps before, needs no gate, finds the low client at the best place in its sequence whenever a high task
begins, and fills all of the rest between tasks. Two rules are kept: low kernels run in order, and are not divided.
Their durations are the typical ones; in a run they scatter by 3 %.

The budget is priced (Lagrange): for every price of delay, the best plan at that price plus the price of the whole
budget is an upper bound; the least of them is taken.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from ..kernels.device import rests
from .fikit_world import Job, alone_ns, clients

__all__ = ["DELAY", "lowest_low", "most_left"]

#: Delay that the high client may suffer, of its time alone: the goal of `exclusive.*`.
DELAY = 0.05
#: Work that a unit of delay must bring: any choice of these gives a bound, and the best was always one of them.
PRICES = (1.5, 2.0, 3.0, 4.0, 6.0)


def lowest_low(job: Job) -> float:
    """Time per low-priority work, alone = 1, that nobody can go below: 1 / `Outcome.low_rate` at best."""
    high, low = clients(job)
    high_alone_ns = alone_ns(job.high, job.host, job.gap_scale, 1.0, job.seed)
    durations = [kernel.duration_ns for kernel in low.sequence.kernels]
    # The same draws as the simulated client makes (`KernelDevice`), so the same gaps.
    rng = random.Random(f"{job.seed}/0")
    between = rests(high, job.seed, 0)
    rest_ns, total_ns = high.begin_ns, high.begin_ns
    tasks = []
    for number in range(job.tasks):
        kernels, host = high.sequence.draw(rng)
        tasks.append(host[1:])
        rest_ns += host[0]
        total_ns += sum(kernels) + sum(host)
        if number + 1 < job.tasks:
            think_ns = next(between)
            rest_ns += think_ns
            total_ns += think_ns
    budget_ns = DELAY * high_alone_ns * job.tasks
    work_ns = rest_ns + min(
        sum(_best(gaps, durations, price) for gaps in tasks) + price * budget_ns for price in PRICES
    )
    return (total_ns + budget_ns) / work_ns


def most_left(job: Job) -> float:
    """Part of the time that no arbiter can give to low-priority kernels more than, one kernel at a time.

    High-priority kernels take what they take, and their tasks may be late by `DELAY` and no more: the rest is left,
    even if every gap could be filled to the last moment.
    """
    high, _ = clients(job)
    rng, between = random.Random(f"{job.seed}/0"), rests(high, job.seed, 0)
    work_ns = sum(sum(high.sequence.draw(rng)[0]) for _ in range(job.tasks))
    alone_all_ns = job.tasks * alone_ns(job.high, job.host, job.gap_scale, 1.0, job.seed)
    total_ns = high.begin_ns + sum(next(between) for _ in range(job.tasks - 1)) + (1 + DELAY) * alone_all_ns
    return 1 - work_ns / total_ns


def _best(gaps: Sequence[int], durations: Sequence[int], price: float) -> float:
    """The most that low work less priced delay can add up to in these gaps, from the best place to begin at."""
    count = len(durations)
    ends = np.concatenate([[0.0], np.cumsum(np.tile(durations, 1 + -(-max(gaps) // sum(durations)) + 1))])
    at = np.arange(count)
    value = np.zeros(count)
    for gap in reversed(gaps):
        best, run = value.copy(), 1
        # The last of them has to begin before the gap is over.
        while (begins := ends[at + run - 1] - ends[at] < gap).any():
            work = ends[at + run] - ends[at]
            worth = work - price * np.maximum(0.0, work - gap) + value[(at + run) % count]
            best = np.where(begins, np.maximum(best, worth), best)
            run += 1
        value = best
    return float(value.max())
