"""Cold starts, keep-alive and warm-ups as ESG is remembered to do them."""

from __future__ import annotations

from dovetail.control import Action, Controller, Event, EvictModel, LoadModel, Policy, RequestArrived
from dovetail.control.validate import validate
from dovetail.lab.rivals import unverified as u
from dovetail.lab.rivals.common import Market
from dovetail.lab.rivals.esg import EsgPlanner
from dovetail.lab.rivals.prewarm import Prewarmer
from dovetail.plan.space import Space
from dovetail.predict import Estimator
from dovetail.profile.curve import Curve
from dovetail.profile.table import Entry, ProfileTable
from dovetail.record.ledger import Ledger
from dovetail.sim import SimDevice, Simulation
from dovetail.state import WorkerSpec
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec, chain

CURVE = Curve((1,), (20 * MS,), (10 * MS,))
NODE = WorkerSpec("node", "a100", ("model",), cores=4, usd_per_hour=1.0)


def play(times_s: list[float], *, keep_alive_s: int) -> tuple[list[tuple[float, str]], Ledger]:
    """What is loaded (+) and evicted (-) when, and what became of the requests."""
    table = ProfileTable([Entry("read", "a100", curve=CURVE, load_ns=500 * MS)])
    graph = chain("flow", 100 * MS, [StageSpec("read", "model", (1,), model="read", weights_bytes=10)])
    predictor = Estimator(table)
    prewarmer = Prewarmer(predictor, keep_alive_ns=keep_alive_s * SECOND)
    market = Market(predictor, Space((50, 100), u.CPUS[:1]), NODE)
    planner = EsgPlanner(market, prewarmer=prewarmer)
    controller = Controller([graph], Policy(planner, prewarmer, predictor))
    story: list[tuple[float, str]] = []

    def observe(event: Event, actions: list[Action]) -> None:
        validate(controller)
        at_s = event.at_ns / SECOND
        story.extend((at_s, "+") for action in actions if isinstance(action, LoadModel))
        story.extend((at_s, "-") for action in actions if isinstance(action, EvictModel))

    arrivals = (RequestArrived(round(t * SECOND), 0, i, 0) for i, t in enumerate(times_s, start=1))
    ledger = Ledger([("flow", 100 * MS)])
    simulation = Simulation(controller, ledger, arrivals, [observe])
    simulation.join(SimDevice(1, NODE, controller.stages, table, simulation.schedule))
    simulation.run(until_ns=round((times_s[-1] + 100) * SECOND))
    return story, ledger


def test_the_first_call_waits_for_a_cold_start_and_the_next_finds_it_warm() -> None:
    story, ledger = play([1.0, 2.0, 3.0], keep_alive_s=600)
    assert story == [(1.0, "+")]
    outcomes = ledger.summary()[0].outcomes
    assert (outcomes["late"], outcomes["ok"]) == (1, 2)


def test_what_is_idle_for_its_keep_alive_time_is_evicted() -> None:
    story, _ = play([1.0], keep_alive_s=10)
    assert [sign for _, sign in story] == ["+", "-"]
    loaded, evicted = (at for at, _ in story)
    assert evicted - loaded >= 10.0


def test_a_regular_function_is_warmed_ahead_of_its_next_call() -> None:
    story, ledger = play([float(t) for t in range(20, 200, 20)], keep_alive_s=5)
    loads = [at for at, sign in story if sign == "+"]
    assert loads[0] == 20.0, "the first is cold"
    # From the third call on the interval is known: loading begins half a second, its load time, ahead.
    assert any(abs(at % 20 - 19.5) < 0.1 for at in loads[2:])
    outcomes = ledger.summary()[0].outcomes
    assert outcomes["ok"] >= 6, "and the call finds it warm"
