"""Several ingress controllers that share workers: what they can know when, what moving a value costs, laws."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from dovetail.control import Action, Controller, Event, ModelLoaded, Policy, Reject, Reply, RequestArrived
from dovetail.control.validate import validate
from dovetail.lab.rivals.compass import CompassRouter
from dovetail.lab.rivals.hashed import HashRouter
from dovetail.lab.rivals.routed import PlannedRouter, RoutedScheduler, Router
from dovetail.place.transfer import Delays
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.record.ledger import Ledger
from dovetail.scale import FetchOnDemand, LoadEverything
from dovetail.schedule import FirstCome
from dovetail.sim.device import SimDevice
from dovetail.sim.driver import IngressObserver, Simulation
from dovetail.sim.network import Network
from dovetail.sim.state_table import Staleness
from dovetail.state import Item, Request, WorkerRow, WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import Graph, StageSpec, chain

MB = 1_000_000
STAGES = tuple(StageSpec(name, "model", model=name, weights_bytes=40 * MB) for name in "abc")
GRAPH = chain("flow", 100 * MS, STAGES, out_bytes=dict.fromkeys("abc", 3 * MB))
ENTRIES = [Entry(s.name, "gpu", points=(Point(1, 1, 10 * MS, 0.0, 1),), load_ns=5 * MS) for s in STAGES]


def peers(
    routers: Sequence[Router],
    arrivals: Iterator[tuple[int, RequestArrived]],
    workers: int,
    *,
    staleness: Staleness | None = None,
    memory_bytes: int = 100 * MB,
    graph: Graph = GRAPH,
    observers: Sequence[IngressObserver] = (),
    **options: object,
) -> Simulation:
    """One controller per router, worker i beside controller i - 1."""
    table = ProfileTable(ENTRIES)
    predictor = Estimator(table)
    controllers = [
        Controller([graph], Policy(RoutedScheduler(router), FetchOnDemand(), predictor), number)
        for number, router in enumerate(routers)
    ]
    network = Network(controllers, Delays(), staleness, **options)  # type: ignore[arg-type]
    simulation = Simulation.linked(controllers, network, Ledger([(graph.name, graph.slo_ns)]), arrivals, observers)
    for ident in range(1, workers + 1):
        spec = WorkerSpec(f"w{ident}", "gpu", ("model",), memory_bytes=memory_bytes)
        device = SimDevice(ident, spec, controllers[0].stages, table, simulation.schedule)
        simulation.join(device, own_of=ident - 1 if ident <= len(routers) else None)
    return simulation


def stream(seed: int, count: int, ingresses: int, mean_ns: int = 12 * MS) -> Iterator[tuple[int, RequestArrived]]:
    rng = random.Random(seed)
    at_ns = 0
    for number in range(1, count + 1):
        at_ns += round(rng.expovariate(1 / mean_ns))
        yield rng.randrange(ingresses), RequestArrived(at_ns, 0, number, 0)


class Fixed(PlannedRouter):
    """Node i on the i-th worker; remembers every row that it heard, and when."""

    def __init__(self, workers: Sequence[int]) -> None:
        super().__init__()
        self.workers = workers
        self.read: list[tuple[int, WorkerRow]] = []

    def decide(self, request: Request, now_ns: int) -> dict[int, int]:
        return dict(enumerate(self.workers))

    def replace(self, item: Item, now_ns: int) -> int | None:
        return next(iter(self.members), None)

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        super().heard(rows, now_ns)
        self.read += [(now_ns, row) for row in rows]


@pytest.mark.parametrize("make", [lambda p, i: HashRouter(), lambda p, i: CompassRouter(p, home=i)])
def test_every_request_ends_once_also_when_workers_vanish(make: object) -> None:
    predictor = Estimator(ProfileTable(ENTRIES))
    ends: dict[int, list[str]] = {}

    def watch(ingress: int, event: Event, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Reply | Reject):
                ends.setdefault(action.request, []).append(action.outcome)
        validate(simulation.controllers[ingress])

    routers = [make(predictor, i) for i in range(1, 4)]  # type: ignore[operator]
    simulation = peers(routers, stream(5, 150, 3), 5, observers=[watch])
    simulation.lose(2, 200 * MS)
    simulation.lose(5, 700 * MS)
    simulation.run()
    assert sorted(ends) == list(range(1, 151))
    assert all(len(outcomes) == 1 and outcomes[0] in ("ok", "late") for outcomes in ends.values())
    for controller in simulation.controllers:
        assert not controller.requests and not controller.batches
    for device in simulation.devices.values():
        assert isinstance(device, SimDevice)
        device.machine.validate()


def test_the_same_seed_gives_the_same_events_and_actions() -> None:
    def record() -> list[tuple[int, Event, list[Action]]]:
        seen: list[tuple[int, Event, list[Action]]] = []
        predictor = Estimator(ProfileTable(ENTRIES))
        routers = [CompassRouter(predictor, home=i) for i in range(1, 5)]
        peers(routers, stream(9, 80, 4), 4, observers=[lambda *step: seen.append(step)]).run()
        return seen

    assert record() == record()


def test_a_value_that_changes_workers_takes_its_time_and_one_that_stays_takes_none() -> None:
    """Three stages of 10 ms, each with a fetch of 5 ms on first use; messages take nothing here."""

    def latency_ns(workers: Sequence[int]) -> int:
        done: list[int] = []

        def watch(ingress: int, event: Event, actions: list[Action]) -> None:
            done.extend(event.at_ns for action in actions if isinstance(action, Reply))

        peers(
            [Fixed(workers)],
            iter([(0, RequestArrived(0, 0, 1, 0))]),
            3,
            memory_bytes=200 * MB,
            observers=[watch],
            message_ns=0,
            input_bytes={"flow": MB},
        ).run()
        return done[0]

    alone_ns = 3 * (10 + 5) * MS
    hop_ns, entry_ns = Delays().result_ns(3 * MB), Delays().message_ns(MB)
    assert latency_ns([1, 1, 1]) == alone_ns
    assert latency_ns([1, 1, 2]) == alone_ns + hop_ns
    assert latency_ns([1, 2, 3]) == alone_ns + 2 * hop_ns
    assert latency_ns([2, 2, 2]) == alone_ns + entry_ns


def test_what_a_controller_knows_of_others_is_as_old_as_push_and_pull_make_it() -> None:
    staleness = Staleness(push_ns=20 * MS, pull_ns=50 * MS)
    routers = [Fixed([1, 1, 1]), Fixed([2, 2, 2])]
    simulation = peers(routers, stream(3, 60, 2), 2, staleness=staleness)
    simulation.run()
    others = [(now_ns, row) for now_ns, row in routers[0].read if row.worker == 2]
    assert len(others) > 5
    for now_ns, row in others:
        assert row.at_ns <= now_ns
    # A row is not heard of twice, and reads of others are at least a pull apart.
    assert len({row.at_ns for _, row in others}) == len(others)
    times = sorted({now_ns for now_ns, _ in others})
    assert all(later - earlier >= 50 * MS for earlier, later in pairwise(times))
    # Its own worker's row is as new as can be: written by the event that is being decided on, or before.
    own = [(now_ns, row) for now_ns, row in routers[0].read if row.worker == 1]
    assert len(own) > len(others)
    assert any(now_ns - row.at_ns <= 3_000 for now_ns, row in own)


def test_a_row_is_read_as_it_was_at_its_last_push() -> None:
    """Worker 2 is busy from 1 ms on; pushes come every 100 ms, so before the second nobody else knows."""
    staleness = Staleness(push_ns=100 * MS, pull_ns=0)
    routers = [Fixed([1, 1, 1]), Fixed([2, 2, 2])]
    arrivals = [(1, 1 * MS, 1), (0, 50 * MS, 2), (0, 180 * MS, 3)]
    simulation = peers(
        routers,
        iter([(ingress, RequestArrived(at_ns, 0, number, 0)) for ingress, at_ns, number in arrivals]),
        2,
        staleness=staleness,
    )
    simulation.run()
    first = next(now_ns for now_ns, row in routers[0].read if row.worker == 2)
    assert first >= 66 * MS  # worker 2's phase: two thirds of a push
    assert all(row.at_ns <= now_ns for now_ns, row in routers[0].read)


def test_the_controller_on_its_machine_hears_of_a_workers_models() -> None:
    told: list[tuple[int, int]] = []

    def watch(ingress: int, event: Event, actions: list[Action]) -> None:
        if isinstance(event, ModelLoaded):
            told.append((ingress, event.worker))

    peers([Fixed([2, 2, 2]), Fixed([1, 1, 1])], stream(1, 10, 2), 2, observers=[watch]).run()
    assert told
    assert all(ingress == worker - 1 for ingress, worker in told)


class NoDelays(Delays):
    """Everything is everywhere at once."""

    def message_ns(self, nbytes: int) -> int:
        return 0

    def result_ns(self, nbytes: int) -> int:
        return 0


def test_a_controller_must_know_which_ingress_it_is() -> None:
    policy = Policy(FirstCome(), LoadEverything(), Estimator(ProfileTable(ENTRIES)))
    with pytest.raises(ValueError, match="ingress 1 has a controller that takes itself for 0"):
        Network([Controller([GRAPH], policy), Controller([GRAPH], policy)], Delays())


def test_one_ingress_over_a_network_that_takes_no_time_is_the_plain_case() -> None:
    def ends(linked: bool) -> list[tuple[int, int, str]]:
        seen: list[tuple[int, int, str]] = []

        def watch(event: Event, actions: list[Action]) -> None:
            seen.extend((a.request, event.at_ns, a.outcome) for a in actions if isinstance(a, Reply | Reject))

        graph = chain("flow", 100 * MS, STAGES)
        table = ProfileTable(ENTRIES)
        router = Fixed([1, 2, 1])
        policy = Policy(RoutedScheduler(router), FetchOnDemand(), Estimator(table))
        controller = Controller([graph], policy)
        ledger, arrivals = Ledger([("flow", graph.slo_ns)]), [a for _, a in stream(4, 60, 1)]
        if linked:
            free = Network([controller], NoDelays(), Staleness(0, 0), message_ns=0)
            pairs = iter([(0, a) for a in arrivals])
            simulation = Simulation.linked([controller], free, ledger, pairs, [lambda i, e, a: watch(e, a)])
        else:
            simulation = Simulation(controller, ledger, iter(arrivals), [watch])
        for ident in (1, 2):
            spec = WorkerSpec(f"w{ident}", "gpu", ("model",), memory_bytes=100 * MB)
            simulation.join(SimDevice(ident, spec, controller.stages, table, simulation.schedule))
        simulation.run()
        return sorted(seen)

    assert ends(linked=True) == ends(linked=False)
    assert len(ends(linked=False)) == 60


def test_workers_tell_batches_of_one_number_of_two_ingresses_apart() -> None:
    """Both ingresses number their batches from 1 on, and send all of them to worker 1."""
    done: list[tuple[int, int]] = []

    def watch(ingress: int, event: Event, actions: list[Action]) -> None:
        done.extend((ingress, a.request) for a in actions if isinstance(a, Reply))

    arrivals = [(number % 2, RequestArrived(0, 0, number, 0)) for number in range(1, 9)]
    peers([Fixed([1, 1, 1]), Fixed([1, 1, 1])], iter(arrivals), 2, observers=[watch]).run()
    assert sorted(done) == [(0, 2), (0, 4), (0, 6), (0, 8), (1, 1), (1, 3), (1, 5), (1, 7)]
