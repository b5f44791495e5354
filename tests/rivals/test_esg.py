"""ESG as published: what it searches with, where it dispatches to, and that it keeps the promises in its world."""

from __future__ import annotations

from tests.rivals.support import play

from dovetail.lab.experiments.esg_world import World
from dovetail.lab.rivals import unverified as u
from dovetail.lab.rivals.common import Market
from dovetail.lab.rivals.esg import RECHECKS, EsgPlanner
from dovetail.plan.space import Space
from dovetail.predict import Estimator
from dovetail.profile.table import ProfileTable
from dovetail.state import Batch, Cluster, Config, Item, Queue, Request, Worker, WorkerSpec, compile_graphs
from dovetail.workflow.graph import StageSpec


def planner() -> tuple[EsgPlanner, World]:
    world = World("moderate-normal")
    built = EsgPlanner(Market(Estimator(world.table), Space(world.shares(), u.CPUS), world.node()))
    return built, world


def queued(built: EsgPlanner, world: World, count: int) -> tuple[Queue, Request]:
    graphs, queues = compile_graphs(world.graphs, built.queue_key)
    built.bind(Cluster(queues, [s.name for g in world.graphs for s in g.stages]))
    graph = graphs[0]
    queue = graph.nodes[0].queue
    request = Request(1, graph, 1, 0, graph.slo_ns, 0)
    for index in range(count):
        queue.push(index, Item(request, 0, index, 0))
    return queue, request


def test_there_is_one_queue_per_application_and_function() -> None:
    built, world = planner()
    _, queues = compile_graphs(world.graphs, built.queue_key)
    assert len(queues) == sum(len(g.nodes) for g in world.graphs)


def test_the_first_batch_is_bounded_by_the_queue_and_configurations_are_distinct() -> None:
    built, world = planner()
    queue, _ = queued(built, world, 2)
    configs = built.choose(queue, 0)
    assert isinstance(configs, tuple)
    assert 0 < len(configs) <= u.K_BEST and len(set(configs)) == len(configs)
    assert all(c.batch <= 2 for c in configs)


def test_with_less_time_left_it_takes_a_faster_configuration() -> None:
    built, world = planner()
    queue, request = queued(built, world, 1)
    stage = queue.stage.name
    relaxed = built.choose(queue, 0)
    pressed = built.choose(queue, request.objective_ns // 2)

    def time_ns(config: Config) -> int | None:
        return world.table.latency_ns(stage, "a100", config.batch, config.cpus, config.share_pct)

    assert isinstance(relaxed, tuple) and isinstance(pressed, tuple)
    assert (time_ns(pressed[0]) or 0) < (time_ns(relaxed[0]) or 0)


def test_a_queue_looked_at_in_vain_is_offered_the_minimum_in_the_end() -> None:
    built, world = planner()
    queue, request = queued(built, world, 4)
    late = request.objective_ns
    least = Config(1, 1, world.shares()[0])
    first = built.choose(queue, late)
    assert isinstance(first, tuple) and least not in first
    assert all(built.choose(queue, late + now) == first for now in range(1, 5)), "asking alone changes nothing"
    elsewhere = Batch(1, queue, Worker(1, world.node()), least, [], 0, 0)
    for _ in range(RECHECKS):
        assert built.choose(queue, late) == first
        built.ended(elsewhere, 0, True)
    assert built.choose(queue, late) == (*first, least)


def test_the_dispatcher_prefers_the_data_then_the_home_then_room() -> None:
    spec = WorkerSpec("node", "a100", ("model",), cores=16)
    workers = {i: Worker(i, spec) for i in (1, 2, 3)}
    queue = Queue("q", StageSpec("read", "model", (1,)))
    graph, _ = compile_graphs([World("strict-light").graphs[0]], lambda _g, n: n.stage)
    item = Item(Request(1, graph[0], 1, 0, 1, 0), 0, 0, 0)
    queue.push(0, item)
    config = Config(1, 1, 50)
    esg = EsgPlanner(Market(Estimator(ProfileTable()), Space(), spec))
    item.origin = 2
    assert esg.place(queue, config, workers) is workers[2]
    workers[2].free_pct = 40
    workers[3].free_pct = 60
    assert esg.place(queue, config, workers) is workers[1], "most room"
    item.origin = 0
    home = esg.place(queue, config, workers)
    assert home in (workers[1], workers[3])
    workers[1].free_pct = workers[3].free_pct = 0
    assert esg.place(queue, config, workers) is None


def test_it_keeps_every_promise_in_its_own_world() -> None:
    done, ledger, simulation = play(EsgPlanner, "moderate-normal", seconds=4)
    assert done
    assert sum(line.requests for line in ledger.summary()) == simulation.arrived
