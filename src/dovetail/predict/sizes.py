"""Run times of one stage on one kind of device as they were seen, and what follows from them for what was not.

Rules of this file
- A batch size that was seen in the very configuration asked for has its own mean.
- Between two sizes that were seen the time is on the line between them. Beyond the largest it goes on with the last
  slope, but not below the largest and not faster than in proportion to the items.
- From one size alone, and below the smallest, a tenth of the time is taken not to depend on the items, and the rest
  to be in proportion to them. Of a share that was not seen the time follows from the nearest share that was: a tenth
  of it does not depend on the share, and the rest is in inverse proportion.
- That tenth makes a larger batch or a smaller share look slightly cheaper than what was seen. So a planner with time
  to spare tries it, and learns what it really takes; without, it would never leave its first configuration.
- What was not seen has a wider spread, and so has what was seen but a few times. All sizes count for that: a stage
  whose batches are never of the same size twice is known after a few of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator

from .estimate import GUESSED_SPREAD, Estimate
from .running import Seen

__all__ = ["WINDOW", "SeenSizes", "at_share", "line"]

#: Batches that count, of each size and configuration.
WINDOW = 64
#: Part of a batch's time that is taken to depend neither on its items nor on its share, where only one was seen.
_FIXED = 0.1
#: Added (as independent) to the spread where size or share were not seen. [our choice]
_UNSEEN_SPREAD = 0.3


class SeenSizes:
    """What was seen of one stage on one kind of device."""

    __slots__ = ("_configs",)

    def __init__(self) -> None:
        #: (cores, share) -> items -> times.
        self._configs: dict[tuple[int, int], dict[int, Seen]] = {}

    def at(self, items: int, cpus: int, share_pct: int) -> Seen:
        """What was seen of a size in a configuration, to be added to."""
        sizes = self._configs.get((cpus, share_pct))
        seen = None if sizes is None else sizes.get(items)
        if seen is None:
            seen = Seen(WINDOW)
            self.put(items, cpus, share_pct, seen)
        return seen

    def put(self, items: int, cpus: int, share_pct: int, seen: Seen) -> None:
        """This was seen of a size in a configuration."""
        self._configs.setdefault((cpus, share_pct), {})[items] = seen

    def rows(self) -> Iterator[tuple[int, int, int, Seen]]:
        """(items, cores, share, times) of all that was seen, in a fixed order."""
        for cpus, share_pct in sorted(self._configs):
            sizes = self._configs[cpus, share_pct]
            for items in sorted(sizes):
                yield items, cpus, share_pct, sizes[items]

    def estimate(self, items: int, cpus: int, share_pct: int) -> Estimate:
        """How long such a batch takes; something was seen."""
        sizes = self._configs.get((cpus, share_pct))
        seen_pct = share_pct
        if sizes is None:
            near = min(self._configs, key=lambda c: (abs(c[1] - share_pct), abs(c[0] - cpus), c))
            seen_pct, sizes = near[1], self._configs[near]
        elif (exact := sizes.get(items)) is not None:
            return Estimate(max(1, exact.mean), exact.spread(), "learned")
        mean_ns, deviation = _between(sizes, items)
        doubt = GUESSED_SPREAD / sum([seen.count for seen in sizes.values()])
        spread = math.hypot(deviation, doubt, _UNSEEN_SPREAD)
        return Estimate(at_share(mean_ns, seen_pct, share_pct), spread, "learned")


def _between(sizes: dict[int, Seen], items: int) -> tuple[int, float]:
    """Mean and deviation of a size by the sizes that were seen."""
    exact = sizes.get(items)
    if exact is not None:
        return exact.mean, exact.deviation()
    seen = sorted(sizes)
    at = bisect_left(seen, items)
    if at == 0 or len(seen) == 1:
        near = sizes[seen[0]]
        return line(near.mean, seen[0], items), near.deviation()
    beyond = at == len(seen)
    left, right = (seen[-2], seen[-1]) if beyond else (seen[at - 1], seen[at])
    before, after = sizes[left], sizes[right]
    spread = max(before.deviation(), after.deviation())
    if not beyond:
        return before.mean + (after.mean - before.mean) * (items - left) // (right - left), spread
    more_ns = (after.mean - before.mean) * (items - right) // (right - left)
    return after.mean + min(max(0, more_ns), after.mean * (items - right) // right), spread


def line(seen_ns: int, seen: int, items: int) -> int:
    """Time of a batch of `items` where `seen` items took `seen_ns`."""
    fixed_ns = round(seen_ns * _FIXED)
    return fixed_ns + (seen_ns - fixed_ns) * items // seen


def at_share(seen_ns: int, seen_pct: int, share_pct: int) -> int:
    """Time with another share than the one that was seen."""
    time_ns = line(seen_ns, share_pct if share_pct > 1 else 1, seen_pct)
    return time_ns if time_ns > 1 else 1
