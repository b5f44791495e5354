"""Workers of one ingress: the tightest with room; and where models do not all fit, what they hold is part of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.place.own_workers import HALF, READ, SORT, Shop

from dovetail.place import OwnSettings
from dovetail.place.fit import ENDING, HIGHER, taken_bytes
from dovetail.state import Config
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec

LOAD_NS = 40 * MS


def shop(
    *free_pct: int, swaps: bool = True, holders: Sequence[int] = (), memory_bytes: int = 5000, **settings: object
) -> Shop:
    made = Shop(LOAD_NS, OwnSettings(**settings))  # type: ignore[arg-type]
    for ident, free in enumerate(free_pct, 1):
        made.join(ident, swaps=swaps, memory_bytes=memory_bytes)
        if ident in holders:
            made.load(ident, READ)
        if free < 100:
            if swaps:
                made.load(ident, SORT)
            made.run(ident, SORT if swaps else READ, Config(1, 1, 100 - free), 100 * MS)
    return made


def test_the_tightest_that_has_room_the_first_of_equals() -> None:
    assert shop(100, 60, 60, 40, swaps=False).chosen(READ, HALF) == 2
    assert shop(40, 49, swaps=False).chosen(READ, HALF) is None


def test_one_that_holds_the_model_goes_before_a_tighter_one_that_does_not() -> None:
    assert shop(60, 100).chosen(READ, HALF) == 1
    assert shop(60, 100, holders=[2]).chosen(READ, HALF) == 2


def test_without_a_look_at_memory_the_tightest_is_taken() -> None:
    assert shop(60, 100, holders=[2], memory=False).chosen(READ, HALF) == 1


def test_a_model_that_is_being_fetched_is_waited_for_and_not_fetched_again() -> None:
    made = shop(60, 100, 100)
    made.run(2, READ, Config(1, 1, 40), MS)
    assert made.chosen(READ, HALF) is None
    made.load(2, READ)
    assert made.chosen(READ, HALF) == 2


@pytest.mark.parametrize(("waiting", "expected"), [(5, None), (6, 2)])
def test_a_crowd_has_a_model_fetched_again_if_that_is_sooner_for_its_last(waiting: int, expected: int | None) -> None:
    made = Shop(LOAD_NS, OwnSettings(), run_ns=10 * MS)
    for ident in (1, 2):
        made.join(ident, swaps=True, memory_bytes=5000)
    made.run(1, READ, Config(1, 1, 100), MS)
    made.now_ns = LOAD_NS  # it should be there by now, and is not
    for _ in range(waiting):
        made.cluster.queues["read"].push(0, made.item(READ))
    assert made.chosen(READ, Config(1, 1, 100)) == expected, "40 ms for a load, 10 ms for each but the first"


def test_others_run_while_a_model_is_being_fetched() -> None:
    made = shop(100, 100)
    made.load(1, SORT)
    fetching = made.run(1, READ, Config(1, 1, 100), MS)
    assert fetching.fetches and made.chosen(SORT, HALF) == 1
    made.run(1, SORT, Config(1, 1, 100), 100 * MS)
    made.load(1, READ)
    assert not fetching.fetches and fetching.waits, "its model is there, and it is in line behind what runs"


def test_who_waits_for_its_model_begins_when_that_is_there() -> None:
    made = shop(100)
    fetching = made.run(1, READ, Config(1, 1, 60), MS)
    made.now_ns = LOAD_NS
    made.load(1, READ)
    assert (fetching.waits, fetching.got_pct, fetching.begun_ns) == (False, 60, LOAD_NS)
    assert made.cluster.workers[1].free_pct == 40


def test_a_worker_is_asked_for_two_fetches_at_a_time_at_most() -> None:
    stages = [StageSpec(name, "model", (1,), model=name, weights_bytes=10) for name in "abc"]
    made = Shop(LOAD_NS, OwnSettings(), *stages)
    made.join(1, swaps=True, memory_bytes=5000)
    first = made.run(1, stages[0], HALF, MS)
    assert made.chosen(stages[2], HALF) == 1
    made.run(1, stages[1], HALF, MS)
    assert made.chosen(stages[2], HALF) is None
    made.end(first, done=False)
    assert made.chosen(stages[2], HALF) == 1


@pytest.mark.parametrize("preempts", [False, True])
def test_a_fetch_begins_before_there_is_room_and_at_once_over_a_lower_class(preempts: bool) -> None:
    made = Shop(LOAD_NS, OwnSettings(), bind_ns=MS)
    made.join(1, swaps=True, memory_bytes=5000, preempts=preempts)
    made.load(1, SORT)
    made.run(1, SORT, Config(1, 1, 100), 3 * LOAD_NS, priority=2)
    spot = made.spot(READ, Config(1, 1, 100))
    assert spot is not None and spot.fetch_ns == LOAD_NS
    room_ns = 0 if preempts else 3 * LOAD_NS - MS  # it may well end a little earlier
    assert spot.start_ns == max(0, room_ns - LOAD_NS)


def test_a_fetch_that_came_to_nothing_is_forgotten() -> None:
    made = shop(60, 100)
    batch = made.run(2, READ, Config(1, 1, 40), MS)
    made.end(batch, done=False)
    assert made.chosen(READ, HALF) == 1


@pytest.mark.parametrize(("left_ns", "expected"), [(LOAD_NS, 1), (LOAD_NS + 1, 2)])
def test_a_batch_waits_for_a_busy_holder_only_if_that_is_no_later_than_a_fetch(left_ns: int, expected: int) -> None:
    made = shop(100, 100, holders=[1])
    made.run(1, READ, Config(1, 1, 100), left_ns)
    spot = made.spot(READ, HALF)
    assert spot is not None and spot.worker.id == expected
    assert (spot.start_ns, spot.fetch_ns) == ((left_ns, 0) if expected == 1 else (0, LOAD_NS))


@pytest.mark.parametrize(("left_ns", "expected"), [(6 * LOAD_NS, 1), (6 * LOAD_NS + 1, 2)])
def test_a_fetch_that_evicts_is_charged_for_what_it_takes_from_others(left_ns: int, expected: int) -> None:
    made = shop(100, 100, holders=[1], memory_bytes=1500)
    made.load(2, SORT)
    made.run(1, READ, Config(1, 1, 100), left_ns)
    spot = made.spot(READ, HALF)
    assert spot is not None and spot.worker.id == expected


def test_a_fetch_goes_where_nothing_has_to_go_for_it() -> None:
    made = shop(100, 100, 100, memory_bytes=1500)
    for ident in (1, 2):
        made.load(ident, SORT)
    assert made.chosen(READ, HALF) == 3


def test_what_needs_no_model_is_not_held_up_by_that() -> None:
    plain = StageSpec("plain", "model", (1,), model="plain")
    made = Shop(LOAD_NS, OwnSettings(), plain)
    for ident in (1, 2):
        made.join(ident, swaps=True)
    made.run(1, plain, Config(1, 1, 100), MS)
    assert made.chosen(plain, HALF) == 2


def test_of_several_busy_holders_the_first_to_be_free_counts() -> None:
    made = shop(100, 100, 100, holders=[1, 2])
    made.run(1, READ, Config(1, 1, 100), 9 * LOAD_NS)
    made.run(2, READ, Config(1, 1, 100), LOAD_NS - 1)
    spot = made.spot(READ, HALF)
    assert spot is not None and (spot.worker.id, spot.start_ns) == (2, LOAD_NS - 1)


def test_models_of_later_stages_that_nobody_has_are_fetched_where_memory_is_free() -> None:
    made = shop(100, 100, memory_bytes=1500)
    made.load(1, READ)
    assert [(h.worker, h.stage) for h in made.hints()] == [(2, "sort")], "1 has 500 bytes left of 1500"
    made.load(2, SORT)
    assert not made.hints()
    assert not shop(100, hints=False).hints()
    assert not shop(100, swaps=False).hints()


def test_a_batch_is_bound_early_where_a_worker_is_about_to_be_free_or_lets_a_higher_class_in() -> None:
    made = Shop(LOAD_NS, OwnSettings(), READ, bind_ns=2 * MS)
    made.join(1, swaps=False)
    made.run(1, READ, Config(1, 1, 100), 10 * MS, priority=2)
    spot = made.spot(READ, HALF)
    assert spot is not None and (spot.start_ns, spot.reason) == (9 * MS, ENDING), "a tenth earlier than expected"
    made = Shop(LOAD_NS, OwnSettings(), READ)
    made.join(1, swaps=False, preempts=True)
    made.run(1, READ, Config(1, 1, 100), 10 * MS, priority=2)
    spot = made.spot(READ, HALF)
    assert spot is not None and (spot.start_ns, spot.reason) == (0, HIGHER)
    assert made.spot(READ, HALF, priority=2) is not None
    assert made.spot(READ, HALF, priority=2).start_ns == 10 * MS  # type: ignore[union-attr]


def test_what_is_on_its_way_to_somebody_takes_nobody_a_fetch() -> None:
    made = shop(100, 100)
    made.run(1, READ, Config(1, 1, 40), MS)
    assert made.own.fetch_ns(READ) == 0


def test_what_a_model_takes_to_be_fetched_counts_only_while_nobody_has_it() -> None:
    made = shop(100, 100)
    assert made.own.fetch_ns(READ) == LOAD_NS
    made.load(2, READ)
    assert made.own.fetch_ns(READ) == 0
    assert shop(100, swaps=False).own.fetch_ns(READ) == 0


def test_closed_means_that_nobody_who_could_run_it_has_room() -> None:
    made = shop(100, swaps=False)
    assert not made.own.closed_to(READ, 1) and not made.own.full(False)
    made.run(1, READ, Config(1, 1, 100), MS)
    assert made.own.closed_to(READ, 1) and made.own.full(False) and made.own.full(True), "there is no host process"


@pytest.mark.parametrize(("items", "expected"), [(3, 1), (4, 2)])
def test_a_fetch_is_weighed_for_all_that_wait_and_not_only_for_the_first(items: int, expected: int) -> None:
    """A batch of one on a half takes 10 ms; two halves of the one holder run at once, and it is free in 25 ms."""
    made = Shop(LOAD_NS, OwnSettings(), run_ns=10 * MS)
    for ident in (1, 2):
        made.join(ident, swaps=True, memory_bytes=5000)
    made.load(1, READ)
    made.run(1, READ, Config(1, 1, 100), 30 * MS)
    for _ in range(items):
        made.cluster.queues["read"].push(0, made.item(READ))
    spot = made.spot(READ, HALF)
    assert spot is not None and spot.worker.id == expected
    made = Shop(LOAD_NS, OwnSettings(queues=False), run_ns=10 * MS)
    assert made.spot(READ, HALF) is None


def test_where_all_holders_are_busy_and_memory_is_free_a_copy_is_fetched_now_and_then() -> None:
    made = shop(100, 100, copy_every_ns=100 * MS)
    for stage in (READ, SORT):
        made.load(1, stage)
    assert not made.hints(), "the holder has room"
    made.run(1, READ, Config(1, 1, 100), SECOND)
    assert [(h.worker, h.stage) for h in made.hints()] == [(2, "read"), (2, "sort")]
    made.now_ns += 100 * MS - 1
    assert not made.hints(), "not so soon again"
    made.now_ns += 1
    assert [(h.worker, h.stage) for h in made.hints()] == [(2, "read"), (2, "sort")]
    made.settings(copy_every_ns=0)
    made.now_ns += SECOND
    assert not made.hints()


def test_who_dozes_is_woken_when_others_come_to_have_room_to_fetch_its_model() -> None:
    made = shop(40, 100, holders=(1,))
    made.load(2, SORT)
    batch = made.run(2, SORT, Config(1, 1, 100), 50 * MS)
    assert made.own.dozes(READ)
    assert list(made.own.woken()) == [], "nothing has changed"
    made.end(batch)
    assert list(made.own.woken()) == ["read"]


def test_a_step_without_a_model_keeps_no_later_one_from_being_fetched() -> None:
    plain = StageSpec("plain", "model", (1,), model="plain")
    made = Shop(LOAD_NS, OwnSettings(), plain, READ, SORT)
    made.join(1, swaps=True, memory_bytes=5000)
    request = made.item(READ).request
    assert [hint.stage for hint in made.own.hints(request, 0)] == ["read", "sort"]


def test_memory_is_taken_by_models_that_are_there_and_once_by_those_that_come() -> None:
    made = shop(100, holders=(1,))
    worker = made.cluster.workers[1]
    made.run(1, READ, Config(1, 1, 10), 10 * MS)
    assert taken_bytes(worker) == 1000, "what runs on a model that is there adds nothing"
    made.run(1, SORT, Config(1, 1, 10), 10 * MS)
    made.run(1, SORT, Config(1, 1, 10), 10 * MS)
    assert taken_bytes(worker) == 2000
