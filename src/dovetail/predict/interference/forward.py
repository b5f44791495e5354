"""The work integral for all who share a device: when does each of them end?

Rules of this file
- Each has work left, as time alone. It falls at the rate 1/slow-down of those who are there, and every rate is looked
  at again whenever somebody ends or comes.
- What is known to come comes at its time: queued batches, fetches and transfers that contend, expected arrivals.
- A batch may have pieces that use the device differently (phases, kernels). Each piece is a load of its own.
- Who comes when says the caller; how much they slow each other down says the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from .load import Load

__all__ = ["Piece", "Work", "ends_ns"]

#: How many times as long the first takes beside the others.
Slowdown = Callable[[Load, Sequence[Load]], float]


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A part of a batch: what it does to others, and how long it takes alone."""

    load: Load
    alone_ns: float


class Work(msgspec.Struct, frozen=True, array_like=True):
    """A batch that runs, or comes at a time from now on."""

    pieces: tuple[Piece, ...]
    comes_ns: float = 0.0
    #: Nobody slows it down: what is said of it was measured in company, as the time of a fetch is.
    steady: bool = False


def ends_ns(works: Sequence[Work], slowdown: Slowdown, slots: int = 1 << 30, room_pct: int = 0) -> list[float]:
    """When each of these ends, from now on.

    No more than `slots` run at once, and no more than have room if `room_pct` is given: who comes first begins first,
    the others wait.
    """
    ends = [work.comes_ns for work in works]
    at = [0] * len(works)
    left = [work.pieces[0].alone_ns if work.pieces else 0.0 for work in works]
    open_ = [j for j, work in enumerate(works) if work.pieces]
    open_.sort(key=lambda j: works[j].comes_ns)
    now = 0.0
    while open_:
        here = [j for j in open_ if works[j].comes_ns <= now][:slots]
        if room_pct and len(here) > 1:
            here = _with_room(here, works, room_pct)
        next_ns = min((works[j].comes_ns for j in open_ if works[j].comes_ns > now), default=None)
        if not here:
            assert next_ns is not None
            now = next_ns
            continue
        loads = {j: works[j].pieces[at[j]].load for j in here}
        slow = {
            j: 1.0 if works[j].steady else max(1.0, slowdown(loads[j], [loads[i] for i in here if i != j]))
            for j in here
        }
        first = min(here, key=lambda j: left[j] * slow[j])
        until = now + left[first] * slow[first]
        if next_ns is not None and next_ns < until:
            for j in here:
                left[j] -= (next_ns - now) / slow[j]
            now = next_ns
            continue
        for j in here:
            left[j] = 0.0 if j == first else max(0.0, left[j] - (until - now) / slow[j])
        now = until
        at[first] += 1
        if at[first] < len(works[first].pieces):
            left[first] = works[first].pieces[at[first]].alone_ns
        else:
            ends[first] = now
            open_.remove(first)
    return ends


def _with_room(there: list[int], works: Sequence[Work], room_pct: int) -> list[int]:
    """Those who have room together, in their order; the first has it in any case, and nobody overtakes."""
    used_pct = 0
    for count, j in enumerate(there):
        used_pct += works[j].pieces[0].load.share_pct
        if count and used_pct > room_pct:
            return there[:count]
    return there
