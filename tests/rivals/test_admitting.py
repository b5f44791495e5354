"""Rivals behind our admission: who is let in and given up is ours, how it is run is theirs."""

from __future__ import annotations

from dovetail.control import Controller, Reject, RequestArrived, RunBatch
from dovetail.lab.experiments.graphs import ESG, make_policy
from dovetail.lab.experiments.graphs_world import GraphWorld, recipe_of
from dovetail.lab.rivals import unverified as u
from dovetail.lab.rivals.admitting import admitting
from dovetail.record.ledger import Ledger
from dovetail.sim import SimDevice, Simulation
from dovetail.state import WorkerSpec
from dovetail.units import MS
from dovetail.wiring import PolicySpec


def rush(policy_name: str, *, ours: bool, every_ms: int = 2) -> tuple[list[str], set[tuple[int, int, int]], float]:
    """Far more than one node can do: reasons of refusals, configurations that ran, hit rate."""
    world = GraphWorld(recipe_of(1001))
    policy = make_policy(world, policy_name)
    if ours:
        policy = admitting(policy, PolicySpec("dovetail", shares_pct=world.shares(), cpus=u.CPUS).space)
    controller = Controller([world.graph], policy)
    arrivals = (RequestArrived(i * every_ms * MS, 0, i, 0) for i in range(1, 200))
    reasons: list[str] = []
    configs: set[tuple[int, int, int]] = set()

    def observe(_event: object, actions: list[object]) -> None:
        reasons.extend(a.reason for a in actions if isinstance(a, Reject))
        configs.update((len(a.items), a.cpus, a.share_pct) for a in actions if isinstance(a, RunBatch))

    ledger = Ledger([(world.graph.name, world.graph.slo_ns)])
    simulation = Simulation(controller, ledger, arrivals, (observe,))
    spec = WorkerSpec("node", "a100", ("model",), 16, 0, 1.0, "simulated", 0.1)
    simulation.join(SimDevice(1, spec, controller.stages, world.true_table, simulation.schedule))
    simulation.run()
    (row,) = ledger.summary()
    return reasons, configs, row.hit_rate


def test_a_rival_refuses_and_gives_up_as_we_do_and_more_of_the_others_are_in_time() -> None:
    reasons, _, alone = rush(ESG, ours=False)
    assert reasons == [], "by itself it takes all"
    reasons, _, hit_rate = rush(ESG, ours=True)
    assert any("behind others and be late" in reason for reason in reasons)
    assert any("cannot be in time any more" in reason for reason in reasons)
    assert hit_rate > alone


def test_below_capacity_nothing_is_refused_and_the_rival_decides_as_before() -> None:
    assert rush(ESG, ours=True, every_ms=200) == rush(ESG, ours=False, every_ms=200)
