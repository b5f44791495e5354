"""What queueing theory says, and the same queues as simulations of the whole controller.

Rules of this file
- Waiting time is the time from arrival to start of service; latency is waiting plus service. Both in seconds.
- Each simulation is the real controller, queue, arbiter and driver; only the service times of `Exponential` are drawn
  otherwise than a device's, as exponential ones are what the formulas are for.

Sources: Kleinrock, Queueing Systems, volume I (1975) for M/M/c and M/G/1, volume II (1976) for classes (Cobham 1954);
Burke (1956): the departures of M/M/c are Poisson, so queues in tandem are independent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec

from ..control import Action, Controller, Event, Policy, Reply, RunBatch
from ..predict import Estimator
from ..profile.table import Entry, Point, ProfileTable
from ..record.ledger import Ledger
from ..scale import LoadEverything
from ..schedule import FirstCome
from ..sim import SimDevice, Simulation
from ..sim.arrivals import Poisson, Stream, requests
from ..sim.driver import Observer
from ..sim.service import ProfiledService
from ..state import WorkerSpec
from ..units import MS, SECOND
from ..workflow.graph import StageSpec, chain

__all__ = [
    "Queueing",
    "cobham_wait_s",
    "erlang_c",
    "lindley_differences",
    "mean_waits_s",
    "mg1_wait_s",
    "mmc_wait_s",
]

#: Service time of every queue here; the figures are ratios, so its size does not matter.
SERVICE_NS = 10 * MS
#: Part of the requests that are not counted, because the queue starts empty.
WARM_UP = 0.1


def mg1_wait_s(load: float, service_s: float, cv: float) -> float:
    """Pollaczek and Khinchine: one server, any service times of that mean and coefficient of variation."""
    return load * service_s * (1 + cv * cv) / (2 * (1 - load))


def erlang_c(servers: int, load: float) -> float:
    """Probability that a customer of M/M/c has to wait; `load` is that of each server."""
    offered = servers * load
    others = sum(offered**k / math.factorial(k) for k in range(servers))
    all_busy = offered**servers / math.factorial(servers) / (1 - load)
    return all_busy / (others + all_busy)


def mmc_wait_s(servers: int, load: float, service_s: float) -> float:
    """Mean waiting time of M/M/c."""
    return erlang_c(servers, load) * service_s / (servers * (1 - load))


def cobham_wait_s(loads: Sequence[float], service_s: float, cv: float) -> list[float]:
    """Mean waiting time of each class of M/G/1 with classes and no preemption, highest first."""
    left_s = sum(loads) * service_s * (1 + cv * cv) / 2
    waits, above = [], 0.0
    for load in loads:
        waits.append(left_s / ((1 - above) * (1 - above - load)))
        above += load
    return waits


class Queueing(msgspec.Struct, frozen=True):
    """A queue to simulate."""

    #: Load of each server by class, highest class first.
    loads: tuple[float, ...]
    seed: int
    customers: int
    servers: int = 1
    #: Queues one behind the other, with a server each.
    stations: int = 1
    #: Coefficient of variation of the log-normal service times that a simulated device draws; 0 is constant.
    cv: float = 0.0
    exponential: bool = False


class Exponential:
    """Exponential service times with the mean that the profile has for one item; it keeps what it drew."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.drawn_ns: list[int] = []

    def __call__(self, run: RunBatch) -> int:
        self.drawn_ns.append(max(1, round(self._rng.expovariate(1 / SERVICE_NS))))
        return self.drawn_ns[-1]


def _build(queue: Queueing, *observers: Observer) -> tuple[Simulation, list[SimDevice]]:
    names = [f"station-{i}" for i in range(queue.stations)]
    # A worker of a station runs the stage of that station and no other.
    graph = chain("queue", SECOND, [StageSpec(name, name, (1,), model=name) for name in names])
    point = Point(1, 1, SERVICE_NS, queue.cv, 1)
    table = ProfileTable([Entry(name, name, points=(point,), spread=queue.cv) for name in names])
    scheduler = FirstCome(by_class=len(queue.loads) > 1, max_open=queue.customers)
    controller = Controller([graph], Policy(scheduler, LoadEverything(), Estimator(table)))
    streams = [
        Stream(Poisson(load * queue.servers * SECOND / SERVICE_NS), 0, priority)
        for priority, load in enumerate(queue.loads, start=1)
    ]
    warm_up_ns = round(WARM_UP * queue.customers * SERVICE_NS / (sum(queue.loads) * queue.servers))
    arrivals = requests(streams, queue.seed, limit=queue.customers)
    simulation = Simulation(controller, Ledger([("queue", SECOND)], skip_before_ns=warm_up_ns), arrivals, observers)
    devices: list[SimDevice] = []
    for name in names:
        for server in range(queue.servers):
            ident = len(devices) + 1
            rng = random.Random(f"{queue.seed} {name} {server}")
            spec = WorkerSpec(f"{name}-{server}", name, (name,))
            service = Exponential(rng) if queue.exponential else ProfiledService(table, name, rng).run_ns
            device = SimDevice(ident, spec, controller.stages, table, simulation.schedule, service=service)
            devices.append(device)
            simulation.join(device)
    return simulation, devices


def mean_waits_s(queue: Queueing) -> list[float]:
    """Mean waiting time of each class in a simulation, all stations together."""
    simulation, _ = _build(queue)
    simulation.run()
    service_ns = queue.stations * SERVICE_NS
    rows = sorted(simulation.ledger.rows.items())
    return [(row.latency.total_ns / row.latency.count - service_ns) / SECOND for _, row in rows]


def lindley_differences(queue: Queueing) -> int:
    """How many requests of M/M/1 have another latency, to the nanosecond, than Lindley's recursion gives them.

    The waiting time of the next customer is what the last one waited and was served, less the time between the two.
    """
    arrived: dict[int, int] = {}
    latencies: dict[int, int] = {}

    def observe(event: Event, actions: list[Action]) -> None:
        for action in actions:
            if type(action) is Reply:
                arrived[action.request] = action.arrived_ns
                latencies[action.request] = event.at_ns - action.arrived_ns

    simulation, (device,) = _build(queue, observe)
    simulation.run()
    drawn = device.service
    assert isinstance(drawn, Exponential)
    differences = abs(len(drawn.drawn_ns) - queue.customers)
    wait_ns = last_ns = last_service_ns = 0
    for number, service_ns in enumerate(drawn.drawn_ns, start=1):
        at_ns = arrived[number]
        wait_ns = max(0, wait_ns + last_service_ns - (at_ns - last_ns)) if number > 1 else 0
        differences += latencies.get(number) != wait_ns + service_ns
        last_ns, last_service_ns = at_ns, service_ns
    return differences
