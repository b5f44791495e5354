"""What `dovetail` makes of its planner and of a view of the workers: fetches count, and who is ready goes first."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.control import Controller, ModelLoaded, Policy, Reject, RequestArrived, RunBatch, WorkerJoined
from dovetail.place import OwnWorkers, Spot
from dovetail.plan import Space
from dovetail.predict import Estimator
from dovetail.profile.curve import Curve
from dovetail.profile.table import Entry, ProfileTable
from dovetail.scale import LoadEverything
from dovetail.schedule import Dovetail, PlannerSettings
from dovetail.schedule.offers import Considered
from dovetail.schedule.ranked import Ranked
from dovetail.state import Config, Item, Queue, WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec, chain

#: 24 ms at a quarter of the device, 12 ms at half of it, which cost the same; 10 ms at all of it, which costs more.
CURVE = Curve((1,), (10 * MS,), (6 * MS,))
GPU = WorkerSpec("gpu", "v100", ("model",), usd_per_hour=3.6)


#: The better configuration, and one that costs more.
HALF_OR_QUARTER = (Ranked(Config(1, 1, 50), 1.0), Ranked(Config(1, 1, 25), 3.0))


class View:
    """One worker of our own, and what is said of fetches, of queues elsewhere, and of who is ready."""

    def __init__(self, predictor: Estimator, fetch_ns: int, queue_ns: int, ready_pct: int) -> None:
        self._own = OwnWorkers(predictor)
        self._said_ns, self._queue_ns, self._ready_pct = fetch_ns, queue_ns, ready_pct

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def fetch_ns(self, stage: StageSpec) -> int:
        return self._said_ns

    def wait_ns(self, stage: StageSpec, now_ns: int) -> int:
        return self._queue_ns

    def ready(self, stage: StageSpec, config: Config, now_ns: int) -> Spot | None:
        return self._own.ready(stage, config, now_ns) if config.share_pct <= self._ready_pct else None

    def spot(self, queue: Queue, head: Item, config: Config, now_ns: int) -> Spot | None:
        found = self._own.ready(queue.stage, config, now_ns)
        return None if found is None else Spot(found.worker, now_ns, 5 * MS, "fetches it first")


def make(slo_ms: int, *, fetch_ms: int = 0, queue_ms: int = 0, ready_pct: int = 100) -> tuple[Controller, Dovetail]:
    predictor = Estimator(ProfileTable([Entry("read", "v100", curve=CURVE)]))
    view = View(predictor, fetch_ms * MS, queue_ms * MS, ready_pct)
    scheduler = Dovetail(predictor, view, PlannerSettings(space=Space(shares_pct=(25, 50, 100))))
    graph = chain("flow", slo_ms * MS, [StageSpec("read", "model", (1,), model="read")])
    built = Controller([graph], Policy(scheduler, LoadEverything(), predictor))
    built.step(WorkerJoined(0, 0, 1, GPU))
    built.step(ModelLoaded(0, 0, 1, "read", 0))
    return built, scheduler


def admitted(built: Controller, count: int) -> int:
    answers = [built.step(RequestArrived(0, 0, request, 0)) for request in range(1, count + 1)]
    return sum(not any(isinstance(a, Reject) for a in actions) for actions in answers)


def taken(built: Controller) -> list[tuple[int, str]]:
    actions = built.step(RequestArrived(0, 0, 1, 0))
    return [(action.share_pct, action.reason) for action in actions if isinstance(action, RunBatch)]


def test_a_fetch_that_nobody_can_avoid_is_part_of_what_a_request_needs_behind_others() -> None:
    # An item takes 6 ms of the device and 12 ms by itself: eight of them leave 12 of the 60 ms, six of them 24.
    assert admitted(make(60)[0], 12) == 9
    assert admitted(make(60, fetch_ms=12)[0], 12) == 7


def test_on_an_idle_cluster_nobody_is_refused_for_a_fetch() -> None:
    assert admitted(make(60, fetch_ms=100)[0], 1) == 1


def test_what_waits_at_the_workers_is_part_of_the_wait() -> None:
    assert admitted(make(60, queue_ms=49)[0], 1) == 1
    assert admitted(make(60, queue_ms=50)[0], 1) == 0


def test_a_plan_is_made_for_what_a_fetch_leaves() -> None:
    assert taken(make(22)[0]) == [(50, "")]
    assert taken(make(22, fetch_ms=11)[0]) == [(100, "")]


@pytest.mark.interpreted
def test_a_configuration_that_somebody_is_ready_for_goes_before_a_better_one_that_is_fetched_first() -> None:
    built, scheduler = make(100, ready_pct=25)
    scheduler.choose = lambda queue, now_ns: HALF_OR_QUARTER  # type: ignore[method-assign]
    assert taken(built) == [(25, "")], "where waiting has no price, nobody waits while somebody is ready"


@pytest.mark.interpreted
@pytest.mark.parametrize(("later_usd", "expected"), [(2.9, (50, "fetches it first")), (3.1, (25, ""))])
def test_the_least_score_wins_and_a_fetch_is_part_of_it(later_usd: float, expected: tuple[int, str]) -> None:
    built, scheduler = make(100, ready_pct=25)
    asked = []

    def score_later(ranked: Ranked, later_ns: int) -> float:
        asked.append((ranked.config.share_pct, later_ns))
        return later_usd

    scheduler.choose = lambda queue, now_ns: HALF_OR_QUARTER  # type: ignore[method-assign]
    scheduler.score_later = score_later  # type: ignore[method-assign]
    assert taken(built) == [expected]
    assert (50, 5 * MS) in asked and {share for share, _ in asked} == {50}, "what starts now has its score already"


@pytest.mark.interpreted
def test_an_eviction_is_charged_at_the_price_of_the_device() -> None:
    built, scheduler = make(100)
    scheduler.score_later = lambda ranked, later_ns: later_ns / MS  # type: ignore[method-assign]
    worker, queue = built.workers[1], built.queues["read"]
    spot = Spot(worker, 3 * MS, 5 * MS, toll_ns=20 * MS)
    score = scheduler._score(queue, HALF_OR_QUARTER[0], spot, 1 * MS)
    assert score == pytest.approx(7.0 + 20 * MS * worker.usd_per_ns(Config(1, 1, 50)))
    assert scheduler._score(queue, HALF_OR_QUARTER[0], Spot(worker, 0), 1 * MS) == 1.0


@pytest.mark.interpreted
def test_if_nobody_is_ready_the_best_configuration_goes_where_it_starts_first() -> None:
    built, scheduler = make(100, ready_pct=0)
    scheduler.choose = lambda queue, now_ns: HALF_OR_QUARTER  # type: ignore[method-assign]
    assert taken(built) == [(50, "fetches it first")]


def test_who_watches_sees_the_offer_that_is_taken_first_and_every_other_one_once() -> None:
    built, scheduler = make(100)
    seen: list[Considered] = []
    scheduler.watcher = seen.append
    scheduler.choose = lambda queue, now_ns: (*HALF_OR_QUARTER, *HALF_OR_QUARTER)  # type: ignore[method-assign]
    assert taken(built) == [(50, "")], "whoever watches changes nothing"
    (considered,) = [one for one in seen if one.offers]
    assert [(offer.config.share_pct, offer.score) for offer in considered.offers] == [(50, 1.0), (25, 3.0)]
    assert (considered.queue, considered.waiting, considered.hold) == ("read", 1, "")


def test_a_queue_that_found_no_room_sleeps_until_something_changes_and_one_that_was_not_asked_does_not() -> None:
    predictor = Estimator(ProfileTable([Entry("read", "v100", curve=CURVE)]))
    scheduler = Dovetail(predictor, OwnWorkers(predictor), PlannerSettings(space=Space(shares_pct=(75,))))
    graph = chain("flow", 500 * MS, [StageSpec("read", "model", (1,), model="read")])
    built = Controller([graph], Policy(scheduler, LoadEverything(), predictor))
    built.step(WorkerJoined(0, 0, 1, GPU))
    built.step(ModelLoaded(0, 0, 1, "read", 0))
    queue = built.queues["read"]
    assert taken(built) == [(75, "")] and not scheduler.sleeps(queue), "nothing waits"
    built.step(RequestArrived(0, 0, 2, 0))
    assert queue.size == 1 and scheduler.sleeps(queue), "a quarter is free, and it needs more"
    scheduler._told.clear()
    assert not scheduler.sleeps(queue), "it was told nothing yet"
