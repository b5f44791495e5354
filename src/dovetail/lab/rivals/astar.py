"""The K cheapest ways to run a few stages in a row within a budget: A* with pruning by time and by cost.

This is our reconstruction of ESG's search for one queue (ESG_1Q): outline [B], names [M], details [I] of section
A.3 of our notes; it is not verified against the paper and has no public code to compare with. It is here as the
method to compare `plan.frontier` with, and as the second opinion that `plan.frontier` is tested against.

Rules of this file
- A path fixes one option per stage; its time and its cost are sums. Wanted: the K paths of least cost whose time is
  within the budget, in ascending cost. Exact (tests compare with trying all paths).
- Blade 1, time: a partial path is dropped if even the fastest completion is too late. Options are in order of time,
  so all that follow are too late as well.
- Blade 2, cost: it is dropped if even the cheapest completion costs more than K *distinct* complete paths known by
  then. The paths known are the fastest completions of what was generated, which blade 1 has shown to be in time.
- A partial path and its continuation by the next stage's fastest option have the same fastest completion. It is
  counted once, with the former: counted twice, it would make the K-th best cost too low and blade 2 could cut a
  path that counts.

Worst case: all paths, O(options ^ stages). Three stages of 256 options take milliseconds, four up to a second, eight
do not end (docs/results/plan.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from math import inf

import msgspec

from ...plan.options import Option

__all__ = ["Path", "Search", "fastest_first", "minimum", "search"]

#: The same costs summed up in another order differ in their last bits; blade 2 must not cut a path over that.
_ROUNDING = 1 + 1e-12


class Path(msgspec.Struct, frozen=True):
    """One option per stage. Only the first is acted on; the rest shows that the budget can be met."""

    options: tuple[Option, ...]
    time_ns: int
    cost_usd: float


class Search(msgspec.Struct, frozen=True):
    """What was found, and the work it took."""

    #: At most K paths in ascending cost; none if no path is within the budget.
    paths: tuple[Path, ...]
    #: Partial paths taken from the heap, and partial paths put there.
    expanded: int
    generated: int
    #: False if `max_generated` ended the search: paths are then real, but cheaper ones may exist.
    finished: bool


def search(
    stages: Sequence[Sequence[Option]],
    budget_ns: int,
    k: int,
    first_batch_max: int | None = None,
    *,
    max_generated: int | None = None,
) -> Search:
    """The `k` cheapest paths within `budget_ns`; the first stage's batch is at most `first_batch_max` (its queue)."""
    rows = [sorted(stage, key=lambda o: (o.mean_ns, o.cost_usd)) for stage in stages]
    if first_batch_max is not None:
        rows[0] = [option for option in rows[0] if option.config.batch <= first_batch_max]
    if not all(rows):
        return Search((), 0, 0, True)
    last = len(rows)
    # What the stages from i on take at least, cost at least, and cost if each runs in its fastest option.
    time_low, cost_low, cost_fastest = [0] * (last + 1), [0.0] * (last + 1), [0.0] * (last + 1)
    for i in range(last - 1, -1, -1):
        time_low[i] = time_low[i + 1] + rows[i][0].mean_ns
        cost_low[i] = cost_low[i + 1] + min(option.cost_usd for option in rows[i])
        cost_fastest[i] = cost_fastest[i + 1] + rows[i][0].cost_usd
    if time_low[0] > budget_ns:
        return Search((), 0, 0, True)

    known = [-inf] * (k - 1) + [-cost_fastest[0]]  # negated: the K least costs of complete paths, dearest on top
    known.sort()
    limit = -known[0] * _ROUNDING
    # Least possible cost, then deeper first, then first come. A path is a tuple of positions in the rows.
    heap: list[tuple[float, int, int, int, float, tuple[int, ...]]] = [(cost_low[0], 0, 0, 0, 0.0, ())]
    expanded, generated = 0, 1
    found: list[Path] = []
    while heap and len(found) < k:
        low, depth, _, time_ns, cost_usd, chosen = heappop(heap)
        if low > limit:
            break
        expanded += 1
        i = -depth
        if i == last:
            found.append(Path(tuple(row[c] for row, c in zip(rows, chosen, strict=True)), time_ns, cost_usd))
            continue
        if max_generated is not None and generated >= max_generated:
            return Search(_ascending(found), expanded, generated, False)
        room_ns = budget_ns - time_ns - time_low[i + 1]
        rest_low, rest_fastest = cost_low[i + 1], cost_fastest[i + 1]
        for c, option in enumerate(rows[i]):
            if option.mean_ns > room_ns:
                break  # blade 1
            cost = cost_usd + option.cost_usd
            if cost + rest_low > limit:
                continue  # blade 2
            heappush(heap, (cost + rest_low, depth - 1, generated, time_ns + option.mean_ns, cost, (*chosen, c)))
            generated += 1
            if c and cost + rest_fastest < -known[0]:  # c == 0 is the completion its parent has counted
                heapreplace(known, -(cost + rest_fastest))
                limit = -known[0] * _ROUNDING
    return Search(_ascending(found), expanded, generated, True)


def fastest_first(options: Sequence[Option], k: int, batch_max: int | None = None) -> list[Option]:
    """What to try if no path is in time: the fastest options of the first stage [I]."""
    legal = [option for option in options if batch_max is None or option.config.batch <= batch_max]
    return sorted(legal, key=lambda o: (o.mean_ns, o.cost_usd))[:k]


def minimum(options: Sequence[Option]) -> Option:
    """The last resort if nothing can be placed: the option that asks for least [B]."""
    return min(options, key=lambda o: (o.config.batch, o.config.share_pct, o.config.cpus))


def _ascending(paths: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(sorted(paths, key=lambda p: p.cost_usd))
