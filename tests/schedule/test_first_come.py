"""First come, first served: order, the fixed configuration, where it runs, what is held, and what is refused."""

from __future__ import annotations

import pytest

from dovetail.errors import DeclarationError
from dovetail.place.fit import first_fit
from dovetail.scale import FetchOnDemand, LoadEverything
from dovetail.schedule import FirstCome, Offer
from dovetail.state import Cluster, Config, Queue, Request, Worker, WorkerSpec, compile_graphs
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec, chain

STAGE = StageSpec("read", "model", (1, 4, 8), model="read", weights_bytes=40)
HOST = StageSpec("crop", "python", (1, 2))
GRAPH = chain("flow", 100 * MS, [STAGE])


def request(ident: int, priority: int = 1) -> Request:
    compiled, _ = compile_graphs([GRAPH], lambda _graph, node: node.stage)
    return Request(ident, compiled[0], priority, 0, 100 * MS, 0)


def worker(ident: int = 1, *, cores: int = 0, memory_bytes: int = 0, runs: tuple[str, ...] = ("model",)) -> Worker:
    return Worker(ident, WorkerSpec(f"w{ident}", "gpu", runs, cores, memory_bytes))


def config_of(planner: FirstCome, stage: StageSpec) -> Config:
    """What is offered of a stage that an idle worker with many cores holds."""
    cluster = Cluster({}, [stage.name])
    cluster.hold(stage.name, worker(cores=16))
    planner.bind(cluster)
    (offer,) = planner.offers(Queue(stage.name, stage), 7)  # type: ignore[misc]
    assert isinstance(offer, Offer) and offer.start_ns == 7
    return offer.config


class TestScheduler:
    def test_order_is_that_of_arrival_whatever_the_class(self) -> None:
        planner = FirstCome()
        assert planner.order(request(1, priority=3), 0) < planner.order(request(2, priority=1), 0)

    def test_by_class_a_higher_one_goes_first_and_arrival_decides_inside(self) -> None:
        planner = FirstCome(by_class=True)
        orders = [planner.order(request(i, p), 0) for i, p in ((10**9, 1), (10**9 + 1, 1), (1, 2), (2, 2), (0, 3))]
        assert orders == sorted(orders)

    @pytest.mark.parametrize(
        ("share_pct", "cores", "cpus"), [(100, 1, 1), (100, 4, 4), (50, 4, 2), (10, 4, 1), (30, 10, 3)]
    )
    def test_a_share_is_that_part_of_the_cores_and_one_at_least(self, share_pct: int, cores: int, cpus: int) -> None:
        planner = FirstCome(cores=cores, share_pct=share_pct)
        assert config_of(planner, STAGE) == Config(8, cpus, share_pct)

    def test_the_largest_batch_is_taken_unless_another_is_named(self) -> None:
        planner = FirstCome(batch={"read": 4})
        assert config_of(planner, STAGE) == Config(4, 1, 100)
        assert config_of(planner, HOST) == Config(2, 1, 100)

    def test_ordinary_python_takes_the_whole_of_its_process_and_one_core(self) -> None:
        planner = FirstCome(cores=4, share_pct=50)
        assert config_of(planner, HOST) == Config(2, 1, 100)

    @pytest.mark.parametrize("share_pct", [0, -1, 101])
    def test_a_share_outside_the_device_is_refused(self, share_pct: int) -> None:
        with pytest.raises(DeclarationError, match="must be from 1 to 100"):
            FirstCome(share_pct=share_pct)

    def test_all_are_admitted_until_as_many_are_open_as_were_said(self) -> None:
        planner = FirstCome(max_open=2)
        cluster = Cluster({}, [])
        planner.bind(cluster)
        graph = request(1).graph
        for ident in (1, 2):
            assert planner.admit(graph, 1, 0, 0) is None
            cluster.requests[ident] = request(ident)
        refusal = planner.admit(graph, 1, 0, 0)
        assert refusal is not None
        assert (refusal.reason, refusal.retry_after_ns) == ("2 requests are open already", 1000 * MS)

    def test_unless_told_otherwise_ten_thousand_may_be_open_and_one_per_cent_is_a_share(self) -> None:
        planner = FirstCome(share_pct=1)
        cluster = Cluster({}, [])
        planner.bind(cluster)
        one = request(1)
        cluster.requests.update(dict.fromkeys(range(9_999), one))
        assert planner.admit(one.graph, 1, 0, 0) is None
        cluster.requests[9_999] = one
        assert planner.admit(one.graph, 1, 0, 0) is not None

    def test_one_queue_per_stage_and_its_answers_do_not_change_by_themselves(self) -> None:
        planner = FirstCome()
        assert planner.queue_key(GRAPH, GRAPH.nodes[0]) == "read"
        assert planner.restless is False


class TestFit:
    def place(self, share_pct: int, cpus: int, *workers: Worker) -> int | None:
        config = Config(1, cpus, share_pct)
        found = first_fit(workers, config)
        return None if found is None else found.id

    def test_the_first_that_has_room_for_share_and_cores_in_order_of_joining(self) -> None:
        one, two = worker(1, cores=4), worker(2, cores=4)
        assert self.place(100, 4, one, two) == 1
        one.free_pct = 50
        assert self.place(50, 2, one, two) == 1
        assert self.place(51, 2, one, two) == 2
        one.free_cpus = 1
        assert self.place(50, 2, one, two) == 2
        two.free_pct = 40
        assert self.place(50, 2, one, two) is None


class TestScalers:
    def test_everything_is_held_from_the_start_or_nothing_but_on_the_host(self) -> None:
        host = worker(runs=("python",))
        assert LoadEverything().residents(worker(memory_bytes=60), [STAGE]) == [STAGE]
        assert FetchOnDemand().residents(worker(memory_bytes=60), [STAGE]) is None
        assert FetchOnDemand().residents(host, [HOST]) == [HOST]

    @pytest.mark.parametrize("scaler", [LoadEverything(), FetchOnDemand()])
    def test_nothing_changes_later(self, scaler: LoadEverything | FetchOnDemand) -> None:
        assert scaler.adjusts is False
        wish = scaler.adjust(Cluster({}, []), [], 0)
        assert (wish.loads, wish.evictions, wish.next_ns) == ((), (), 0)
