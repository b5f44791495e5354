"""Batches that are sent before there is room for them: the exact actions of every step, as in `test_actions`.

A batch of 10 ms is about to end after 7: the lead is 2 ms, and it may well end a tenth earlier than expected.
"""

from __future__ import annotations

import msgspec
from tests.golden.test_actions import SLO_NS, SPEC, arrived, controller, finished, ok, play, run, stage, with_worker

from dovetail.control import BatchFailed, Controller, Reply, RunBatch, SetTimer, TimerFired
from dovetail.place.fit import ENDING, HIGHER
from dovetail.units import MS
from dovetail.workflow.graph import chain

BY_KERNEL = msgspec.structs.replace(SPEC, preempts=True)


def look(cause: int, timer: int, at_ms: int) -> SetTimer:
    return SetTimer(cause, timer, at_ms * MS, "a worker is about to be free")


def ahead(
    cause: int,
    batch: int,
    request: int,
    now_ms: int,
    due_ms: int,
    *,
    why: str = ENDING,
    share_pct: int = 100,
    priority: int = 1,
) -> RunBatch:
    items = [(request, 0, 0)]
    return run(cause, batch, "a", items, now_ms, due_ms=due_ms, share_pct=share_pct, priority=priority, reason=why)


def one_stage(*, share_pct: int = 100, lead_ms: int = 2, by_class: bool = False) -> Controller:
    return controller(chain("one", SLO_NS, [stage("a")]), share_pct, lead_ms=lead_ms, by_class=by_class)


def reply(cause: int, request: int, priority: int, arrived_ms: int, cost_usd: float) -> Reply:
    return Reply(cause, request, 0, priority, "ok", arrived_ms * MS, cost_usd)


def test_the_next_batch_goes_out_shortly_before_the_end_and_no_other_after_it() -> None:
    play(
        with_worker(one_stage()),
        [
            (arrived(0, 1), [run(3, 1, "a", [(1, 0, 0)], 0)]),
            (arrived(1, 2), [look(4, 1, 7)]),
            (arrived(2, 3), []),
            (TimerFired(7 * MS, 4, 1), [ahead(6, 2, 2, 7, 101)]),
            # The one that lent its room takes longer than expected: nothing more is sent behind it.
            (arrived(11, 4), []),
            (finished(12, 3, 1, 12), [ok(8, 1, 0, 0.012), look(8, 2, 19)]),
            (TimerFired(19 * MS, 8, 2), [ahead(9, 3, 3, 19, 102)]),
            (finished(22, 6, 2, 10), [ok(10, 2, 1, 0.01), look(10, 3, 29)]),
        ],
    )


def test_what_comes_while_a_batch_is_about_to_end_goes_out_at_once() -> None:
    play(
        with_worker(one_stage()),
        [
            (arrived(0, 1), [run(3, 1, "a", [(1, 0, 0)], 0)]),
            (arrived(9, 2), [ahead(4, 2, 2, 9, 109)]),
            (finished(10, 3, 1, 10), [ok(5, 1, 0, 0.01)]),
            (finished(20, 4, 2, 10), [ok(6, 2, 9, 0.01)]),
        ],
    )


def test_room_that_comes_free_goes_to_the_batch_in_line() -> None:
    """Two halves run. The one that lent is late, the other ends first: the batch in line begins in its room."""
    play(
        with_worker(one_stage(share_pct=50)),
        [
            (arrived(0, 1), [run(3, 1, "a", [(1, 0, 0)], 0, share_pct=50)]),
            (arrived(4, 2), [run(4, 2, "a", [(2, 0, 0)], 4, due_ms=104, share_pct=50)]),
            (arrived(5, 3), [look(5, 1, 7)]),
            (TimerFired(7 * MS, 5, 1), [ahead(6, 3, 3, 7, 105, share_pct=50)]),
            (arrived(9, 4), [look(7, 2, 11)]),
            # So the first has lent to nobody any more, is still about to end, and lends again.
            (finished(10, 4, 2, 6), [ok(8, 2, 4, 0.003), ahead(8, 4, 4, 10, 109, share_pct=50)]),
            (finished(12, 3, 1, 12), [ok(9, 1, 0, 0.006)]),
        ],
    )


def test_one_that_was_ahead_and_is_refused_gives_its_place_back() -> None:
    play(
        with_worker(one_stage()),
        [
            (arrived(0, 1), [run(3, 1, "a", [(1, 0, 0)], 0)]),
            (arrived(9, 2), [ahead(4, 2, 2, 9, 109)]),
            (BatchFailed(9 * MS, 4, 2, 9 * MS, 9 * MS, "too_late"), [ahead(5, 3, 2, 9, 109)]),
            (finished(10, 3, 1, 10), [ok(6, 1, 0, 0.01)]),
        ],
    )


def test_a_higher_class_is_sent_at_once_where_kernels_let_it_in() -> None:
    """The low batch keeps its room in the books and ends later; what it cost is the time that it had the device."""
    play(
        with_worker(one_stage(lead_ms=0, by_class=True), spec=BY_KERNEL),
        [
            (arrived(0, 1, priority=3), [run(3, 1, "a", [(1, 0, 0)], 0, priority=3)]),
            (arrived(1, 2, priority=3), []),
            (arrived(2, 3, priority=1), [ahead(5, 2, 3, 2, 102, why=HIGHER)]),
            (arrived(3, 4, priority=1), []),
            # Its equal waited for it, and goes before the low one in its turn.
            (finished(12, 5, 2, 10), [reply(7, 3, 1, 2, 0.01), ahead(7, 3, 4, 12, 103, why=HIGHER)]),
            (finished(22, 7, 3, 10), [reply(8, 4, 1, 3, 0.01)]),
            (
                msgspec.structs.replace(finished(30, 3, 1, 30), busy_ns=10 * MS),
                [reply(9, 1, 3, 0, 0.01), run(9, 4, "a", [(2, 0, 0)], 30, due_ms=101, priority=3)],
            ),
        ],
    )


def test_each_class_may_be_sent_over_the_next() -> None:
    play(
        with_worker(one_stage(lead_ms=0, by_class=True), spec=BY_KERNEL),
        [
            (arrived(0, 1, priority=3), [run(3, 1, "a", [(1, 0, 0)], 0, priority=3)]),
            (arrived(1, 2, priority=2), [ahead(4, 2, 2, 1, 101, why=HIGHER, priority=2)]),
            (arrived(2, 3, priority=1), [ahead(5, 3, 3, 2, 102, why=HIGHER)]),
            (finished(12, 5, 3, 10), [reply(6, 3, 1, 2, 0.01)]),
            (arrived(13, 4, priority=1), [ahead(7, 4, 4, 13, 113, why=HIGHER)]),
        ],
    )
