"""Hash and JIT: the same answer every time, evenly spread; JIT moves what would have to wait."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.rivals.routing import item, join, planned, predictor, request, row, stage, weights_for, workflow

from dovetail.lab.rivals.hashed import HashRouter, pick
from dovetail.lab.rivals.jit import JitRouter

FLOW = workflow([stage("a"), stage("b", 100), stage("c"), stage("d")], {"b": ["a"], "c": ["a"], "d": ["b", "c"]})
TIMES = {"a": 10.0, "b": 20.0, "c": 30.0, "d": 1.0}


def test_hash_is_the_same_in_every_run_and_on_every_machine() -> None:
    assert [pick(1, request_id, 0, 10) for request_id in range(8)] == [0, 9, 8, 8, 2, 2, 5, 6]


def test_hash_spreads_evenly_over_workers() -> None:
    router = HashRouter(seed=3)
    join(router, *range(1, 21))
    seen = Counter(w for ident in range(2_000) for w in planned(router, request(FLOW, ident)).values())
    # 8,000 tasks over 20 workers: 400 each, with a standard deviation of 20.
    assert set(seen) == set(range(1, 21))
    assert all(300 < count < 500 for count in seen.values())


def test_nodes_and_requests_are_spread_independently() -> None:
    router = HashRouter()
    join(router, 1, 2)
    plans = {tuple(planned(router, request(FLOW, ident)).values()) for ident in range(300)}
    assert len(plans) == 16


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 99), st.integers(1, 500))
def test_hash_names_one_of_those_who_are_there(seed: int, ident: int, node: int, count: int) -> None:
    assert 0 <= pick(seed, ident, node, count) < count


def test_hash_keeps_its_plan_whatever_the_load_and_goes_elsewhere_when_the_worker_is_gone() -> None:
    router = HashRouter(seed=1)
    workers = {w.id: w for w in join(router, 1, 2, 3)}
    job = request(FLOW)
    plan = planned(router, job)
    router.heard([row(plan["b"], wait_ms=1e6)], 0)
    route = router.route(item(job, "b"), 0)
    assert route is not None and route.worker == plan["b"]
    router.lost(workers[plan["b"]])
    route = router.route(item(job, "b"), 0)
    assert route is not None and route.worker != plan["b"]
    for worker in workers.values():
        router.lost(worker)
    assert router.route(item(job, "b"), 0) is None


def test_jit_plans_by_hash_and_moves_to_the_least_of_wait_and_fetch() -> None:
    router = JitRouter(predictor(TIMES), seed=1)
    join(router, 1, 2, 3)
    by_hash = HashRouter(seed=1)
    join(by_hash, 1, 2, 3)
    job = request(FLOW)
    plan = planned(router, job)
    assert plan == planned(by_hash, request(FLOW))
    at = plan["b"]
    others = [w for w in (1, 2, 3) if w != at]
    held = {"b": weights_for(100)}
    # Idle: it stays, although another holds the model.
    router.heard([row(others[1], wait_ms=60, has=held)], 0)
    stays = router.route(item(job, "b", origin=at), 0)
    assert stays is not None and stays.worker == at
    # Busy: 60 ms of waiting where the model is, against a fetch of 100 ms on an idle worker.
    router.heard([row(at, wait_ms=0.001)], 0)
    moves = router.route(item(job, "b", origin=at), 0)
    assert moves is not None and moves.worker == others[1]


def test_jit_moves_joins_too() -> None:
    router = JitRouter(predictor(TIMES), seed=1)
    join(router, 1, 2)
    job = request(FLOW)
    at = planned(router, job)["d"]
    router.heard([row(at, wait_ms=5)], 0)
    route = router.route(item(job, "d", origin=at), 0)
    assert route is not None and route.worker == 3 - at


def test_two_seeds_give_two_plans() -> None:
    plans = []
    for seed in (1, 2):
        router = HashRouter(seed)
        join(router, *range(1, 11))
        plans.append([planned(router, request(FLOW, ident)) for ident in range(20)])
    assert plans[0] != plans[1]
