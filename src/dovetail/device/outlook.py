"""What is to be expected of a task that leaves gaps: its kernels to come, and how much a filler would delay them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from ..profile.kernels import Spread, bucket_edges
from ..state.worker import FULL_SHARE
from .arbiter_tasks import ArbiterTask

__all__ = ["Owed", "Tail", "delay_to", "peak"]


class Owed:
    """Delay of a task that it has not caught up with, and by how much its gaps were shorter than usual since."""

    __slots__ = ("caught_up_ns", "delay_ns")

    def __init__(self) -> None:
        self.delay_ns = 0
        self.caught_up_ns = 0.0


class Tail:
    """A wait as it was when so many of it had been seen: `Spread.expected_delay_ns` by bisection.

    That walks through all buckets, about 30 for a gap of a host, which was a third of what it took to decide on one.
    """

    __slots__ = ("_delays", "_highs", "_lows", "_middles", "_weights", "count")

    def __init__(self, spread: Spread) -> None:
        self.count = spread.count
        ordered = sorted(spread.buckets)
        edges = [bucket_edges(bucket) for bucket in ordered]
        self._lows = [low for low, _ in edges]
        self._highs = [high for _, high in edges]
        self._middles = [(low + high) / 2 for low, high in edges]
        #: Of all buckets before each: how many, and their middles added up.
        self._weights, self._delays = [0], [0.0]
        for bucket, middle in zip(ordered, self._middles, strict=True):
            self._weights.append(self._weights[-1] + spread.buckets[bucket])
            self._delays.append(self._delays[-1] + spread.buckets[bucket] * middle)

    def fits(self, spread: Spread) -> bool:
        """Whether not much more has been seen since: an eighth."""
        return 0 <= spread.count - self.count <= self.count // 8

    def expected_delay_ns(self, duration_ns: int, elapsed_ns: int) -> float:
        """By how much something that takes so long is expected to outlast the rest of the wait."""
        weights, end_ns = self._weights, elapsed_ns + duration_ns
        first = bisect_right(self._highs, elapsed_ns)
        last = bisect_left(self._middles, end_ns)
        weight = float(weights[-1] - weights[first])
        if first == len(self._highs):
            return float(duration_ns)
        delay = 0.0
        if last > first:
            delay = (weights[last] - weights[first]) * end_ns - (self._delays[last] - self._delays[first])
        low, high = self._lows[first], self._highs[first]
        if low < elapsed_ns:
            # Of the bucket in which the wait is now, only what lies ahead counts.
            count = weights[first + 1] - weights[first]
            part = count * (high - elapsed_ns) / (high - low)
            middle = (elapsed_ns + high) / 2
            weight += part - count
            if last > first:
                delay -= count * (end_ns - self._middles[first])
            if middle < end_ns:
                delay += part * (end_ns - middle)
        return delay / weight if weight else float(duration_ns)


def delay_to(holder: ArbiterTask, left_ns: float, room_pct: int, beside: float, now_ns: int) -> float:
    """Delay that a lower kernel which is at work for another `left_ns` is expected to cause a holder.

    The holder's kernels that fit into `room_pct` run beside it, slower by `beside`; the first that does not, waits.
    """
    delay_ns = 0.0
    for gap, since_ns, share_pct, takes_ns in _to_come(holder, now_ns):
        if share_pct > room_pct or takes_ns is None:
            return delay_ns + (left_ns if gap is None else gap.expected_delay_ns(round(left_ns), since_ns))
        if gap is not None:
            left_ns -= max(0.0, gap.mean_ns - since_ns)
        if left_ns > 0:
            delay_ns += beside * min(left_ns, takes_ns)
            left_ns -= takes_ns
        if left_ns <= 0:
            break
    return delay_ns


def _to_come(task: ArbiterTask, now_ns: int) -> Iterator[tuple[Spread | None, int, int, float | None]]:
    """A task's kernels from now on: the gap before it and how much of that has passed, its share, what it takes.

    A kernel that is launched has no gap before it. One that nothing is known of wants the whole device.
    """
    stats, position, since_ns = task.stats, task.position, now_ns - task.free_ns
    if stats is None:
        yield None, 0, FULL_SHARE + 1, None
        return
    for kernel, started in task.started.items():
        takes_ns = stats.durations[kernel].mean_ns * started.part if stats.known(kernel) else None
        yield None, 0, 0, takes_ns and max(0.0, takes_ns - (now_ns - started.start_ns))
        position, since_ns = kernel, 0
    for waiting in task.ready:
        takes_ns = stats.durations[waiting.kernel].mean_ns * waiting.rest if stats.known(waiting.kernel) else None
        yield None, 0, waiting.share_pct, takes_ns
        position, since_ns = waiting.kernel, 0
    while not stats.is_last(position):
        gap = stats.gap(position)
        position += 1
        takes_ns = stats.durations[position].mean_ns if gap is not None and stats.known(position) else None
        yield gap, since_ns, stats.shares.get(position, FULL_SHARE), takes_ns
        since_ns = 0


def peak(gain: Callable[[int], float], last: int) -> int:
    """Where, from 1 to `last`, the gain is the highest, if it rises first and falls then."""
    first = 1
    while first < last:
        middle = (first + last) // 2
        if gain(middle) < gain(middle + 1):
            first = middle + 1
        else:
            last = middle
    return first
