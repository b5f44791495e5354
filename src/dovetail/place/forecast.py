"""When a worker expects to start and to finish what it has taken.

Rules of this file: an estimate from expected times, by list scheduling: each batch in turn starts when its share is
free and its model is there. Batches that wait for a model stand behind those that do not, as `Desk` lets them be
overtaken. Loads are taken to begin as soon as one of the load slots is free; that there may be no room for them yet
is left out, so a start that the forecast calls impossible is impossible by all that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from .tickets import Rules, Ticket

__all__ = ["forecast"]


def forecast(
    running: Iterable[Ticket],
    queued: Iterable[Ticket],
    free_pct: int,
    fetch_ns: Callable[[str], int],
    rules: Rules,
    now_ns: int,
) -> tuple[dict[int, int], int]:
    """Expected starts by batch, and the time at which all of it is done.

    `fetch_ns` says how long it takes, from now or from when it may begin, until a model is there; 0 if it is.
    """
    ends = [
        (max(now_ns, (t.begin_ns if t.begin_ns >= 0 else now_ns + fetch_ns(t.weights)) + t.expected_ns), t.share_pct)
        for t in running
    ]
    done_ns = max((end for end, _ in ends), default=now_ns)
    heapify(ends)
    starts: dict[int, int] = {}
    clock_ns = now_ns
    for ready_ns, ticket in _line(queued, fetch_ns, rules, now_ns):
        while free_pct < ticket.share_pct:
            end_ns, share_pct = heappop(ends)
            free_pct += share_pct
            if end_ns > clock_ns:
                clock_ns = end_ns
        if rules.fetch_blocks:
            start_ns = max(clock_ns, ticket.earliest_ns) + ready_ns
        else:
            start_ns = max(clock_ns, ticket.earliest_ns, ready_ns)
        starts[ticket.batch] = start_ns
        end_ns = start_ns + ticket.expected_ns
        heappush(ends, (end_ns, ticket.share_pct))
        free_pct -= ticket.share_pct
        if end_ns > done_ns:
            done_ns = end_ns
    return starts, done_ns


def _line(
    queued: Iterable[Ticket], fetch_ns: Callable[[str], int], rules: Rules, now_ns: int
) -> list[tuple[int, Ticket]]:
    """What waits, in the order of starting, each with the time at which its model is there.

    If a fetch occupies the device, the number is how long the fetch takes once the batch has come up.
    """
    line: list[tuple[int, Ticket]] = []
    ready: dict[str, int] = {}
    slots = [now_ns] * max(1, rules.loads)
    waits = False
    for ticket in queued:
        weights = ticket.weights
        if not ticket.nbytes:
            ready_ns = 0
        elif rules.fetch_blocks:
            ready_ns = 0 if weights in ready else fetch_ns(weights)
            ready[weights] = 0
        else:
            known = ready.get(weights)
            if known is None:
                wait_ns = fetch_ns(weights)
                known = now_ns + wait_ns
                if wait_ns:
                    known = slots[0] + wait_ns
                    heappop(slots)
                    heappush(slots, known)
                ready[weights] = known
            ready_ns = known
        waits = waits or ready_ns > now_ns
        line.append((ready_ns, ticket))
    if waits and not (rules.in_order or rules.fetch_blocks):
        line.sort(key=lambda pair: max(pair[0], now_ns))
    return line
