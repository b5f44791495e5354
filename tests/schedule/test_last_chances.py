"""Who waits and has no chance any more, and how long a batch may wait for others: rules one by one."""

from __future__ import annotations

import math

from dovetail.schedule.holding import COMES
from dovetail.schedule.waiting import LastChances
from dovetail.state import Item, Request, compile_graphs
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec, chain

GRAPHS, _ = compile_graphs(
    [chain("flow", 50 * MS, [StageSpec("read", "model", (1,), model="read")])], lambda g, n: n.stage
)


def waiting(ident: int, objective_ns: int) -> Item:
    item = Item(Request(ident, GRAPHS[0], 1, 0, objective_ns, 0), 0, 0, 0)
    item.waits = True
    return item


def test_one_that_began_without_a_chance_is_in_nobodys_way() -> None:
    chances = LastChances()
    items = [waiting(ident, 50 * MS) for ident in (1, 2, 3)]
    for item in items:
        chances.note(item, 10 * MS)
    assert chances.gone(3, 60 * MS) == (), "nobody waits who can be in time"
    items[0].waits = False
    chances.began(items[:1])
    assert chances.gone(2, 60 * MS) == (), "two wait, and both are without a chance"
    assert [request.id for request, _ in chances.gone(3, 60 * MS)] == [2, 3], "a third one waits that has one"


def test_those_whose_request_has_ended_do_not_count() -> None:
    chances = LastChances()
    for ident in (1, 2):
        chances.note(waiting(ident, 50 * MS), 10 * MS)
    assert chances.gone(2, 60 * MS) == ()
    chances.closed(1)
    assert chances.gone(1, 60 * MS) == ()
    assert [request.id for request, _ in chances.gone(2, 60 * MS)] == [2]


def test_the_chance_of_an_arrival_within_twice_its_time_is_that_of_arrivals_by_chance() -> None:
    assert math.isclose(COMES, 1 - math.exp(-2), abs_tol=1e-3)
