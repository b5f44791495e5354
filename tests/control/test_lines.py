"""Batches that wait at a worker for room: when one ends out of turn, no more are sent than there are classes."""

from __future__ import annotations

from collections.abc import Sequence

from tests.golden.test_actions import with_worker
from tests.golden.test_ahead import BY_KERNEL, arrived, finished, one_stage

from dovetail.control import Action, Controller, RunBatch
from dovetail.control.validate import validate


def sent(actions: Sequence[Action]) -> list[int]:
    return [a.batch for a in actions if isinstance(a, RunBatch)]


def three_classes() -> Controller:
    """A batch of the third class runs, one of the second was sent over it, and one of the first over that."""
    c = with_worker(one_stage(lead_ms=0, by_class=True), spec=BY_KERNEL)
    assert [sent(c.step(arrived(0, n, priority=4 - n))) for n in (1, 2, 3)] == [[1], [2], [3]]
    return c


def test_whoever_was_sent_over_a_batch_that_ends_out_of_turn_is_over_the_one_below() -> None:
    c = three_classes()
    c.step(finished(12, 4, 2, 10))
    validate(c)
    assert sent(c.step(arrived(13, 4, priority=2))) == [], "the room of the lowest is taken by the highest"
    assert sent(c.step(arrived(14, 5, priority=1))) == []
    assert len(c.batches) == 2
    assert sent(c.step(finished(15, 5, 3, 10))) == [4], "now it is not, and the highest that waits goes first"
    validate(c)
    assert c.batches[4].items[0].request.id == 5


def test_when_the_lowest_ends_first_the_next_in_line_has_its_room() -> None:
    c = three_classes()
    c.step(finished(12, 3, 1, 10))
    validate(c)
    worker = c.workers[1]
    assert [(b.id, b.waits) for b in worker.running.values()] == [(2, True), (3, False)], "the higher class first"
    assert sent(c.step(arrived(13, 4, priority=3))) == []
    assert sent(c.step(finished(14, 4, 3, 10))) == [], "its room goes to the next in line"
    assert [(b.id, b.waits) for b in worker.running.values()] == [(2, False)]
    assert sent(c.step(finished(15, 5, 2, 10))) == [4]
    validate(c)
