"""How neighbours add up: from what each of them would cost alone to what all of them cost together.

Rules of this file
- Costs are logarithms of slow-downs. A cost below nought counts as nought: nobody runs faster beside others.
- Of several, s^p = 1 + Σ (s_j^p − 1). With p = 1 what neighbours cost is added (iGniter's form), with p near 0 it is
  multiplied, with a large p only the worst counts. p is learned. One more neighbour never makes anybody faster.
- Over time, work alone flows at the rate 1/s of whoever is there: the mean slow-down is harmonic, not arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from .features import FULL_PCT, crowd_of

__all__ = ["Slope", "forward_ns", "over_time", "together"]

#: (logarithm of the slow-down, its derivatives by each cost, by the crowd's cost, and by p).
Slope = tuple[float, list[float], float, float]
#: Stands for the end of the batch itself.
_LAST: Final = 1 << 30


def together(costs: Sequence[float], crowd: float, power: float) -> Slope:
    """The slow-down beside all of them at once, and how it changes with what each costs."""
    total, weighted = 1.0, 0.0
    grown: list[float] = []
    for cost in costs:
        grow = math.exp(power * cost) if cost > 0 else 1.0
        grown.append(grow)
        total += grow - 1
        if cost > 0:
            weighted += cost * grow
    by_crowd = 1.0
    if crowd > 0:
        by_crowd = math.exp(power * crowd)
        total += by_crowd - 1
        weighted += crowd * by_crowd
    value = math.log(total) / power
    by_power = (weighted / total - value) / power
    return value, [grow / total for grow in grown], by_crowd / total, by_power


def over_time(
    costs: Sequence[float],
    spans: Sequence[tuple[float, float]],
    shares_pct: Sequence[int],
    own_pct: int,
    crowd_weight: float,
    power: float,
) -> Slope:
    """The same for neighbours that were there only in these spans, as parts of the whole from 0 to 1.

    The derivative that belongs to the crowd is the one by its weight.
    """
    exp, log = math.exp, math.log
    # Weighted: the sum of what each costs times how it grows. Both are kept up to date as neighbours come and leave.
    total, weighted, there, share_pct = 1.0, 0.0, 0, own_pct
    growth: list[float] = []
    edges: list[tuple[float, int]] = []
    for j, (begin, end) in enumerate(spans):
        cost = costs[j]
        grow = exp(power * cost) if cost > 0 else 1.0
        growth.append(grow)
        if end <= 0 or begin >= 1 or end <= begin:
            continue
        if begin > 0:
            edges.append((begin, j))
        else:
            total += grow - 1
            if cost > 0:
                weighted += cost * grow
            there += 1
            share_pct += shares_pct[j]
        edges.append((end if end < 1 else 1.0, ~j))
    edges.sort()
    by_cost = [0.0] * len(growth)
    rate = grown = by_crowd = by_power = at = 0.0
    edges.append((1.0, _LAST))
    for edge, j in edges:
        if edge > at:
            # Sums of differences may be a little below what they should be.
            crowded, weighs = (total if total > 1 else 1.0), (weighted if weighted > 0 else 0.0)
            crowd = extra = 0.0
            if there > 1 and share_pct > FULL_PCT:
                crowd = crowd_of(share_pct, there)
                extra = exp(power * crowd_weight * crowd) if crowd_weight > 0 else 1.0
                crowded += extra - 1
                weighs += max(0.0, crowd_weight) * crowd * extra
            value = log(crowded) / power
            speed = (edge - at) * exp(-value)
            part = speed / crowded
            rate += speed
            grown += part
            by_power += weighs * part - speed * value
            if crowd:
                by_crowd += crowd * extra * part
            at = edge
        if j == _LAST:
            break
        if j >= 0:
            total += growth[j] - 1
            if costs[j] > 0:
                weighted += costs[j] * growth[j]
            there += 1
            share_pct += shares_pct[j]
            by_cost[j] = -grown
        else:
            j = ~j
            total -= growth[j] - 1
            if costs[j] > 0:
                weighted -= costs[j] * growth[j]
            there -= 1
            share_pct -= shares_pct[j]
            by_cost[j] += grown
    scale = 1 / rate
    by_cost = [part * grow * scale for part, grow in zip(by_cost, growth, strict=True)]
    return -log(rate), by_cost, by_crowd * scale, by_power * scale / power


def forward_ns(
    work_ns: float,
    costs: Sequence[float],
    begins_ns: Sequence[int],
    ends_ns: Sequence[int],
    shares_pct: Sequence[int],
    own_pct: int,
    crowd_weight: float,
    power: float,
) -> float:
    """How long so much work takes beside neighbours that come and leave at these times from now on.

    Work that is left falls at the rate 1/slow-down of those who are there.
    """
    total, share_pct, count = 1.0, own_pct, 0
    edges: list[tuple[int, float, int, int]] = []
    for cost, begin_ns, end_ns, pct in zip(costs, begins_ns, ends_ns, shares_pct, strict=True):
        if end_ns <= 0 or end_ns <= begin_ns:
            continue
        extra = math.exp(power * cost) - 1 if cost > 0 else 0.0
        edges.append((end_ns, -extra, -pct, -1))
        if begin_ns > 0:
            edges.append((begin_ns, extra, pct, 1))
        else:
            total += extra
            share_pct += pct
            count += 1
    edges.sort()
    now = 0.0
    for at_ns, extra, pct, one in edges:
        crowded = max(1.0, total)
        if crowd_weight > 0 and (crowd := crowd_of(share_pct, count)):
            crowded += math.exp(power * crowd_weight * crowd) - 1
        slow = math.exp(math.log(crowded) / power)
        if work_ns * slow <= at_ns - now:
            return now + work_ns * slow
        work_ns -= (at_ns - now) / slow
        now = float(at_ns)
        total += extra
        share_pct += pct
        count += one
    return now + work_ns
