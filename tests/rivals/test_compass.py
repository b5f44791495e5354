"""Compass's plans and adjustments worked out by hand, and its choices against a brute force of its own formula."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rivals.routing import (
    MEMORY_BYTES,
    SPEC,
    compiled,
    item,
    join,
    other,
    planned,
    predictor,
    request,
    row,
    stage,
    weights_for,
    workflow,
)

from dovetail.lab.rivals.compass import CASCADE_FORM, HEFT_FORM, SIMULATOR_FORM, CompassForm, CompassRouter
from dovetail.place.rank import rank_order, sources_of, upward_ranks
from dovetail.place.transfer import CASCADE, SIMULATOR, Delays
from dovetail.state import CompiledGraph, Worker, WorkerRow
from dovetail.units import MS
from dovetail.workflow.graph import Node, Source, StageSpec, chain

#: The simulator's round fetch times, but with entries that leave the ingress paying for it.
ROUND = CompassForm(links=SIMULATOR, stage_inputs=False)


def single(fetch_ms: float) -> CompiledGraph:
    return workflow([stage("a", fetch_ms)])


def compass(times_ms: dict[str, float], form: CompassForm = ROUND, home: int = 0) -> CompassRouter:
    return CompassRouter(predictor(times_ms), form, home=home)


# -- planning ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait_ms", "chosen"),
    [(99, 1), (101, 2)],
)
def test_a_model_that_is_there_is_worth_one_fetch_of_waiting(wait_ms: float, chosen: int) -> None:
    router = compass({"a": 10})
    join(router, 1, 2)
    router.heard([row(1, wait_ms=wait_ms, has={"a": weights_for(100)}), row(2)], 0)
    assert planned(router, request(single(100))) == {"a": chosen}


@pytest.mark.parametrize(
    ("wait_ms", "chosen"),
    [(199, 1), (201, 2)],
)
def test_where_something_must_be_evicted_it_is_worth_two(wait_ms: float, chosen: int) -> None:
    router = compass({"a": 10})
    join(router, 1, 2)
    full = {"b": MEMORY_BYTES - weights_for(100) + 1}
    router.heard([row(1, wait_ms=wait_ms, has={"a": weights_for(100)}), row(2, has=full)], 0)
    assert planned(router, request(single(100))) == {"a": chosen}


def test_a_model_that_just_fits_costs_one_fetch() -> None:
    router = compass({"a": 10})
    join(router, 1, 2)
    nearly = {"b": MEMORY_BYTES - weights_for(100)}
    router.heard([row(1, wait_ms=101, has={"a": weights_for(100)}), row(2, has=nearly)], 0)
    assert planned(router, request(single(100))) == {"a": 2}


def test_without_locality_a_fetch_takes_no_time_and_without_load_a_wait_takes_none() -> None:
    rows = [row(1, wait_ms=5, has={"a": weights_for(100)}), row(2)]
    for change, chosen in (({"locality": False}, 2), ({"load": False}, 1)):
        router = compass({"a": 10}, msgspec.structs.replace(ROUND, **change))
        join(router, 1, 2)
        router.heard(rows, 0)
        assert planned(router, request(single(100))) == {"a": chosen}


def test_among_idle_workers_the_ingress_wins_in_cascade_and_the_first_in_the_simulator() -> None:
    for form, chosen in ((CASCADE_FORM, 3), (SIMULATOR_FORM, 1)):
        router = compass({"a": 10}, form, home=3)
        join(router, 1, 2, 3)
        assert planned(router, request(single(100)), now_ns=1_000 * MS) == {"a": chosen}


def test_branches_spread_and_the_join_goes_where_the_longest_of_them_ends() -> None:
    stages = [stage("a"), stage("long"), stage("short"), stage("join")]
    graph = workflow(stages, {"long": ["a"], "short": ["a"], "join": ["long", "short"]})
    router = compass({"a": 10, "long": 50, "short": 20, "join": 1})
    join(router, 1, 2)
    # `long` has the higher rank and stays with `a`; `short` would wait 50 ms there and goes to 2; the join would wait
    # for `long` on either worker, and on 2 for its transfer as well.
    assert planned(router, request(graph)) == {"a": 1, "long": 1, "short": 2, "join": 1}


def test_the_planner_counts_what_it_has_placed_itself_and_pays_twice_for_one_model() -> None:
    # Both branches use one model of 100 ms. On worker 1, `b` costs 100 ms of fetch; `c` would wait for `b` and fetch
    # the model again by the planner's reckoning (30 + 100 + 50 + 100), so it goes to 2 although 2 is busy for 170 ms.
    graph = workflow([stage("a"), stage("b", 100, "m"), stage("c", 100, "m")], {"b": ["a"], "c": ["a"]})
    router = compass({"a": 30, "b": 50, "c": 40})
    join(router, 1, 2)
    router.heard([row(1), row(2, wait_ms=170)], 0)
    assert planned(router, request(graph)) == {"a": 1, "b": 1, "c": 2}


@pytest.mark.parametrize(("slip", "chosen"), [(False, 2), (True, 1)])
def test_the_simulators_slip_takes_a_planned_fetch_for_freed_memory(slip: bool, chosen: int) -> None:
    # Worker 1 has room for one of the two models. After the first, the second costs two fetches there (30 + 100 +
    # 10 + 200), more than on worker 2, which is busy for 200 ms (and fetches once: 300); with the slip, one (240).
    graph = workflow([stage("a"), stage("b", 100), stage("c", 100)], {"b": ["a"], "c": ["b"]})
    router = compass({"a": 30, "b": 10, "c": 40}, msgspec.structs.replace(ROUND, memory_slip=slip))
    join(router, 1, 2)
    room = MEMORY_BYTES - round(1.5 * weights_for(100))
    router.heard([row(1, has={"x": room}), row(2, wait_ms=200)], 0)
    assert planned(router, request(graph))["c"] == chosen


def test_staging_inputs_is_part_of_the_planned_end_in_cascade_only() -> None:
    # In Cascade's form `a` ends a copy of its input later, so that worker 2 is free before it can be.
    node_bytes = 200_000 * 1024
    graph = compiled(chain("flow", 1, [stage("a"), stage("b")], {"b": []}, out_bytes={"a": node_bytes}))
    for stage_inputs, chosen in ((False, 1), (True, 2)):
        router = compass({"a": 10, "b": 5}, msgspec.structs.replace(ROUND, stage_inputs=stage_inputs), home=1)
        join(router, 1, 2)
        router.heard([row(2, wait_ms=15)], 0)
        assert planned(router, request(graph))["b"] == chosen


# -- adjustment -------------------------------------------------------------------------------------------------


def handed_over(form: CompassForm, wait_ms: float, *, origin: int = 1) -> int:
    """`b` runs for 40 ms and was planned on worker 1, which has such a wait by the time `a` is done."""
    graph = workflow([stage("a"), stage("b", 100)])
    router = compass({"a": 10, "b": 40}, form)
    join(router, 1, 2, 3)
    held = {"b": weights_for(100)}
    router.heard([row(1, has=held)], 0)
    job = request(graph)
    assert planned(router, job) == {"a": 1, "b": 1}
    router.heard([row(1, wait_ms=wait_ms, has=held), row(2), row(3, wait_ms=5, has=held)], 50 * MS)
    route = router.route(item(job, "b", origin=origin), 50 * MS)
    assert route is not None
    return route.worker


@pytest.mark.parametrize(("wait_ms", "chosen"), [(60, 1), (60.001, 3)])
def test_an_item_is_moved_when_the_wait_is_above_one_and_a_half_run_times(wait_ms: float, chosen: int) -> None:
    assert handed_over(ROUND, wait_ms) == chosen


def test_without_adjustment_it_stays_whatever_the_wait() -> None:
    assert handed_over(msgspec.structs.replace(ROUND, adjust=False), 10_000) == 1


def test_joins_are_pinned_unless_the_form_moves_them_and_entries_never_move() -> None:
    graph = workflow([stage("a"), stage("b"), stage("c")], {"b": [], "c": ["a", "b"]})
    for pin, chosen in ((True, 1), (False, 2)):
        router = compass({"a": 10, "b": 10, "c": 10}, msgspec.structs.replace(ROUND, pin_joins=pin), home=1)
        join(router, 1, 2)
        job = request(graph)
        plan = planned(router, job)
        router.plans[job.id] = {0: 1, 1: 1, 2: 1}
        assert plan.keys() == {"a", "b", "c"}
        router.heard([row(1, wait_ms=1_000)], 0)
        entry, joined = router.route(item(job, "a"), 0), router.route(item(job, "c", origin=1), 0)
        assert entry is not None and entry.worker == 1
        assert joined is not None and joined.worker == chosen


def test_the_simulator_counts_the_way_of_the_input_when_it_moves_an_item() -> None:
    # Worker 2 is free, but the input is on worker 1: between them lie 200 MB, 16 ms.
    graph = compiled(chain("flow", 1, [stage("a"), stage("b")], out_bytes={"a": 200_000 * 1024}))
    for counts, chosen in ((True, 1), (False, 2)):
        router = compass({"a": 1, "b": 1}, msgspec.structs.replace(ROUND, adjust_counts_input=counts))
        join(router, 1, 2)
        job = request(graph)
        router.hints(job, 0)
        router.plans[job.id] = {0: 1, 1: 1}
        router.heard([row(1, wait_ms=10)], 0)
        route = router.route(item(job, "b", origin=1), 0)
        assert route is not None and route.worker == chosen


# -- workers that come and go -----------------------------------------------------------------------------------


def test_a_lost_worker_is_replaced_for_its_items_and_without_any_there_is_no_route() -> None:
    graph = workflow([stage("a"), stage("b", 100)])
    router = compass({"a": 10, "b": 40}, home=1)
    first, second = join(router, 1, 2)
    job = request(graph)
    assert planned(router, job) == {"a": 1, "b": 1}
    router.lost(first)
    route = router.route(item(job, "b"), 0)
    assert route is not None and route.worker == 2
    router.lost(second)
    assert router.route(item(job, "b"), 0) is None
    join(router, 3)
    route = router.route(item(job, "b"), 0)
    assert route is not None and route.worker == 3
    assert planned(router, request(graph, 2)) == {"a": 3, "b": 3}


def test_a_request_that_came_when_nobody_was_there_is_routed_when_somebody_is() -> None:
    router = compass({"a": 10})
    job = request(single(100))
    assert planned(router, job) == {}
    assert router.route(item(job, "a"), 0) is None
    join(router, 1)
    route = router.route(item(job, "a"), 0)
    assert route is not None and route.worker == 1


def test_what_a_worker_cannot_run_is_not_planned_there() -> None:
    router = compass({"a": 10})
    join(router, 1, spec=other(SPEC, memory_bytes=weights_for(100) - 1))
    join(router, 2, spec=other(SPEC, runs=("onnx",)))
    join(router, 3)
    assert planned(router, request(single(100))) == {"a": 3}


def test_nothing_is_kept_of_a_request_that_is_closed() -> None:
    router = compass({"a": 10})
    join(router, 1)
    job = request(single(0))
    router.hints(job, 0)
    router.closed(job)
    assert not router.plans


def test_items_of_a_mapped_node_all_follow_its_plan() -> None:
    graph = chain("flow", 1, [stage("a"), stage("b", 100)])
    first, second = graph.nodes
    mapped = msgspec.structs.replace(
        graph, nodes=(first, Node("b", "b", (Source(0),), mapped=True)), results=(Source(1),)
    )
    assert second.name == "b"
    router = compass({"a": 10, "b": 40})
    join(router, 1, 2, 3)
    job = request(compiled(mapped))
    worker = planned(router, job)["b"]
    routes = [router.route(item(job, "b", index=i, origin=1), 0) for i in range(5)]
    assert {r.worker for r in routes if r is not None} == {worker}


# -- HEFT -------------------------------------------------------------------------------------------------------


def test_heft_sees_neither_load_nor_models_and_keeps_a_chain_at_its_ingress() -> None:
    graph = workflow([stage("a", 100), stage("b", 100)])
    router = compass({"a": 10, "b": 40}, HEFT_FORM, home=2)
    join(router, 1, 2, 3)
    router.heard([row(2, wait_ms=5_000), row(3, has={"a": weights_for(100), "b": weights_for(100)})], 0)
    job = request(graph)
    assert planned(router, job) == {"a": 2, "b": 2}
    route = router.route(item(job, "b", origin=2), 0)
    assert route is not None and route.worker == 2


def test_heft_sends_parallel_branches_to_the_first_workers_that_the_plan_leaves_idle() -> None:
    after = {"b": ["a"], "c": ["a"], "d": ["a"]}
    graph = workflow([stage("a"), stage("b"), stage("c"), stage("d")], after)
    router = compass({"a": 10, "b": 40, "c": 30, "d": 20}, HEFT_FORM, home=3)
    join(router, 1, 2, 3)
    assert planned(router, request(graph)) == {"a": 3, "b": 3, "c": 1, "d": 2}


# -- brute force ------------------------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> tuple[CompiledGraph, dict[str, float], list[WorkerRow], int]:
    count = draw(st.integers(1, 5))
    names = [f"s{i}" for i in range(count)]
    stages = [stage(n, draw(st.sampled_from([0, 50, 100, 400])), draw(st.sampled_from("mnop"))) for n in names]
    sizes = {s.model: s.weights_bytes for s in stages}
    stages = [msgspec.structs.replace(s, weights_bytes=sizes[s.model]) for s in stages]
    after = {
        names[i]: [names[j] for j in sorted(draw(st.sets(st.integers(0, i - 1), max_size=2)))]
        for i in range(1, count)
    }
    out = {n: draw(st.sampled_from([0, 2 * 1024, 50_000 * 1024])) for n in names}
    graph = compiled(chain("flow", 1, stages, after, out_bytes=out))
    times = {n: draw(st.integers(1, 200)) for n in names}
    rows = []
    for worker in range(1, draw(st.integers(1, 4)) + 1):
        held = {m: sizes[m] for m in draw(st.sets(st.sampled_from(sorted(sizes))))}
        held |= {"filler": draw(st.sampled_from([0, MEMORY_BYTES // 2, MEMORY_BYTES]))}
        used = min(MEMORY_BYTES, sum(held.values()))
        rows.append(WorkerRow(worker, 0, draw(st.integers(0, 300)) * MS, 0, tuple(held), MEMORY_BYTES - used))
    return graph, times, rows, draw(st.integers(1, len(rows)))


def check_by_brute_force(
    form: CompassForm, world: tuple[CompiledGraph, dict[str, float], list[WorkerRow], int]
) -> None:
    """Replays a plan step by step with the formula written out anew, and asks of every step that it was the best."""
    graph, times, rows, home = world
    router = compass(times, form, home=home)
    join(router, *(r.worker for r in rows))
    router.heard(rows, 0)
    now_ns = 7 * MS
    job = request(graph)
    router.hints(job, now_ns)
    plan = router.plans[job.id]
    nodes = graph.graph.nodes
    assert plan.keys() == set(range(len(nodes)))
    delays = Delays(form.links)
    run = [times[n.stage] * MS for n in nodes]
    sources = sources_of(graph.graph)
    free_at = {r.worker: now_ns + (r.wait_ns if form.load else 0) for r in rows}
    used = {r.worker: MEMORY_BYTES - r.free_bytes for r in rows}
    free = {r.worker: r.free_bytes for r in rows}
    resident = {r.worker: r.resident for r in rows}
    ends: list[int] = [0] * len(nodes)
    for node in rank_order(upward_ranks(graph.graph, run, [delays.result_ns(n.out_bytes) for n in nodes])):
        spec = graph.nodes[node].stage
        in_bytes = max([nodes[s].out_bytes for s in sources[node]] or [nodes[node].out_bytes])
        move = delays.result_ns if form.device_results else delays.message_ns
        starts: dict[int, int] = {}
        fetched: dict[int, int] = {}
        for worker in free_at:
            arrive = [ends[s] + (0 if plan[s] == worker else move(nodes[s].out_bytes)) for s in sources[node]]
            if not sources[node] and form.entry_from_now and worker != home:
                arrive = [now_ns + delays.message_ns(in_bytes)]
            fetch = 0
            if form.locality and spec.weights not in resident[worker]:
                room = (
                    used[worker] + spec.weights_bytes <= MEMORY_BYTES
                    if form.memory_slip
                    else (spec.weights_bytes <= free[worker])
                )
                fetch = delays.load_ns(spec.weights_bytes) * (1 if room else 2)
                fetched[worker] = spec.weights_bytes
            starts[worker] = max([free_at[worker], *arrive]) + fetch
        best = min(starts.values())
        assert plan[node] == next(w for w, at in starts.items() if at == best)
        chosen = plan[node]
        ends[node] = best + run[node] + (delays.result_ns(in_bytes) if form.stage_inputs else 0)
        free_at[chosen] = ends[node]
        size = fetched.get(chosen, 0)
        if size <= used[chosen]:
            used[chosen] -= size
        if size <= free[chosen]:
            free[chosen] -= size


@given(worlds())
def test_cascades_choice_is_the_least_of_its_own_formula(world: tuple) -> None:
    check_by_brute_force(CASCADE_FORM, world)


@given(worlds())
def test_the_simulators_choice_is_the_least_of_its_own_formula(world: tuple) -> None:
    check_by_brute_force(SIMULATOR_FORM, world)


@given(worlds())
def test_hefts_choice_is_the_least_of_its_own_formula(world: tuple) -> None:
    check_by_brute_force(HEFT_FORM, world)


def test_forms_use_the_links_of_their_source() -> None:
    assert CASCADE_FORM.links == HEFT_FORM.links == CASCADE
    assert SIMULATOR_FORM.links == SIMULATOR


def test_a_stage_without_a_model_is_fetched_nowhere() -> None:
    router = compass({"a": 10})
    workers: list[Worker] = join(router, 1, 2)
    router.heard([row(1, wait_ms=1), row(2, has={"x": MEMORY_BYTES})], 0)
    graph = workflow([StageSpec("a", "model")])
    assert planned(router, request(graph)) == {"a": workers[1].id}
