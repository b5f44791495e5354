"""Work that is left, looked at again whenever the set changes, ends when the simulated device says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.predict.together import estimator

from dovetail.predict.progress import left_ns, look_again
from dovetail.sim.fluid import Flow, Fluid
from dovetail.state import Batch, Config, Item, Request, Worker, WorkerSpec, compile_graphs
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec, chain

A, B = (StageSpec(name, name, (1,), model=name) for name in "ab")
PAIRS = {("a", "b"): 1.5, ("b", "a"): 2.0, ("a", "a"): 1.25, ("b", "b"): 1.1}
HALF, THIRD = Config(1, 1, 50), Config(1, 1, 30)
GRAPHS, QUEUES = compile_graphs([chain("flow", SECOND, [A, B])], lambda _graph, node: node.stage)


def batch(ident: int, stage: StageSpec, worker: Worker, now_ns: int, config: Config = THIRD) -> Batch:
    item = Item(Request(ident, GRAPHS[0], 1, 0, SECOND, 0), 0, 0, 0)
    made = Batch(ident, QUEUES[stage.name], worker, config, [item], now_ns, 10 * MS)
    worker.enter(made)
    return made


def test_two_that_share_a_device_are_expected_later_and_sooner_when_one_is_gone() -> None:
    predictor = estimator(PAIRS, "a", "b")
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",)))
    first = batch(1, A, worker, 0)
    second = batch(2, B, worker, 4 * MS)
    look_again(predictor, worker, 4 * MS)
    assert left_ns(first, 4 * MS) == 6 * MS
    assert first.expected_ns == 4 * MS + 9 * MS, "six milliseconds of work at half as long again"
    assert second.expected_ns == 9 * MS + 5.5 * MS, "nine at half speed, and the rest alone"
    worker.leave(first, 6 * MS)
    look_again(predictor, worker, 6 * MS)
    assert left_ns(second, 6 * MS) == 9 * MS
    assert second.expected_ns == 11 * MS


def test_who_waits_in_line_slows_nobody_down_before_it_begins() -> None:
    predictor = estimator(PAIRS, "a", "b")
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",)))
    first, second = batch(1, A, worker, 0, Config(1, 1, 100)), batch(2, B, worker, 0, Config(1, 1, 100))
    assert second.waits
    look_again(predictor, worker, 2 * MS)
    assert first.expected_ns == 10 * MS
    worker.leave(first, 10 * MS)
    look_again(predictor, worker, 10 * MS)
    assert second.begun_ns + second.expected_ns == 20 * MS


def test_a_model_on_its_way_slows_down_who_runs_until_it_has_come() -> None:
    predictor = estimator({("a", "fetch b"): 1.5}, "a", "b")
    predictor.observe_load("b", "gpu", 4 * MS)
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",)))
    first = batch(1, A, worker, 0)
    item = Item(Request(2, GRAPHS[0], 1, 0, SECOND, 0), 0, 0, 0)
    second = Batch(2, QUEUES["b"], worker, THIRD, [item], 1 * MS, 10 * MS, fetches=True)
    worker.enter(second)
    look_again(predictor, worker, 1 * MS)
    assert first.slow == 1.5
    assert first.expected_ns == pytest.approx(1 * MS + 4 * MS + (9 * MS - 4 * MS / 1.5), abs=2), "four at two thirds"
    second.fetches, worker.fetching = False, 0
    look_again(predictor, worker, 5 * MS)
    assert first.slow == 1.0


def test_what_should_have_ended_ends_any_moment() -> None:
    predictor = estimator(PAIRS, "a", "b")
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",)))
    first = batch(1, A, worker, 0)
    batch(2, B, worker, 0)
    look_again(predictor, worker, 300 * MS)
    assert 300 * MS < first.begun_ns + first.expected_ns < 301 * MS


Coming = list[tuple[str, int]]
#: Of whoever ends as another comes a microsecond is taken to be left, at the slow-down of six: six times as long.
FLOOR_NS = 1000 * (1 + 5) + 1000


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12)), min_size=1, max_size=6))
@example([("a", 12), ("a", 12), ("b", 2)])
def test_expected_ends_are_those_of_a_device_with_the_same_slow_downs(coming: Coming) -> None:
    """Whatever comes when: after the last has come, all end when they are expected to."""
    predictor = estimator(PAIRS, "a", "b")
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",)))
    wakes: list[tuple[int, int, Flow]] = []
    names: dict[int, str] = {}

    def rates(running: Sequence[Flow]) -> list[float]:
        return [1 / (1 + sum(PAIRS[names[id(f)], names[id(o)]] - 1 for o in running if o is not f)) for f in running]

    fluid = Fluid(lambda at_ns, _, flow: wakes.append((at_ns, len(wakes), flow)), None, rates)
    arrivals = sorted((at * MS, number, name) for number, (name, at) in enumerate(coming))
    batches: dict[int, Batch] = {}
    flows: list[Flow] = []
    expected: dict[int, int] = {}
    while arrivals or fluid.running:
        end_ns = min((f.end_ns for f in fluid.running), default=1 << 60)
        if arrivals and arrivals[0][0] <= end_ns:
            now_ns, number, name = arrivals.pop(0)
            flow = Flow()
            flows.append(flow)
            names[id(flow)] = name
            batches[id(flow)] = batch(number + 1, A if name == "a" else B, worker, now_ns, Config(1, 1, 10))
            fluid.begin(flow, 10 * MS, now_ns)
        else:
            now_ns = end_ns
            ended = min((f for f in fluid.running if f.end_ns == end_ns), key=lambda f: batches[id(f)].id)
            gone = batches.pop(id(ended))
            if gone.id in expected:
                assert now_ns == pytest.approx(expected[gone.id], abs=FLOOR_NS)
            fluid.end(ended, now_ns)
            worker.leave(gone, now_ns)
        look_again(predictor, worker, now_ns)
        if not arrivals:
            expected.update({b.id: b.begun_ns + b.expected_ns for b in batches.values() if b.id not in expected})
