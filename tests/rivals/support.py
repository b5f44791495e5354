"""Small markets with times that can be worked out by hand, and short runs of a rival with every invariant checked."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from dovetail.control import Action, Controller, Event, ModelLoaded, RequestArrived, WorkerJoined
from dovetail.control.validate import validate
from dovetail.lab.experiments.esg_world import KIND, World
from dovetail.lab.rivals import unverified as u
from dovetail.lab.rivals.common import Market, Rival, rival_policy
from dovetail.plan.space import Space
from dovetail.predict import Estimator
from dovetail.profile.curve import Curve
from dovetail.profile.table import Entry, ProfileTable
from dovetail.record.ledger import Ledger
from dovetail.sim import SimDevice, Simulation
from dovetail.state import WorkerSpec
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import Graph, StageSpec, chain

TENTHS = tuple(range(10, 101, 10))


def curve(work_ms: Mapping[int, float], floor_ms: float = 0.001) -> Curve:
    """Time of a batch is work / share, but no less than the floor."""
    floors = [round(floor_ms * MS)] * len(work_ms)
    return Curve(tuple(work_ms), tuple(floors), tuple(round(ms * MS) for ms in work_ms.values()))


def market(
    curves: Mapping[str, Curve],
    *,
    spread: float = 0.0,
    cores: int = 16,
    cpus: tuple[int, ...] = (1, 2, 3, 4),
    shares_pct: tuple[int, ...] = TENTHS,
) -> Market:
    """A market of stages with such curves; a core costs a twentieth of a device."""
    table = ProfileTable(Entry(name, "gpu", curve=c, spread=spread) for name, c in curves.items())
    worker = WorkerSpec("gpu", "gpu", ("model",), cores, 0, 2.0, "simulated", 0.1)
    return Market(Estimator(table), Space(shares_pct, cpus), worker)


def workflow(name: str, slo_ms: float, stages: Mapping[str, Sequence[int]], after: object = None) -> Graph:
    """A workflow of stages with such batch sizes, one behind the other unless `after` says otherwise."""
    specs = [StageSpec(stage, "model", tuple(batches)) for stage, batches in stages.items()]
    return chain(name, round(slo_ms * MS), specs, after)  # type: ignore[arg-type]


def controller_of(planner: Rival, graphs: Sequence[Graph], workers: int) -> Controller:
    """A controller whose workers have joined and hold all models."""
    controller = Controller(graphs, rival_policy(planner))  # type: ignore[arg-type]
    for ident in range(1, workers + 1):
        controller.step(WorkerJoined(0, 0, ident, planner.market.worker(graphs[0].stages[0])))
        for stage in controller.stages:
            controller.step(ModelLoaded(0, 0, ident, stage, 0))
    return controller


def arrival(at_ms: float, request: int, graph: int = 0) -> RequestArrived:
    """A request for a workflow."""
    return RequestArrived(round(at_ms * MS), 0, request, graph)


def esg_market(world: World) -> Market:
    """What rivals may choose from in ESG's world."""
    cost, core_cost = world.usd_per_device_hour, world.usd_per_core_hour
    worker = WorkerSpec("node", KIND, ("model",), u.CPUS_PER_NODE, 0, cost, "simulated", core_cost)
    return Market(Estimator(world.table), Space(shares_pct=world.shares(), cpus=u.CPUS), worker)


def play(
    make: Callable[[Market], Rival],
    setting: str,
    seconds: float,
    *,
    seed: int = 1,
    lose_at_s: float = 0.0,
    patience: int = 1,
) -> tuple[list[Action], Ledger, Simulation]:
    """Run a rival in ESG's world, check every invariant after every step, and return what it did.

    Objectives are so many times as long as the world's.
    """
    world = World(setting)
    world.graphs = [msgspec.structs.replace(g, slo_ns=g.slo_ns * patience) for g in world.graphs]
    planner = make(esg_market(world))
    controller = Controller(world.graphs, rival_policy(planner))  # type: ignore[arg-type]
    done: list[Action] = []

    def check(event: Event, actions: list[Action]) -> None:
        validate(controller)
        done.extend(actions)

    ledger = Ledger([(g.name, g.slo_ns) for g in world.graphs])
    simulation = Simulation(controller, ledger, world.arrivals(seed, seconds), [check])
    for ident in range(1, world.nodes + 1):
        rng = random.Random(f"{seed}/{ident}")
        spec = planner.market.worker(world.graphs[0].stages[0])
        simulation.join(SimDevice(ident, spec, controller.stages, world.table, simulation.schedule, rng=rng))
    if lose_at_s:
        simulation.lose(1, round(lose_at_s * SECOND))
    simulation.run()
    assert not controller.requests, f"{len(controller.requests)} requests were left"
    return done, ledger, simulation
