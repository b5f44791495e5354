"""First come, first served: order, the fixed configuration, where it runs, what is held, and what is refused."""

from __future__ import annotations

import pytest

from dovetail.errors import DeclarationError
from dovetail.schedule import FirstComePlanner, FirstFitPlacer, LoadEverything
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


class TestPlanner:
    def test_order_is_that_of_arrival_whatever_the_class(self) -> None:
        planner = FirstComePlanner()
        assert planner.order(request(1, priority=3), 0) < planner.order(request(2, priority=1), 0)

    def test_by_class_a_higher_one_goes_first_and_arrival_decides_inside(self) -> None:
        planner = FirstComePlanner(by_class=True)
        orders = [planner.order(request(i, p), 0) for i, p in ((10**9, 1), (10**9 + 1, 1), (1, 2), (2, 2), (0, 3))]
        assert orders == sorted(orders)

    @pytest.mark.parametrize(
        ("share_pct", "cores", "cpus"), [(100, 1, 1), (100, 4, 4), (50, 4, 2), (10, 4, 1), (30, 10, 3)]
    )
    def test_a_share_is_that_part_of_the_cores_and_one_at_least(self, share_pct: int, cores: int, cpus: int) -> None:
        planner = FirstComePlanner(cores=cores, share_pct=share_pct)
        assert planner.choose(Queue("read", STAGE), 0) == (Config(8, cpus, share_pct),)

    def test_the_largest_batch_is_taken_unless_another_is_named(self) -> None:
        planner = FirstComePlanner(batch={"read": 4})
        assert planner.choose(Queue("read", STAGE), 0) == (Config(4, 1, 100),)
        assert planner.choose(Queue("crop", HOST), 0) == (Config(2, 1, 100),)

    def test_ordinary_python_takes_the_whole_of_its_process_and_one_core(self) -> None:
        planner = FirstComePlanner(cores=4, share_pct=50)
        assert planner.choose(Queue("crop", HOST), 0) == (Config(2, 1, 100),)

    @pytest.mark.parametrize("share_pct", [0, -1, 101])
    def test_a_share_outside_the_device_is_refused(self, share_pct: int) -> None:
        with pytest.raises(DeclarationError, match="must be from 1 to 100"):
            FirstComePlanner(share_pct=share_pct)

    def test_all_are_admitted_until_as_many_are_open_as_were_said(self) -> None:
        planner = FirstComePlanner(max_open=2)
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
        planner = FirstComePlanner(share_pct=1)
        cluster = Cluster({}, [])
        planner.bind(cluster)
        one = request(1)
        cluster.requests.update(dict.fromkeys(range(9_999), one))
        assert planner.admit(one.graph, 1, 0, 0) is None
        cluster.requests[9_999] = one
        assert planner.admit(one.graph, 1, 0, 0) is not None

    def test_one_queue_per_stage_and_its_answers_do_not_change_by_themselves(self) -> None:
        planner = FirstComePlanner()
        assert planner.queue_key(GRAPH, GRAPH.nodes[0]) == "read"
        assert planner.restless is False


class TestPlacer:
    def place(self, share_pct: int, cpus: int, *workers: Worker) -> int | None:
        config = Config(1, cpus, share_pct)
        found = FirstFitPlacer().choose(Queue("read", STAGE), config, {w.id: w for w in workers}, 0)
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


class TestLoadEverything:
    def test_everything_that_it_can_run_and_that_still_fits_in_order(self) -> None:
        small = StageSpec("small", "model", (1,), model="small", weights_bytes=20)
        large = StageSpec("large", "model", (1,), model="large", weights_bytes=61)
        stages = [STAGE, large, HOST, small]
        names = [s.name for s in LoadEverything().residents(worker(memory_bytes=60), stages)]
        assert names == ["read", "small"], "60 bytes: 40, not 61, and exactly 20 more"
        exactly = [s.name for s in LoadEverything().residents(worker(memory_bytes=61), stages)]
        assert exactly == ["read", "large", "small"], "one at a time, all fit"
        assert [s.name for s in LoadEverything().residents(worker(), stages)] == ["read", "large", "small"]
        assert [s.name for s in LoadEverything().residents(worker(runs=("python",)), stages)] == ["crop"]

    def test_nothing_changes_later(self) -> None:
        scaler = LoadEverything()
        assert scaler.adjusts is False
        wish = scaler.adjust(Cluster({}, []), [], 0)
        assert (wish.loads, wish.evictions, wish.next_ns) == ((), (), 0)
