"""How neighbours add up: from what each of them would cost alone to what all of them cost together.

Rules of this file
- Costs are logarithms of slow-downs. A cost below nought counts as nought: nobody runs faster beside others.
- Of several, s^p = 1 + Σ (s_j^p − 1). With p = 1 what neighbours cost is added (iGniter's form), with p near 0 it is
  multiplied, with a large p only the worst counts. p is learned. One more neighbour never makes anybody faster.
- Over time, work alone flows at the rate 1/s of whoever is there: the mean slow-down is harmonic, not arithmetic.
- How it changes with each cost is worked out apart, because most batches are not learned from that closely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from .features import FULL_PCT, crowd_of

__all__ = ["Slope", "Step", "forward_ns", "over_time", "slopes_over_time", "together"]

#: (logarithm of the slow-down, its derivatives by each cost, by the crowd's cost, and by p).
Slope = tuple[float, list[float], float, float]
#: One stretch of time with the same neighbours: work alone that is done in it, s^p, what the crowd grows by and its
#: size, and who comes (j) or leaves (~j) at its end.
Step = tuple[float, float, float, float, int]
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
    begins: Sequence[float],
    ends: Sequence[float],
    whole: float,
    shares_pct: Sequence[int],
    own_pct: int,
    crowd_weight: float,
    power: float,
) -> tuple[float, list[float], list[Step]]:
    """The slow-down over a `whole` time of neighbours who come and leave at these times.

    With it comes what `slopes_over_time` needs: what each adds to s^p, and the steps.
    """
    exp = math.exp
    total, there, share_pct = 1.0, 0, own_pct
    growth: list[float] = []
    edges: list[tuple[float, int]] = []
    for j, cost in enumerate(costs):
        grow = exp(power * cost) - 1 if cost > 0 else 0.0
        growth.append(grow)
        begin, end = begins[j], ends[j]
        if end <= 0 or begin >= whole or end <= begin:
            continue
        if begin > 0:
            edges.append((begin, j))
        else:
            total += grow
            there += 1
            share_pct += shares_pct[j]
        if end < whole:
            edges.append((end, ~j))
    edges.sort()
    edges.append((whole, _LAST))
    steps: list[Step] = []
    rate = at = 0.0
    slower = -1 / power
    for edge, j in edges:
        # Sums of differences may be a little below what they should be.
        crowded = total if total > 1 else 1.0
        crowd = extra = 0.0
        if there > 1 and share_pct > FULL_PCT:
            crowd = crowd_of(share_pct, there)
            extra = exp(power * crowd_weight * crowd) if crowd_weight > 0 else 1.0
            crowded += extra - 1
        speed = (edge - at) * crowded**slower
        rate += speed
        steps.append((speed, crowded, extra, crowd, j))
        at = edge
        if j >= 0:
            if j != _LAST:
                total += growth[j]
                there += 1
                share_pct += shares_pct[j]
        else:
            total -= growth[~j]
            there -= 1
            share_pct -= shares_pct[~j]
    return -math.log(rate / whole), growth, steps


def slopes_over_time(
    costs: Sequence[float],
    begins: Sequence[float],
    ends: Sequence[float],
    growth: Sequence[float],
    steps: Sequence[Step],
    crowd_weight: float,
    power: float,
) -> tuple[list[float], float, float]:
    """The derivatives of that by each cost, by the crowd's weight, and by p."""
    rate = grown = by_crowd = by_power = 0.0
    #: Work over s^p that was done when each came, and when each left.
    came, left = [0.0] * len(costs), [-1.0] * len(costs)
    for speed, crowded, extra, crowd, j in steps:
        part = speed / crowded
        rate += speed
        grown += part
        by_power -= speed * math.log(crowded)
        if crowd:
            by_crowd += crowd * extra * part
        if j < 0:
            left[~j] = grown
        elif j != _LAST:
            came[j] = grown
    scale = 1 / rate
    by_power = by_power / power + max(0.0, crowd_weight) * by_crowd
    by_cost = []
    for cost, begin, end, grow, first, last in zip(costs, begins, ends, growth, came, left, strict=True):
        part = 0.0
        if last >= 0:
            part = (last - first) * (grow + 1)
        elif end > begin and end > 0 and (first or begin <= 0):
            part = (grown - first) * (grow + 1)
        if cost > 0:
            by_power += cost * part
        by_cost.append(part * scale)
    return by_cost, by_crowd * scale, by_power * scale / power


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
