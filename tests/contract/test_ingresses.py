"""The worker contract: several ingresses.

Each counts its own batches, and hears of its own answers and of all models. When one goes, only what it has asked for
goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.contract.observed import Key, Observed
from tests.contract.stages import WIDTH
from tests.contract.worlds import SETUPS, params

from dovetail.control import BatchFinished, ModelEvicted, ModelLoaded
from dovetail.units import MS

#: Only a process has doorbells.
PROCESSES = [s for s in SETUPS if s.kind != "simulated"]
processes = pytest.mark.parametrize("setup", params(PROCESSES), indirect=True)


@pytest.fixture
def bare(shared: Observed) -> Iterator[Observed]:
    """The worker without models, before and after."""
    shared.empty()
    yield shared
    shared.join(1)
    shared.empty()


def test_the_same_numbers_of_two_ingresses_are_different_batches(bare: Observed) -> None:
    bare.count_alike()
    asked: dict[Key, float] = {}
    for value in range(1, 9):
        for ingress in (0, 1):
            given = np.full(WIDTH, value + 100 * ingress, np.float32)
            asked[bare.run("quick", ingress=ingress, value=given)] = value + 100 * ingress
    bare.until_answered()
    assert len({number for _, number in asked}) == len(asked) // 2
    assert all(isinstance(bare.answers[key], BatchFinished) for key in asked)
    if bare.setup.kind == "live":
        for key, value in asked.items():
            np.testing.assert_array_equal(bare.world.results[key], [[2 * value] * WIDTH])


def test_a_higher_class_of_one_ingress_goes_before_a_lower_one_of_the_other(shared: Observed) -> None:
    def ask() -> list[Key]:
        lows = [shared.run("quick", priority=3, ingress=1) for _ in range(5)]
        return lows + [shared.run("quick", priority=2, ingress=0) for _ in range(5)]

    shared.answer("quick")
    _, asked = shared.while_busy(ask)
    lows, highs = asked[:5], asked[5:]
    assert max(shared.answers[key].end_ns for key in highs) <= min(shared.answers[key].begin_ns for key in lows)


def test_of_a_model_that_comes_or_goes_everybody_hears(bare: Observed) -> None:
    bare.answer("a", ingress=1)
    bare.evict("a", ingress=1)
    bare.until_told(ModelEvicted, "a", ingress=1)
    bare.settle()
    for books in bare.books.values():
        assert books.loads == dict.fromkeys(bare.weights("a"), 1)
        assert [e.weights for e in books.evictions] == list(bare.weights("a"))


@processes
def test_a_model_that_both_have_ordered_stays_until_both_have_dropped_it(bare: Observed) -> None:
    for ingress in (0, 1):
        bare.load("a", ingress=ingress)
        bare.until_told(ModelLoaded, "a", ingress=ingress)
    bare.settle()  # the second one was told of the first one's load: its own order may still be on the way
    bare.evict("a", ingress=0)
    bare.settle()
    assert not bare.books[0].evictions
    bare.evict("a", ingress=1)
    bare.until_told(ModelEvicted, "a", ingress=1)
    bare.settle()
    assert [e.weights for e in bare.books[0].evictions] == list(bare.weights("a"))


def test_an_ingress_that_goes_takes_what_it_has_asked_for_with_it_and_the_other_one_goes_on(shared: Observed) -> None:
    """Some of it runs, some is queued, some is to come later, some waits for its model."""
    shared.answer("quick")
    occupied = [shared.run("long") for _ in range(2)]
    theirs = [shared.run("long", items=2, priority=2, ingress=1) for _ in range(3)]
    theirs += [shared.run(stage, priority=2, ingress=1) for stage in ("a", "b", "quick")]
    theirs.append(shared.run("quick", earliest_ns=shared.world.now_ns() + 50 * MS, ingress=1))
    mine = [shared.run(stage, priority=2) for stage in ("quick", "a", "c", "slow")]
    shared.until_answered(occupied[0])
    shared.leave(1)
    shared.until_answered()
    assert all(isinstance(shared.answers[key], BatchFinished) for key in mine)
    assert not all(key in shared.answers for key in theirs)
    shared.join(1)
    assert isinstance(shared.answer("quick", ingress=1), BatchFinished), "and it may come back"


def test_so_it_does_while_its_own_batch_runs(shared: Observed) -> None:
    shared.answer("long")
    theirs = shared.run("long", items=4, ingress=1)
    mine = [shared.run("quick") for _ in range(3)]
    shared.leave(1)
    shared.until_answered()
    assert all(isinstance(shared.answers[key], BatchFinished) for key in mine)
    assert theirs not in shared.answers
    shared.join(1)
    shared.settle()


@pytest.mark.parametrize("setup", params(s for s in PROCESSES if s.scarce), indirect=True)
def test_what_only_an_ingress_that_is_gone_has_ordered_makes_room(bare: Observed) -> None:
    """Else no batch of the others that needs the room would ever run."""
    for stage in ("a", "b"):
        bare.load(stage, ingress=1)
        bare.until_told(ModelLoaded, stage, ingress=1)
    waits = bare.run("c")
    bare.leave(1)
    bare.until_answered()
    assert isinstance(bare.answers[waits], BatchFinished)
    assert {e.weights for e in bare.mine.evictions} & bare.weights("a", "b")


# -- what makes no sense -------------------------------------------------------------------------------------------


def speaks_for_another(worker: Observed) -> None:
    from dovetail.live.links.wire import Run
    from dovetail.state import RunBatch
    from dovetail.state.run_batch import NEVER_NS

    forged = RunBatch(1, 1 << 40, 1, "quick", ((1, 0, 0),), 1, 100, 0, NEVER_NS, 0, ingress=0)
    worker.world.send(Run(forged, [[]], [()], []), 1)  # type: ignore[attr-defined]


def frees_what_is_not_its_own(worker: Observed) -> None:
    from dovetail.live.links.wire import Free

    worker.world.send(Free([0]), 1)  # type: ignore[attr-defined]


def asks_for_a_stage_that_nobody_knows(worker: Observed) -> None:
    from dovetail.live.links.wire import Load

    worker.world.send(Load("unknown", 0, True), 1)  # type: ignore[attr-defined]


def gives_a_number_twice(worker: Observed) -> None:
    from dovetail.live.links.wire import Run
    from dovetail.state import RunBatch
    from dovetail.state.run_batch import NEVER_NS

    late_ns = worker.world.now_ns() + 60_000 * MS
    twice = RunBatch(1, 1 << 40, 1, "quick", ((1, 0, 0),), 1, 100, late_ns, NEVER_NS, 0, ingress=1)
    for _ in range(2):
        worker.world.send(Run(twice, [[]], [()], []), 1)  # type: ignore[attr-defined]


@processes
@pytest.mark.parametrize(
    "nonsense",
    [speaks_for_another, frees_what_is_not_its_own, asks_for_a_stage_that_nobody_knows, gives_a_number_twice],
)
def test_an_ingress_that_makes_no_sense_is_dropped_and_the_other_one_goes_on(
    shared: Observed, nonsense: Callable[[Observed], None]
) -> None:
    shared.run("quick", ingress=1)
    shared.until_answered()
    mine = [shared.run("slow"), shared.run("quick")]
    nonsense(shared)
    shared.world.until_dropped(1)  # type: ignore[attr-defined]
    shared.forget(1)
    shared.until_answered()
    assert all(isinstance(shared.answers[key], BatchFinished) for key in mine)
    shared.join(1)
    assert isinstance(shared.answer("quick", ingress=1), BatchFinished)
