"""The worker contract. The controller relies on every line of it, and on nothing else that a worker does."""

from __future__ import annotations

import random
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from tests.contract.sim_world import TIMES_NS, WIDTH, SimWorld, World
from tests.contract.worlds import CPU, EMULATED, KERNELLED, SIMULATED

from dovetail.control import BatchFailed, BatchFinished, Event, LoadFailed, ModelEvicted, ModelLoaded
from dovetail.units import MS

BY_KERNEL = ("simulated by kernel", KERNELLED)


def only(*worlds: Any) -> Any:
    """A law that has a meaning in these worlds only: a simulated device has no values, a real one no profile."""
    return pytest.mark.parametrize("shared_world", worlds, indirect=True, scope="module")


#: Batches are numbered over the whole life of a worker.
_numbers = count(1)


def number() -> int:
    return next(_numbers)


def run(world: World, *args: Any, **kwargs: Any) -> int:
    """Ask for a batch; its number."""
    batch = number()
    world.run(batch, *args, **kwargs)
    return batch


def next_answer(world: World) -> BatchFinished | BatchFailed:
    """The next answer to a batch; models may come and go before it."""
    while isinstance(event := world.next_event(), ModelLoaded | ModelEvicted):
        pass
    assert isinstance(event, BatchFinished | BatchFailed)
    return event


def answers(world: World, batches: list[int]) -> dict[int, Any]:
    """The answer to each of these batches, in the order in which they came; exactly one each, and no other."""
    # Two more, one after the other: what would come twice has come by then.
    expected = len(batches)
    found: dict[int, Event] = {}
    for sentinel in (False, True, True):
        if sentinel:
            batches = [run(world, "quick")]
            expected = 1
        for _ in range(expected):
            event = next_answer(world)
            assert event.batch in batches
            assert event.batch not in found, "answered twice"
            found[event.batch] = event
    return found


def answer(world: World, *args: Any, **kwargs: Any) -> Any:
    """The answer to one batch."""
    batch = run(world, *args, **kwargs)
    event = next_answer(world)
    assert event.batch == batch
    return event


def evict(world: World, stage: str) -> None:
    """Have a model gone that nothing uses."""
    world.evict(stage)
    assert isinstance(world.next_event(), ModelEvicted)


def test_every_batch_is_answered_exactly_once(world):
    past = world.now_ns() - 1
    asked = [run(world, "quick", items=1 + i % 4, share_pct=(100, 30, 50)[i % 3]) for i in range(12)]
    asked += [run(world, "quick", latest_ns=past), run(world, "unknown"), run(world, "slow", share_pct=10)]
    found = answers(world, asked)
    assert set(asked) <= set(found)


def test_a_model_is_reported_when_it_is_loaded(world):
    evict(world, "quick")
    world.load("quick")
    event = world.next_event()
    assert isinstance(event, ModelLoaded)
    assert event.stage == "quick"
    assert event.nbytes > 0


def test_a_batch_begins_inside_its_window_and_ends_after_it_began(world):
    earliest = world.now_ns() + 20 * MS
    event = answer(world, earliest_ns=earliest, latest_ns=earliest + 10_000 * MS)
    assert isinstance(event, BatchFinished)
    assert earliest <= event.begin_ns <= earliest + 10_000 * MS
    assert event.begin_ns <= event.end_ns <= event.at_ns


def test_a_batch_whose_window_has_closed_is_refused_without_running(world):
    event = answer(world, latest_ns=world.now_ns() - 1)
    assert isinstance(event, BatchFailed)
    assert event.reason == "too_late"
    assert event.begin_ns == event.end_ns
    assert event.batch not in world.results


def test_a_batch_that_waits_until_its_window_has_closed_is_refused(world):
    # The window is counted from before the first was sent: however late the second comes, it is no longer than that.
    closes_ns = world.now_ns() + 1 * MS
    first = run(world, "slow")
    second = run(world, "quick", latest_ns=closes_ns)
    found = answers(world, [first, second])
    assert isinstance(found[first], BatchFinished)
    assert found[second].reason == "too_late"


def test_a_batch_whose_model_is_not_here_is_not_refused_but_brings_it(world):
    evict(world, "quick")
    batch = run(world, "quick")
    loaded, finished = world.next_event(), world.next_event()
    assert isinstance(loaded, ModelLoaded) and loaded.stage == "quick"
    assert isinstance(finished, BatchFinished) and finished.batch == batch
    assert finished.begin_ns >= loaded.at_ns or not isinstance(world, SimWorld)


def test_a_stage_that_nobody_knows_is_refused_by_name(world):
    event = answer(world, "unknown")
    assert (event.reason, "unknown" in event.detail) == ("not_loaded", True)


def test_a_model_that_is_told_to_go_while_in_use_goes_when_its_last_batch_has_ended(world):
    asked = [run(world, "slow"), run(world, "slow")]  # one runs, one waits
    world.evict("slow")
    asked.append(run(world, "slow"))
    told = [world.next_event() for _ in range(4)]
    assert [e.batch for e in told[:3] if isinstance(e, BatchFinished)] == asked
    assert isinstance(told[3], ModelEvicted)
    assert isinstance(answer(world, "slow"), BatchFinished), "the next one brings it again"


def test_a_load_is_answered_even_if_it_is_in_vain(world):
    evict(world, "slow")
    world.load("slow")
    world.evict("slow")
    assert isinstance(world.next_event(), ModelLoaded | LoadFailed)
    world.load("slow")
    while isinstance(event := world.next_event(), ModelEvicted):
        pass
    assert isinstance(event, ModelLoaded)
    assert isinstance(answer(world, "slow"), BatchFinished)


def test_shares_never_add_up_to_more_than_the_device(world):
    shares = [60, 60, 30, 40, 100, 10, 10, 90, 50, 50]
    asked = [run(world, "slow" if i % 3 else "quick", share_pct=share) for i, share in enumerate(shares)]
    found = answers(world, asked)
    runs = [(found[b].begin_ns, found[b].end_ns, share) for b, share in zip(asked, shares, strict=True)]
    for begin, _, _ in runs:
        together = sum(share for other, end, share in runs if other <= begin < end)
        assert together <= 100


def test_first_come_is_first_served(world):
    # The third would fit beside the first, but it comes after the second, which does not.
    first, second, third = (run(world, "slow", share_pct=share) for share in (60, 60, 30))
    found = answers(world, [first, second, third])
    assert found[second].begin_ns >= found[first].end_ns
    assert found[third].begin_ns >= found[first].end_ns


def test_whole_batches_run_one_after_the_other(world):
    asked = [run(world, "quick") for _ in range(6)]
    found = answers(world, asked)
    assert [b for b in found if b in asked] == asked
    for before, after in pairwise(asked):
        assert found[after].begin_ns >= found[before].end_ns


@pytest.mark.parametrize("items", [1, 2, 8])
def test_counts_are_reported_for_each_item(world, items):
    assert answer(world, "quick", items=items).counts == (WIDTH,) * items


@only(CPU, KERNELLED, EMULATED)
@pytest.mark.parametrize("items", [1, 3, 8])
def test_every_item_has_a_result(world, items):
    event = answer(world, "quick", items=items)
    results = world.results[event.batch]
    assert len(results) == items
    assert all(r.shape == (WIDTH,) for r in results)


@only(CPU, KERNELLED, EMULATED)
def test_a_stage_that_raises_is_named_and_the_worker_goes_on(world):
    # A stage of its own: an emulated device looks at the first input of a stage, and then never again.
    world.load("fragile")
    world.next_event()
    event = answer(world, "fragile", items=2, value=np.zeros((2, 2), np.float32))
    assert isinstance(event, BatchFailed)
    assert event.reason == "error"
    assert "'fragile'" in event.detail
    assert isinstance(answer(world, "quick"), BatchFinished)
    assert isinstance(answer(world, "fragile"), BatchFinished)


@only(CPU, KERNELLED)
def test_results_are_those_of_the_model(world):
    event = answer(world, "quick", items=4)
    np.testing.assert_array_equal(world.results[event.batch], [[2 * (i + 1)] * WIDTH for i in range(4)])


@only(EMULATED)
def test_results_of_an_emulated_device_are_those_of_its_first_input(world):
    first, again = answer(world, "quick", items=2), answer(world, "quick", value=np.float32([7, 7, 7]))
    np.testing.assert_array_equal(world.results[first.batch][1], world.results[again.batch][0])


@only(*SIMULATED, EMULATED)
def test_a_profiled_device_takes_the_time_of_its_profile(world):
    exact = isinstance(world, SimWorld)
    least: dict[str, int] = {}
    for stage in ("quick", "slow"):
        for items, expected_ns in TIMES_NS[stage].items():
            events = [answer(world, stage, items=items) for _ in range(3)]
            took = [e.end_ns - e.begin_ns for e in events]
            # Later than the profile is the machine's fault; earlier would be ours.
            assert set(took) == {expected_ns} if exact else min(took) >= expected_ns
            least[f"{stage} {items}"] = min(took)
    assert least["quick 1"] < least["slow 1"] < least["slow 8"]


@only(*BY_KERNEL)
def test_a_higher_class_takes_the_device_from_a_batch_that_has_begun(world):
    world.load("long")
    world.next_event()
    for _ in range(20):
        # Both may be read before one has begun. Then the higher class goes first, and nothing was shown.
        low = run(world, "long", items=4, priority=2)
        high = run(world, "quick", priority=1, earliest_ns=world.now_ns() + 3 * MS)
        found = answers(world, [low, high])
        assert [b for b in found if b in (low, high)] == [high, low]
        assert found[high].end_ns <= found[low].end_ns
        if found[low].begin_ns <= found[high].begin_ns:
            return
    pytest.fail("the lower one never began before the higher one came")


@only(*BY_KERNEL)
def test_batches_of_one_class_run_by_deadline_and_those_without_one_last(world):
    world.load("long")
    world.next_event()
    now = world.now_ns()
    first = run(world, "long", items=8, priority=1)  # until all the others are there
    asked = [
        run(world, "slow", priority=2, objective_ns=objective)
        for objective in (0, now + 90_000 * MS, now + 30_000 * MS, now + 60_000 * MS, 0)
    ]
    found = answers(world, [first, *asked])
    order = [b for b in found if b in asked]
    assert order == [asked[2], asked[3], asked[1], asked[0], asked[4]]


@only(*BY_KERNEL)
def test_of_many_batches_of_all_classes_each_is_answered_once_and_what_fails_touches_no_other(world):
    world.load("fragile")
    world.next_event()
    chance = random.Random(3)
    asked: dict[int, str] = {}
    for _ in range(60):
        stage = chance.choice(["quick", "quick", "slow", "fragile", "unknown"])
        options: dict[str, Any] = {"items": chance.randint(1, 8), "priority": chance.randint(1, 4)}
        if stage == "fragile" and not isinstance(world, SimWorld):
            options["value"] = np.zeros((2, 2), np.float32)
        if chance.random() < 0.1:
            options["latest_ns"] = world.now_ns() - 1
        if chance.random() < 0.2:
            options["earliest_ns"] = world.now_ns() + chance.randint(0, 20) * MS
        asked[run(world, stage, **options)] = "late" if "latest_ns" in options else stage
    world.evict("slow")
    found = answers(world, list(asked))
    why = {batch: getattr(found[batch], "reason", "finished") for batch in asked}
    fails = "finished" if isinstance(world, SimWorld) else "error"
    wanted = {"quick": ["finished"], "slow": ["finished"], "fragile": [fails], "unknown": ["not_loaded"]}
    wanted["late"] = ["too_late", "error", "not_loaded"]  # whichever is found first
    for batch, kind in asked.items():
        assert why[batch] in wanted[kind], (kind, found[batch])


@only(*BY_KERNEL)
def test_batches_whose_window_closes_while_a_higher_class_has_the_device_are_refused(world):
    world.load("long")
    world.next_event()
    closes_ns = world.now_ns() + 1 * MS
    first = run(world, "long", items=4, priority=1)
    second = run(world, "quick", latest_ns=closes_ns, priority=2)
    found = answers(world, [first, second])
    assert isinstance(found[first], BatchFinished)
    assert found[second].reason == "too_late"
