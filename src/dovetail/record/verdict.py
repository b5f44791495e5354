"""Where the time of one request went, and one sentence why it ended as it did.

Rules of this file: it reads what `story.py` collected and knows no log. The critical path is found backwards: what
ended last, then whatever ended in the step that queued it, and so on to the arrival. Every nanosecond between
arrival and end lies in exactly one part of one leg, so the parts add up to the latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..units import format_ns

__all__ = ["Leg", "Rival", "Visit", "critical_path", "legs", "verdict"]

#: How many ranges of batch numbers a sentence lists before it says "and N more".
_MAX_RANGES = 4
#: A piece of time is worth a sentence from one part in so many of the whole on.
_MATTERS = 10


class Visit(msgspec.Struct):
    """Items of one node of the request in one batch, or (batch 0) still waiting for one when the story ends."""

    node: int
    name: str
    stage: str
    #: How many of this request's items, of how many in the batch, of how many requests.
    items: int
    batch_items: int
    batch_requests: int
    batch: int
    #: Where it runs; while it waits, the workers that could have run it.
    workers: tuple[int, ...]
    worker: str
    #: When the last of its items was queued, when the first was, and the step that did it.
    queued_ns: int
    first_queued_ns: int
    queued_step: int
    #: Items of all requests that waited for the stage then, and workers that held its model.
    depth: int
    holders: tuple[int, ...]
    weights: str = ""
    #: The worker brings models and decides what runs when: what lies between sending and beginning was spent in it.
    fetches: bool = False
    #: It was sent before there was room for it: what lies between sending and beginning was spent waiting for that.
    ahead: bool = False
    #: When its model came to that worker, if that was while it waited there.
    loaded_ns: int = -1
    sent_ns: int = -1
    sent_step: int = -1
    cpus: int = 0
    share_pct: int = 0
    expected_ns: int = 0
    begin_ns: int = -1
    end_ns: int = -1
    #: How long it had the device of that.
    busy_ns: int = 0
    #: When and in which step the controller was told; -1 if the request ended before.
    done_ns: int = -1
    done_step: int = -1
    failed: str = ""


class Rival(msgspec.Struct, frozen=True):
    """A batch that was on a worker while the request was open."""

    batch: int
    worker: int
    stage: str
    sent_ns: int
    done_ns: int


class Leg(msgspec.Struct, frozen=True):
    """One visit on the critical path. `transport_ns` is the way to the worker and back, and the worker's own queue
    unless it keeps one in earnest, whose time is waiting."""

    name: str
    stage: str
    batch: int
    waiting_ns: int
    transport_ns: int
    running_ns: int
    expected_ns: int
    failed: str


def critical_path(visits: Sequence[Visit], arrived_step: int, ended_step: int) -> list[Visit]:
    """The visits that the end had to wait for, first to last; empty if there was nothing to do."""
    last = max((v for v in visits if v.done_step == ended_step), key=lambda v: v.node, default=None)
    if last is None:
        # It ended from outside (deadline, client, end of the log): the oldest unfinished business explains most.
        last = min((v for v in visits if v.done_step < 0), key=lambda v: (v.queued_ns, v.node), default=None)
    path = [last] if last is not None else []
    while path and path[-1].queued_step != arrived_step:
        after = path[-1]
        # A failed attempt leads to the next attempt at the same node, a finished one to a node behind it.
        before = [v for v in visits if v.done_step == after.queued_step]
        path.append(max(before, key=lambda v: (bool(v.failed) and v.node == after.node, v.node < after.node, v.node)))
    return path[::-1]


def legs(path: Sequence[Visit], ended_ns: int) -> tuple[Leg, ...]:
    """The parts of each visit on the critical path."""
    return tuple(_leg(visit, ended_ns) for visit in path)


def _leg(v: Visit, ended_ns: int) -> Leg:
    if v.sent_ns < 0:
        waiting, transport, running = ended_ns - v.queued_ns, 0, 0
    elif v.done_ns < 0:
        waiting, transport, running = v.sent_ns - v.queued_ns, 0, ended_ns - v.sent_ns
    else:
        running = v.busy_ns
        interrupted = v.end_ns - v.begin_ns - running
        waiting = (v.begin_ns if v.fetches or v.ahead else v.sent_ns) - v.queued_ns + interrupted
        transport = v.done_ns - v.queued_ns - waiting - running
    return Leg(v.name, v.stage, v.batch, waiting, transport, running, v.expected_ns, v.failed)


def verdict(
    outcome: str,
    reason: str,
    spent_ns: int,
    allowed_ns: int,
    path: Sequence[Visit],
    parts: Sequence[Leg],
    rivals: Iterable[Rival],
) -> str:
    """One sentence; `allowed_ns` is the time from arrival to objective, `spent_ns` from arrival to end."""
    spent = format_ns(spent_ns)
    cause = _cause(path, parts, list(rivals), spent_ns)
    because = f": {cause}" if cause else ""
    if outcome == "ok":
        return f"answered in {spent}, {format_ns(allowed_ns - spent_ns)} before its objective{because}"
    if outcome == "late":
        alone_ns = sum(min(leg.running_ns, leg.expected_ns) for leg in parts if not leg.failed)
        if alone_ns >= allowed_ns:
            because = f": its run time alone, {format_ns(alone_ns)}, is longer than its objective"
        return f"late by {format_ns(spent_ns - allowed_ns)}{because}"
    if outcome == "shed":
        return f"given up after {spent}: {reason}{because}" if spent_ns else f"shed on arrival: {reason}"
    if outcome == "failed":
        where = f" in stage {path[-1].stage}" if path else ""
        tries = sum(1 for v in path if v.failed and v.node == path[-1].node)
        attempt = f" at attempt {tries}" if tries > 1 else ""
        return f"failed after {spent}{where}{attempt}: {reason}"
    if outcome == "open":
        return f"still open when the log ends, {spent} after its arrival{because}"
    return f"{outcome} after {spent} ({reason}){because}"


def _cause(path: Sequence[Visit], parts: Sequence[Leg], rivals: list[Rival], spent_ns: int) -> str:
    """The kind of time that need not have been and was most; if all of it is little, the longest run."""
    if not parts:
        return ""
    pairs = list(zip(path, parts, strict=True))
    kinds = {
        "waited": [leg.waiting_ns for leg in parts],
        "travelled": [leg.transport_ns for leg in parts],
        "lost": [leg.running_ns if leg.failed else 0 for leg in parts],
        "overran": [0 if leg.failed or not leg.batch else max(0, leg.running_ns - leg.expected_ns) for leg in parts],
    }
    kind = max(kinds, key=lambda name: sum(kinds[name]))
    total_ns = sum(kinds[kind])
    if total_ns * _MATTERS < spent_ns or not total_ns:
        longest = max(parts, key=lambda leg: leg.running_ns)
        return f"it hardly waited, and stage {longest.stage} ran {format_ns(longest.running_ns)} of it"
    piece_ns, (visit, leg) = max(zip(kinds[kind], pairs, strict=True), key=lambda entry: entry[0])
    total = format_ns(total_ns)
    of_it = f", {format_ns(piece_ns)} of it" if piece_ns < total_ns else ""
    if kind == "waited":
        return f"waited {total}{of_it} for stage {leg.stage}, {_why_waited(visit, leg, rivals)}"
    if kind == "travelled":
        return f"{total} on the way to workers and back{of_it} for stage {leg.stage}"
    if kind == "lost":
        return f"{total} lost in batches that failed{of_it} in stage {leg.stage} ({leg.failed})"
    ran, expected = format_ns(leg.running_ns), format_ns(leg.expected_ns)
    return f"ran {total} longer than expected{of_it} in stage {leg.stage} (batch {leg.batch}: {ran}, not {expected})"


def _why_waited(visit: Visit, leg: Leg, rivals: list[Rival]) -> str:
    until_ns = visit.queued_ns + leg.waiting_ns
    if visit.fetches and visit.loaded_ns >= 0:
        return f"{format_ns(visit.loaded_ns - visit.sent_ns)} until {visit.worker} had loaded its model"
    if not visit.fetches and (not visit.holders or not visit.workers):
        return "whose model no worker held"
    busy = [
        r
        for r in rivals
        if r.worker in visit.workers
        and r.batch != visit.batch
        and r.sent_ns < until_ns
        and (r.done_ns < 0 or r.done_ns > visit.queued_ns)
    ]
    if not busy and visit.fetches:
        return f"in the queue of {visit.worker}"
    if not busy:
        # Idle all the time: either it could not have run this, or somebody did not let it.
        late = visit.batch and visit.workers[0] not in visit.holders
        return f"until {visit.worker} had loaded its model" if late else "which its policy held back"
    who = f"whose worker {visit.worker} was" if visit.batch else "whose workers were"
    stages = sorted({r.stage for r in busy})
    of = f" of stage {stages[0]}" if len(stages) == 1 else f" of {len(stages)} stages"
    return f"{who} busy with {_numbers([r.batch for r in busy])}{of}"


def _numbers(batches: list[int]) -> str:
    """Batch numbers for a sentence: ``batches 17–19, 23 and 5 more``."""
    ranges: list[list[int]] = []
    for batch in sorted(batches):
        if ranges and ranges[-1][1] == batch - 1:
            ranges[-1][1] = batch
        else:
            ranges.append([batch, batch])
    shown = [f"{a}–{b}" if a != b else f"{a}" for a, b in ranges[:_MAX_RANGES]]
    left = sum(b - a + 1 for a, b in ranges[_MAX_RANGES:])
    more = f" and {left} more" if left else ""
    return f"batch{'es' if len(batches) > 1 else ''} {', '.join(shown)}{more}"
