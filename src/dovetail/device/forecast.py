"""When a worker expects to start and to finish what it has taken.

Rules of this file: an estimate from expected times, by list scheduling: each batch in turn starts when its share is
free and its model is there. Batches that wait for a model stand behind those that do not, as the queue lets them be
overtaken. Loads are taken to begin as soon as one of the load slots is free; that there may be no room for them yet
is left out, so a start that the forecast calls impossible is impossible by all that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from ..state.worker import FULL_SHARE
from .rules import Rules
from .task import Task

__all__ = ["forecast"]


def forecast(
    running: Iterable[Task],
    queued: Iterable[Task],
    fetch_ns: Callable[[str, int], int],
    load_ends: Mapping[str, int],
    rules: Rules,
    now_ns: int,
) -> tuple[dict[int, int], int]:
    """Expected starts by batch, and the time at which all of it is done.

    `fetch_ns(weights, now)` says how long it takes, once it may begin, until a model is there; 0 if it is.
    `load_ends` are the expected ends of loads on their way.
    """
    whole = rules.fetch_blocks
    ends: list[tuple[int, int]] = []
    free_pct = FULL_SHARE
    for task in running:
        begin_ns = task.begin_ns if task.begin_ns >= 0 else now_ns + fetch_ns(task.weights, now_ns)
        share_pct = FULL_SHARE if whole else task.share_pct
        ends.append((max(now_ns, begin_ns + task.expected_ns), share_pct))
        free_pct -= share_pct
    done_ns = max((end for end, _ in ends), default=now_ns)
    heapify(ends)
    starts: dict[int, int] = {}
    clock_ns = now_ns
    for ready_ns, task in _line(queued, fetch_ns, load_ends, rules, now_ns):
        share_pct = FULL_SHARE if whole else task.share_pct
        while free_pct < share_pct:
            end_ns, freed_pct = heappop(ends)
            free_pct += freed_pct
            if end_ns > clock_ns:
                clock_ns = end_ns
        if whole:
            start_ns = max(clock_ns, task.run.earliest_ns) + ready_ns
        else:
            start_ns = max(clock_ns, task.run.earliest_ns, ready_ns)
        starts[task.ident] = start_ns
        end_ns = start_ns + task.expected_ns
        heappush(ends, (end_ns, share_pct))
        free_pct -= share_pct
        if end_ns > done_ns:
            done_ns = end_ns
    return starts, done_ns


def _line(
    queued: Iterable[Task],
    fetch_ns: Callable[[str, int], int],
    load_ends: Mapping[str, int],
    rules: Rules,
    now_ns: int,
) -> list[tuple[int, Task]]:
    """What waits, in the order of starting, each with the time at which its model is there.

    If a fetch occupies the device, the number is how long the fetch takes once the batch has come up.
    """
    line: list[tuple[int, Task]] = []
    ready: dict[str, int] = {}
    slots = sorted((max(now_ns, end_ns) for end_ns in load_ends.values()), reverse=True)[: rules.loads]
    slots += [now_ns] * (rules.loads - len(slots))
    heapify(slots)
    waits = False
    for task in queued:
        weights = task.weights
        if not task.nbytes:
            ready_ns = 0
        elif rules.fetch_blocks:
            ready_ns = 0 if weights in ready else fetch_ns(weights, now_ns)
            ready[weights] = 0
        else:
            known = ready.get(weights)
            if known is None:
                wait_ns = fetch_ns(weights, now_ns)
                if wait_ns and weights not in load_ends:
                    known = slots[0] + wait_ns
                    heapreplace(slots, known)
                else:
                    known = now_ns + wait_ns
                ready[weights] = known
            ready_ns = known
        waits = waits or ready_ns > now_ns
        line.append((ready_ns, task))
    if waits and not (rules.in_order or rules.fetch_blocks):
        line.sort(key=lambda pair: max(pair[0], now_ns))
    return line
