"""What is to be expected of a task that leaves gaps: its kernels to come, and how much a filler would delay them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..profile.kernels import Spread
from ..state.worker import FULL_SHARE
from .arbiter_tasks import ArbiterTask

__all__ = ["delay_to", "peak"]


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
