"""Against queueing theory: a simulated stage with one worker is the queue that the text books solve."""

from __future__ import annotations

import random

import pytest

from dovetail.control import RunBatch
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.record.ledger import Ledger
from dovetail.sim import SimDevice, Simulation
from dovetail.sim.arrivals import Poisson, Stream, requests
from dovetail.state import WorkerSpec
from dovetail.units import MS, SECOND
from dovetail.wiring import PolicySpec, make_controller
from dovetail.workflow.graph import StageSpec, chain

SERVICE_NS = 10 * MS
CUSTOMERS = 40_000
RATE_PER_S = 70.0
LOAD = RATE_PER_S * SERVICE_NS / SECOND


class Exponential:
    """Service times without memory."""

    def __init__(self) -> None:
        self._chance = random.Random(1)

    def __call__(self, run: RunBatch) -> int:
        return max(1, round(self._chance.expovariate(1 / SERVICE_NS)))


def mean_wait_ms(service: Exponential | None) -> float:
    """Mean time from arrival to the start of service."""
    graph = chain("queue", SECOND, [StageSpec("a", "model", (1,))])
    entries = [Entry("a", "gpu", points=(Point(1, 1, SERVICE_NS, 0.0, 1),))]
    controller = make_controller([graph], PolicySpec("first-come", max_open=CUSTOMERS), entries, 1)
    arrivals = requests([Stream(Poisson(RATE_PER_S), 0)], seed=4, limit=CUSTOMERS)
    simulation = Simulation(controller, Ledger([("queue", SECOND)]), arrivals)
    spec = WorkerSpec("server", "gpu", ("model",))
    table = ProfileTable(entries)
    simulation.join(SimDevice(1, spec, controller.stages, table, simulation.schedule, service=service))
    simulation.run()
    (line,) = simulation.ledger.summary()
    assert line.requests == CUSTOMERS
    return line.mean_ms - SERVICE_NS / MS


@pytest.mark.parametrize(
    ("service", "exact_ms"),
    [
        # Pollaczek and Khinchine: half of the exponential's wait, because a constant does not scatter.
        (None, LOAD * SERVICE_NS / MS / (2 * (1 - LOAD))),
        (Exponential(), LOAD * SERVICE_NS / MS / (1 - LOAD)),
    ],
    ids=["M/D/1", "M/M/1"],
)
def test_the_mean_wait_is_what_theory_says(service: Exponential | None, exact_ms: float) -> None:
    assert mean_wait_ms(service) == pytest.approx(exact_ms, rel=0.05)
