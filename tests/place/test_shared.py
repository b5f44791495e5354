"""Dovetail's router: each idea by hand, each switch, and runs in which everybody is answered and nothing is left."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.rivals.routing import SPEC, item, join, other, predictor, request, row, stage, weights_for, workflow

from dovetail.control import Policy
from dovetail.device.rules import Rules
from dovetail.lab.experiments.compass_world import Outcome, World, draw_jobs
from dovetail.lab.rivals.routed import policy_of
from dovetail.place import Route
from dovetail.place.settings import RouterSettings
from dovetail.place.shared import SharedWorkers
from dovetail.place.transfer import SIMULATOR, Delays
from dovetail.predict import Estimate, Predictor
from dovetail.sim.driver import Simulation
from dovetail.sim.state_table import Staleness
from dovetail.state import Batch, CompiledGraph, Config, Item, Queue, Request, Worker, WorkerRow
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec

#: No windows, no copies: what is left is the estimate.
PLAIN = RouterSettings(bounces=0, spares=0)


def router_for(
    times_ms: Mapping[str, float],
    chosen: RouterSettings = PLAIN,
    *,
    ingress: int = 0,
    workers: int = 0,
    home: int = 0,
) -> SharedWorkers:
    delays = Delays(SIMULATOR)
    router = SharedWorkers(predictor(times_ms, delays), chosen, ingress=ingress, home=home, delays=delays)
    join(router, *range(1, workers + 1))  # type: ignore[arg-type]
    return router


def test_a_worker_that_is_for_some_stages_is_sent_no_others() -> None:
    router = router_for({"fast": 10, "slow": 20})
    for worker, stages in ((1, ("slow",)), (2, ("fast",)), (3, ("slow",))):
        router.joined(Worker(worker, msgspec.structs.replace(SPEC, stages=stages)))
    for name, workers in (("fast", {2}), ("slow", {1, 3})):
        (kind,) = router.fleet.able(stage(name))
        assert {w for w, of in router.fleet._kind_of.items() if of is kind} == workers


def holding(worker: int, wait_ms: float = 0.0, at_ms: float = 0.0, **fetch_ms: float) -> WorkerRow:
    """A row written at `at_ms` by a worker that holds models of such fetch times and is free after such a wait."""
    made = row(worker, wait_ms=wait_ms, has={name: weights_for(ms) for name, ms in fetch_ms.items()})
    at_ns = round(at_ms * MS)
    return msgspec.structs.replace(made, at_ns=at_ns, free_at_ns=at_ns + made.wait_ns)


def send(router: SharedWorkers, what: Item, number: int, now_ns: int) -> tuple[Batch, Route]:
    """Route an item and say that it was sent, as the controller does."""
    route = router.route(what, now_ns)
    assert route is not None
    of = what.request.graph.nodes[what.node].stage
    worker = router.fleet.workers[route.worker]
    config = Config(1, 1, 100)
    expected = router.fleet._predictor.run(of, worker.spec.kind, 1, config).mean_ns
    batch = Batch(number, Queue(of.name, of), worker, config, [what], now_ns, expected)
    router.started(batch, now_ns)
    return batch, route


def single(fetch_ms: float = 100) -> CompiledGraph:
    return workflow([stage("a", fetch_ms)])


def diamond() -> CompiledGraph:
    """One entry, two branches with models, and a join without."""
    stages = [stage("a", 10), stage("b", 100), stage("c", 100), stage("d")]
    return workflow(stages, {"b": ["a"], "c": ["a"], "d": ["b", "c"]})


DIAMOND_MS = {"a": 200, "b": 300, "c": 300, "d": 1}

# -- the estimate -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wait_ms", "chosen"), [(99, 1), (101, 2)])
def test_a_model_that_is_there_is_worth_one_fetch_of_waiting(wait_ms: float, chosen: int) -> None:
    router = router_for({"a": 10}, workers=2)
    router.heard([holding(1, wait_ms, a=100), holding(2)], 0)
    route = router.route(item(request(single()), "a"), 0)
    assert route is not None and route.worker == chosen


@pytest.mark.parametrize(("overlap", "chosen"), [(True, 2), (False, 1)])
def test_a_fetch_beside_the_wait_costs_nothing(overlap: bool, chosen: int) -> None:
    router = router_for({"a": 10}, msgspec.structs.replace(PLAIN, overlap=overlap), workers=2)
    router.heard([holding(1, 150, a=100), holding(2, 120)], 0)
    route = router.route(item(request(single()), "a"), 0)
    assert route is not None and route.worker == chosen


def test_a_stage_that_nobody_can_run_waits_until_somebody_joins() -> None:
    router = router_for({"a": 10})
    of = request(single())
    assert list(router.hints(of, 0)) == [] and router.route(item(of, "a"), 0) is None
    join(router, 1, spec=other(SPEC, runs=("onnx",)))  # type: ignore[arg-type]
    join(router, 2, spec=other(SPEC, memory_bytes=1))  # type: ignore[arg-type]
    assert router.route(item(of, "a"), 0) is None
    join(router, 3)  # type: ignore[arg-type]
    route = router.route(item(of, "a"), 0)
    assert route is not None and route.worker == 3


def test_the_ingress_s_own_worker_wins_among_those_that_are_free() -> None:
    router = router_for({"a": 10}, workers=9, home=7)
    router.heard([holding(w, a=100) for w in range(1, 10)], 0)
    routes = [router.route(item(request(single(), n), "a"), 0) for n in range(20)]
    assert {r.worker for r in routes if r is not None} == {7}


# -- planning ahead ---------------------------------------------------------------------------------------------


def test_models_of_later_stages_are_fetched_while_earlier_ones_run() -> None:
    router = router_for(DIAMOND_MS, workers=3)
    hints = router.hints(request(diamond()), 0)
    assert sorted(h.stage for h in hints) == ["b", "c"]  # not the entry, which is sent at once, nor the join
    assert len({h.worker for h in hints}) == 2  # side by side
    assert not router_for(DIAMOND_MS, msgspec.structs.replace(PLAIN, hints=False), workers=3).hints(
        request(diamond()), 0
    )


def test_a_join_is_decided_afresh_unless_that_is_switched_off() -> None:
    for afresh in (True, False):
        router = router_for(DIAMOND_MS, msgspec.structs.replace(PLAIN, afresh=afresh), workers=3)
        of = request(diamond())
        router.hints(of, 0)
        planned = router._open[of.id].planned
        names = [n.name for n in of.graph.graph.nodes]
        router.heard([holding(planned[names.index("d")], 5_000, at_ms=400)], 400 * MS)
        route = router.route(item(of, "d"), 400 * MS)
        assert route is not None
        assert (route.worker == planned[names.index("d")]) is not afresh


def test_the_plan_breaks_near_ties_and_nothing_else() -> None:
    router = router_for({"a": 10, "b": 10}, workers=8)
    router.heard([holding(w, a=100, b=100) for w in range(1, 9)], 0)
    of = request(workflow([stage("a", 100), stage("b", 100)]))
    router.hints(of, 0)
    planned = router._open[of.id].planned[1]
    keep_ms = PLAIN.keep_ns / MS
    for wait_ms, kept in ((keep_ms - 1, True), (keep_ms + 1, False)):
        router.heard([holding(planned, wait_ms, at_ms=20, a=100, b=100)], 20 * MS)
        route = router.route(item(of, "b"), 20 * MS)
        assert route is not None and (route.worker == planned) is kept


def test_a_fetch_that_was_asked_for_and_never_shows_is_not_believed_for_ever() -> None:
    router = router_for(DIAMOND_MS, workers=1)
    router.hints(request(diamond()), 0)
    assert router.fleet.known(1).resident == {"b", "c"}
    late_ns = 110 * MS + PLAIN.doubt_ns
    router.fleet.doubt(late_ns)
    assert not router.fleet.known(1).resident
    router.holds(router.fleet.workers[1], "b", True, late_ns)
    router.fleet.doubt(2 * late_ns)
    assert router.fleet.known(1).resident == {"b"}  # the worker itself has said so
    router.holds(router.fleet.workers[1], "b", False, 2 * late_ns)
    assert not router.fleet.known(1).resident


# -- what rows do not know --------------------------------------------------------------------------------------


def test_what_was_sent_counts_until_a_row_shows_it() -> None:
    router = router_for({"a": 100}, workers=2)
    rows = [holding(1, a=100), holding(2, a=100)]
    router.heard(rows, 0)
    graph = single()
    first, _ = send(router, item(request(graph, 1), "a"), 1, 10 * MS)
    router.heard(rows, 10 * MS)  # as old as before
    second, _ = send(router, item(request(graph, 2), "a"), 2, 10 * MS)
    assert {first.worker.id, second.worker.id} == {1, 2}
    router.heard([holding(first.worker.id, 0, at_ms=20, a=100)], 20 * MS)  # written after it arrived: it is done
    third, _ = send(router, item(request(graph, 3), "a"), 3, 20 * MS)
    assert third.worker.id == first.worker.id


def test_without_corrections_the_rows_are_all_there_is() -> None:
    router = router_for({"a": 100}, msgspec.structs.replace(PLAIN, corrections=False, spread=False), workers=2)
    router.heard([holding(1, a=100), holding(2, a=100)], 0)
    sent = [send(router, item(request(single(), n), "a"), n, 10 * MS)[0].worker.id for n in (1, 2, 3)]
    assert len(set(sent)) == 1


def test_an_old_row_that_comes_late_changes_nothing() -> None:
    router = router_for({"a": 100}, workers=1)
    router.heard([holding(1, 500, at_ms=50, a=100)], 60 * MS)
    router.heard([holding(1, 0, at_ms=40)], 70 * MS)
    assert router.fleet.known(1).free_ns == 550 * MS and router.fleet.known(1).resident == {"a"}


# -- windows ----------------------------------------------------------------------------------------------------


def test_run_times_that_a_predictor_learns_later_change_the_order() -> None:
    router = router_for({}, workers=1)
    of = request(single())
    before = router.route(item(of, "a"), 0)
    batch, _ = send(router, item(of, "a"), 1, 0)
    router.fleet._predictor.observe_run(batch.queue.stage, batch.worker.spec.kind, 1, batch.config, 5 * SECOND)
    for number in range(2, 300):
        router.hints(request(single(), number), 0)
        router.closed(request(single(), number))
    after = router.route(item(of, "a"), 0)
    assert before is not None and after is not None and after.order > before.order


def test_a_refusal_teaches_and_the_last_try_has_no_window() -> None:
    chosen = RouterSettings(spares=0, ask_pct=())
    router = router_for({"a": 100}, chosen, workers=10)
    router.heard([holding(w, a=100) for w in range(1, 11)], 0)
    what = item(request(single()), "a")
    tried = []
    for number in range(chosen.bounces):
        batch, route = send(router, what, number, 0)
        assert route.latest_ns == _arrive_ns() + chosen.tolerance_ns + 10 * MS  # and a tenth of its run
        tried.append(route.worker)
        router.ended(batch, 0, done=False)
        assert router.fleet.known(route.worker).free_ns > route.latest_ns
    _, route = send(router, what, 99, 0)
    assert route.latest_ns == 0
    assert len({*tried, route.worker}) == chosen.bounces + 1  # never the same again while others are free


def _arrive_ns() -> int:
    return Delays(SIMULATOR).message_ns(0)


def test_a_worker_that_refused_has_not_fetched_the_model() -> None:
    router = router_for({"a": 100}, RouterSettings(spares=0), workers=1)
    batch, _ = send(router, item(request(single()), "a"), 1, 10 * MS)
    assert router.fleet.known(1).resident == {"a"}
    router.ended(batch, 11 * MS, done=False)
    assert not router.fleet.known(1).resident


def test_a_newer_row_overrules_a_refusal() -> None:
    router = router_for({"a": 100}, RouterSettings(spares=0), workers=1)
    router.heard([holding(1, a=100)], 0)
    batch, _ = send(router, item(request(single()), "a"), 1, 10 * MS)
    router.ended(batch, 11 * MS, done=False)
    assert router.fleet.known(1).free_ns > 11 * MS
    router.heard([holding(1, at_ms=12, a=100)], 13 * MS)
    assert router.fleet.known(1).free_ns == 0


def test_where_all_are_busy_others_are_asked_with_windows_that_widen() -> None:
    chosen = RouterSettings(spares=0)
    router = router_for({"a": 100}, chosen, workers=6)
    router.heard([holding(w, 400 + w, a=1_000) for w in range(1, 6)] + [holding(6, 300)], 0)
    what = item(request(single(1_000)), "a")
    asked = []
    for number in range(len(chosen.ask_pct)):
        batch, route = send(router, what, number, 0)
        asked.append(route)
        router.ended(batch, 0, done=False)
    windows = [r.latest_ns for r in asked]
    assert windows == [_arrive_ns() + pct * MS for pct in chosen.ask_pct]  # of a longest run of 100 ms
    assert len({r.worker for r in asked}) == len(asked) and 6 not in {r.worker for r in asked}  # it has no model
    _, last = send(router, what, 99, 0)
    assert last.latest_ns == 0 and last.reason != "asked"


@pytest.mark.parametrize(("wait_ms", "asks"), [(20, False), (60, True)])
def test_others_are_asked_only_if_the_wait_is_long(wait_ms: float, asks: bool) -> None:
    router = router_for({"a": 100}, RouterSettings(spares=0), workers=3)
    router.heard([holding(w, wait_ms, a=1_000) for w in (1, 2, 3)], 0)
    _, route = send(router, item(request(single(1_000)), "a"), 1, 0)
    assert (route.reason == "asked") is asks


def test_what_is_routed_runs_on_all_cores_of_its_worker() -> None:
    class ByCores:
        def __init__(self, known: Predictor) -> None:
            self._known = known

        def __getattr__(self, name: str) -> object:
            return getattr(self._known, name)

        def run(self, stage: StageSpec, kind: str, items: int, config: Config) -> Estimate:
            return Estimate(100 * MS // config.cpus, 0.0, "profile")

    router = router_for({"a": 100})
    join(router, 1, spec=msgspec.structs.replace(SPEC, cores=4))  # type: ignore[arg-type]
    router.fleet._predictor = ByCores(router.fleet._predictor)  # type: ignore[assignment]
    assert router.fleet.run_ns(stage("a", 100)) == 25 * MS


# -- herds ------------------------------------------------------------------------------------------------------


def test_controllers_with_the_same_view_do_not_run_to_the_same_worker() -> None:
    chosen = []
    for ingress in range(40):
        router = router_for({"a": 100}, ingress=ingress, workers=20)
        router.heard([holding(w, a=100) for w in range(1, 21)], 0)
        route = router.route(item(request(single()), "a"), 0)
        assert route is not None
        chosen.append(route.worker)
    assert len(set(chosen)) >= 12  # 17.4 of 20 are expected of 40 throws
    assert max(chosen.count(w) for w in set(chosen)) <= 8


def test_the_same_calls_give_the_same_answers() -> None:
    def play() -> list[Route | None]:
        router = router_for({"a": 100}, RouterSettings(), ingress=3, workers=20)
        router.heard([holding(w, w % 3, a=100) for w in range(1, 21)], 0)
        return [router.route(item(request(single(), n), "a"), n * MS) for n in range(50)]

    assert play() == play()


# -- order ------------------------------------------------------------------------------------------------------

rests = st.integers(1, 2_000)


@given(rests, rests, st.integers(0, 100_000), st.integers(0, 40))
def test_nobody_is_overtaken_by_what_comes_much_later(
    long_ms: int, short_ms: int, later_ms: int, favour: int
) -> None:
    router = router_for({"a": long_ms, "b": short_ms}, msgspec.structs.replace(PLAIN, favour=favour), workers=1)
    graphs = {name: workflow([stage(name)]) for name in "ab"}
    for name, graph in graphs.items():
        graph.name = name
    early = router.route(item(Request(1, graphs["a"], 1, 0, 0, 0), "a"), 0)
    late = router.route(item(Request(2, graphs["b"], 1, later_ms * MS, 0, 0), "b"), later_ms * MS)
    assert early is not None and late is not None
    assert (late.order < early.order) == (later_ms < favour * (long_ms - short_ms))


def test_classes_come_before_everything_else() -> None:
    router = router_for({"a": 10}, workers=1)
    old = router.route(item(Request(1, single(), 2, 0, 0, 0), "a"), 0)
    new = router.route(item(Request(2, single(), 1, 3_600 * SECOND, 0, 0), "a"), 3_600 * SECOND)
    assert old is not None and new is not None and new.order < old.order


def test_orders_of_all_ten_classes_fit_into_the_numbers_of_a_message() -> None:
    router = router_for({"a": 10}, workers=1)
    ten_years_ns = 10 * 366 * 86_400 * SECOND
    last = router.route(item(Request(1, single(), 10, ten_years_ns, 0, 0), "a"), ten_years_ns)
    assert last is not None and last.order < 1 << 63


# -- copies -----------------------------------------------------------------------------------------------------


def test_a_model_whose_holders_are_busy_is_copied_to_somebody_idle_with_room_but_not_at_once_again() -> None:
    chosen = RouterSettings(hints=False)
    router = router_for({"a": 10}, chosen, workers=3)
    full = msgspec.structs.replace(holding(2), free_bytes=0)
    router.heard([holding(1, 50, a=100), full, holding(3)], 0)
    graph = single()
    hints = router.hints(request(graph, 1), 0)
    assert [(h.worker, h.stage) for h in hints] == [(3, "a")]
    router.heard([holding(3, 50, at_ms=1, a=100), holding(2, at_ms=1)], 1 * MS)  # now 2 is idle and has room
    assert not router.hints(request(graph, 2), chosen.copy_every_ns - 1)
    again_ns = chosen.copy_every_ns
    router.heard([holding(w, 50, at_ms=again_ns / MS, a=100) for w in (1, 3)], again_ns)
    assert [h.worker for h in router.hints(request(graph, 3), again_ns)] == [2]


def test_no_copy_is_made_of_a_model_that_has_a_spare_holder() -> None:
    router = router_for({"a": 10}, RouterSettings(hints=False), workers=3)
    router.heard([holding(1, a=100), holding(2, a=100), holding(3)], 0)
    assert not router.hints(request(single()), 0)  # one holder is used, one is left
    router.heard([holding(2, 50, at_ms=1, a=100)], 1 * MS)
    assert [h.worker for h in router.hints(request(single(), 2), 1 * MS)] == [3]


# -- whole runs -------------------------------------------------------------------------------------------------

ABLATIONS = {
    "product": RouterSettings(),
    "no hints": RouterSettings(hints=False),
    "no overlap": RouterSettings(overlap=False),
    "not afresh": RouterSettings(afresh=False),
    "no corrections": RouterSettings(corrections=False),
    "no spread": RouterSettings(spread=False),
    "no windows": RouterSettings(bounces=0),
    "nobody asked": RouterSettings(ask_pct=()),
    "first come": RouterSettings(favour=0),
    "no copies": RouterSettings(spares=0),
}


def run(chosen: RouterSettings, seed: int, stale_ms: int, jobs: int = 60) -> tuple[Outcome, list[SharedWorkers]]:
    world = World(SIMULATOR, share_models=True)
    routers: list[SharedWorkers] = []

    def make(predictor: Predictor, ingress: int, home: int) -> Policy:
        router = SharedWorkers(predictor, chosen, ingress=ingress, home=home, delays=world.delays)
        routers.append(router)
        return policy_of(router, predictor)

    staleness = Staleness(stale_ms * MS, stale_ms * MS)
    return world.run(make, draw_jobs(seed, 4, 500, jobs), 4, Rules(), staleness, jobs=jobs), routers


@pytest.mark.parametrize("name", ABLATIONS)
def test_with_every_switch_everybody_is_answered_and_nothing_is_left(name: str) -> None:
    outcome, routers = run(ABLATIONS[name], 101, 50)
    assert outcome.answered == 67
    for router in routers:
        assert not router._open and not router._routed and not router._windows
        for number, belief in router.fleet.beliefs.items():
            assert len(belief.sent) <= 67 and number in router.fleet.workers


@settings(max_examples=8, deadline=None)
@given(st.integers(101, 140), st.sampled_from([1, 20, 300]))
@example(110, 1)  # no job of one of the workflows
def test_a_run_with_many_controllers_can_be_repeated(seed: int, stale_ms: int) -> None:
    assert run(RouterSettings(), seed, stale_ms)[0] == run(RouterSettings(), seed, stale_ms)[0]


def test_a_worker_that_is_lost_loses_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = Simulation.join

    def join_and_lose(self: Simulation, device: object, **named: object) -> None:
        joined(self, device, **named)  # type: ignore[arg-type]
        if device.ident == 2:  # type: ignore[attr-defined]
            self.lose(2, 5 * SECOND)

    monkeypatch.setattr(Simulation, "join", join_and_lose)
    outcome, routers = run(RouterSettings(), 101, 50)
    assert outcome.answered == 67
    assert all(2 not in r.fleet.workers for r in routers)
