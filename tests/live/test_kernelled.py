"""Batches kernel by kernel: the same results, a higher class at the next kernel, and room for what is expected."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx as onnx_file
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests import onnx_models
from tests.live import apps

from dovetail import onnx
from dovetail.device import StartKernel, decode_records
from dovetail.errors import DeclarationError
from dovetail.live.batchturns import TURNAROUND_NS, BatchTurns
from dovetail.live.cutmodel import STEP_COST, BatchRun, CutModel, merge, smallest_step
from dovetail.live.devices import parse_device
from dovetail.live.gatetasks import NEVER_NS
from dovetail.live.system import Result
from dovetail.profile.kernels import MIN_COUNT, Cut, KernelStats, sequence_model
from dovetail.serve.launch import Options, launch
from dovetail.units import MS, US
from dovetail.wiring import ROUTED_POLICIES, PolicySpec
from dovetail.workflow import load_target
from dovetail.workflow.runners import OnnxRunner
from examples import weights

# -- whose turn it is ------------------------------------------------------------------------------------------------

KERNEL_NS = 2 * MS


class Device:
    """One device in virtual time; every kernel takes as long as its batch says."""

    def __init__(self, known: dict[str, KernelStats] | None = None, ageing_ns: int = 0) -> None:
        self.turns = BatchTurns(known, ageing_ns=ageing_ns)
        self.now_ns = 0
        self.length_ns: dict[int, int] = {}
        self.ran: list[tuple[int, int]] = []
        self.running: tuple[StartKernel, int] | None = None

    def take(self, ident: int, priority: int, kernels: int = 3, length_ns: int = KERNEL_NS, **options: Any) -> None:
        self.length_ns[ident] = length_ns
        idents = [f"{length_ns}[{i}]" for i in range(kernels)]
        name = f"model-{kernels}-{length_ns}"
        objective_ns = options.get("objective_ns", 0)
        self.turns.take(ident, priority, objective_ns, name, [print] * kernels, idents, self.now_ns, self.now_ns)
        self.turns.take_back(priority, self.now_ns)

    def begin_kernel(self) -> int:
        """Begin the next kernel; the batch's number, or 0 if none may start."""
        while self.turns.starts:
            start = self.turns.starts.popleft()
            if start.task in self.turns.tasks:
                self.turns.tasks[start.task].running = True
                self.running = start, self.now_ns
                self.ran.append((start.task, start.kernel))
                return start.task
        return 0

    def end_kernel(self, then: bool = False) -> None:
        assert self.running is not None
        (start, begin_ns), self.running = self.running, None
        self.now_ns = max(self.now_ns, begin_ns + self.length_ns[start.task])
        task = self.turns.tasks[start.task]
        task.running = False
        if then:
            self.turns.expect(task.priority, self.now_ns, self.now_ns)
        self.turns.ended(task, start.kernel, begin_ns, self.now_ns, self.now_ns)

    def run_all(self) -> None:
        while True:
            while self.begin_kernel():
                self.end_kernel()
            if self.turns.alarm_ns >= NEVER_NS:
                return
            self.now_ns = max(self.now_ns, self.turns.alarm_ns)
            self.turns.ring(self.now_ns)

    def learn(self, kernels: int = 3, length_ns: int = KERNEL_NS) -> None:
        """Let the arbiter know the kernels of such batches."""
        for i in range(MIN_COUNT):
            self.take(-1000 - i, 5, kernels, length_ns)
            self.run_all()
            self.now_ns += 100 * MS
        self.ran.clear()


def test_a_higher_class_begins_at_the_next_kernel_and_the_lower_goes_on_after_it() -> None:
    device = Device()
    device.take(1, 3)
    assert device.begin_kernel() == 1
    device.take(2, 1)
    device.end_kernel()
    device.run_all()
    assert device.ran == [(1, 0), (2, 0), (2, 1), (2, 2), (1, 1), (1, 2)]


def test_batches_of_one_class_run_one_after_the_other_by_deadline() -> None:
    device = Device()
    device.take(1, 1, 1)
    device.begin_kernel()
    for ident, objective_ns in ((2, 0), (3, 900 * MS), (4, 500 * MS), (5, 500 * MS), (6, 0)):
        device.take(ident, 2, 2, objective_ns=objective_ns)
    device.end_kernel()
    device.run_all()
    assert [task for task, kernel in device.ran if kernel == 0] == [1, 4, 5, 3, 2, 6]
    assert all(
        device.ran[i + 1] == (task, 1) for i, (task, kernel) in enumerate(device.ran) if not kernel and task > 1
    )


def test_a_hint_keeps_a_long_kernel_of_a_lower_class_off_until_the_expected_batch_is_there() -> None:
    device = Device()
    device.learn()
    device.take(1, 1, 1)
    device.begin_kernel()
    device.take(2, 3)
    device.end_kernel(then=True)
    assert device.begin_kernel() == 0, "held back"
    device.now_ns += TURNAROUND_NS // 2
    device.take(3, 1, 1)
    assert device.begin_kernel() == 3
    device.end_kernel()
    device.run_all()
    assert device.ran == [(1, 0), (3, 0), (2, 0), (2, 1), (2, 2)]


def test_a_hint_holds_back_a_batch_that_comes_to_an_empty_device() -> None:
    device = Device()
    device.learn()
    device.take(1, 1, 1)
    device.begin_kernel()
    device.end_kernel(then=True)
    device.take(2, 3)
    assert device.begin_kernel() == 0
    device.take(3, 1, 1)
    assert device.begin_kernel() == 3


def test_a_hint_that_does_not_come_true_costs_its_time_and_the_grace() -> None:
    device = Device()
    device.learn()
    device.take(1, 1, 1)
    device.begin_kernel()
    device.take(2, 3)
    device.end_kernel(then=True)
    held_ns = device.now_ns
    device.run_all()
    assert device.ran[-1] == (2, 2)
    grace_ns = device.turns.settings.grace_ns
    assert device.now_ns - held_ns <= 3 * KERNEL_NS + TURNAROUND_NS + grace_ns + MS // 10


def test_a_hint_lets_kernels_pass_that_end_before_it_and_holds_no_equal_class() -> None:
    device = Device()
    device.learn(length_ns=TURNAROUND_NS // 8)
    device.learn()
    device.take(1, 1, 1)
    device.begin_kernel()
    device.take(2, 3, length_ns=TURNAROUND_NS // 8)
    device.end_kernel(then=True)
    assert device.begin_kernel() == 2
    device.end_kernel()
    device.take(3, 1)
    assert device.begin_kernel() == 3


def test_the_turnaround_is_learned() -> None:
    device = Device()
    for i in range(60):
        device.take(2 * i + 1, 1, 1)
        device.begin_kernel()
        device.end_kernel(then=True)
        device.now_ns += 900 * US
        device.take(2 * i + 2, 1, 1)
        device.run_all()
        device.now_ns += 50 * MS
    assert device.turns.turnaround_ns == pytest.approx(900 * US, rel=0.01)


@given(st.randoms(use_true_random=False))
def test_nothing_starts_while_a_higher_class_is_ready_and_everything_runs(chance: Random) -> None:
    device = Device()
    wanted: dict[int, tuple[int, int]] = {}

    def come() -> None:
        for _ in range(chance.randint(0, 2)):
            ident = len(wanted) + 1
            wanted[ident] = chance.randint(1, 4), chance.randint(1, 4)
            device.take(ident, *wanted[ident], chance.choice([US, MS]))

    for _ in range(40):
        come()
        device.now_ns += chance.randint(0, MS)
        ident = device.begin_kernel()
        if ident:
            there = [wanted[i][0] for i in device.turns.tasks]
            assert wanted[ident][0] == min(there)
            come()
            device.end_kernel(then=chance.random() < 0.2)
        elif device.turns.alarm_ns < NEVER_NS:
            device.now_ns = max(device.now_ns, device.turns.alarm_ns)
            device.turns.ring(device.now_ns)
    device.run_all()
    assert not device.turns.tasks
    for ident, (_, kernels) in wanted.items():
        assert [k for task, k in device.ran if task == ident] == list(range(kernels))


def news(device: Device) -> dict[str, KernelStats]:
    return {stats.name: stats for stats in device.turns.news(100)}


def test_what_others_have_learned_is_known_at_once() -> None:
    teacher = Device()
    teacher.learn()
    learned = news(teacher)
    for known, holds in ((learned, True), ({}, False)):
        device = Device(known)
        device.take(1, 1, 1)
        device.begin_kernel()
        device.take(2, 3)
        device.end_kernel(then=True)
        assert (device.begin_kernel() == 0) is holds, "only a kernel that is known to be too long is held back"


def test_news_are_what_was_seen_since_the_last() -> None:
    device = Device()
    device.learn()
    (first,) = news(device).values()
    assert first.seen == MIN_COUNT and first.gaps[0].count == MIN_COUNT
    assert news(device) == {}
    device.take(1, 5)
    device.run_all()
    (second,) = news(device).values()
    assert second.seen == 1
    learner = Device({first.name: first})
    learner.take(1, 5)
    learner.run_all()
    (third,) = news(learner).values()
    assert third.seen == 1, "what was known before is no news"
    assert learner.turns.stats[first.name].seen == MIN_COUNT + 1


def test_news_of_many_come_in_turn() -> None:
    device = Device()
    for i in range(5):
        device.take(i + 1, 5, length_ns=MS + i)
        device.run_all()
    told = [stats.name for _ in range(3) for stats in device.turns.news(2)]
    assert len(told) == len(set(told)) == 5


def test_kernels_that_take_another_time_now_are_learned_anew_and_told_as_such() -> None:
    device = Device()
    device.learn()
    name = next(iter(device.turns.stats))
    (before,) = device.turns.news(9)
    device.length_ns.clear()
    for i in range(400):
        device.take(i + 1, 5)
        device.length_ns[i + 1] = 3 * KERNEL_NS
        device.run_all()
    (now,) = device.turns.news(9)
    assert now.name == name
    before.merge(now)
    assert before.durations[0].mean_ns == pytest.approx(3 * KERNEL_NS)


@pytest.mark.parametrize("ageing_ns", [0, 5 * MS])
def test_with_ageing_a_lower_class_gets_a_kernel_per_this_time_and_without_none(ageing_ns: int) -> None:
    device = Device(ageing_ns=ageing_ns)
    device.take(1000, 3, kernels=4)
    waits = []
    for ident in range(1, 40):
        device.take(ident, 1)
        for _ in range(3):
            if device.begin_kernel() == 1000:
                waits.append(device.now_ns)
            device.end_kernel()
    assert len(waits) == (4 if ageing_ns else 0)
    # A wait that was taken back once counts twice at most.
    assert all(ageing_ns <= b - a <= 2 * ageing_ns + 2 * KERNEL_NS for a, b in pairwise(waits))


def test_equals_do_not_age() -> None:
    device = Device(ageing_ns=MS)
    for ident in (1, 2, 3):
        device.take(ident, 2)
    device.run_all()
    assert [task for task, _ in device.ran] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_what_is_known_of_kernels_is_bounded() -> None:
    turns = BatchTurns()
    for i in range(2000):
        turns.take(i, 1, 0, f"shape-{i}", [print], ["kernel"], i, i)
        turns.gone(turns.tasks[i], i)
    assert len(turns.stats) < 1000
    assert all(isinstance(s, KernelStats) for s in turns.stats.values())


# -- models ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.integers(1, 300))
def test_merged_segments_are_all_of_them_in_order_and_none_is_short(lengths: list[int], shortest: int) -> None:
    spans = merge(lengths, shortest)
    assert [i for first, end in spans for i in range(first, end)] == list(range(len(lengths)))
    assert len(spans) == 1 or all(sum(lengths[first:end]) >= shortest for first, end in spans)


def test_a_batch_is_divided_where_that_costs_next_to_nothing() -> None:
    assert smallest_step([{1: 10, 2: 20, 8: 80}]) == 1
    assert smallest_step([{1: 100, 2: 101, 8: 110}]) == 8
    assert smallest_step([{1: 130, 2: round(200 * STEP_COST) - 1, 8: 800}]) == 2
    assert smallest_step([{1: 10, 8: 80}, {1: 10, 8: 80}, {1: 30, 8: 80}]) == 1, "one bad round decides nothing"


def ready(path: Path, batch: tuple[int, ...] = (1, 2, 4), **options: Any) -> CutModel:
    model = CutModel(onnx(path, name="made", batch=batch, **options).spec)
    if model.wants is not None:
        model.make_ready()
    return model


def carry_out(model: CutModel, columns: list[list[Any]]) -> tuple[list[Any], BatchRun]:
    run = model.plan(columns)
    if model.saw(run.shapes[0]):
        model.make_ready()
    for kernel in run.kernels:
        kernel()
    return run.values(), run


def assert_same(got: list[Any], want: list[Any]) -> None:
    """Steps of a batch may add up in another order than the whole."""
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


REAL = {
    "nudity": (224, 224, 3),
    "page_way": (3, 224, 224),
    "text_detector": (3, 96, 128),
    "tiny_reader": (3, 48, 160),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", REAL)
def test_results_are_those_of_the_whole_model(name: str) -> None:
    model = ready(getattr(weights, name)())
    whole = OnnxRunner(model.spec)
    chance = np.random.default_rng(5)
    for size in (1, 3, 4, 3):
        columns = [[chance.random(REAL[name]).astype(np.float32) for _ in range(size)]]
        got, run = carry_out(model, columns)
        assert_same(got, whole.run(columns))
    assert run.name, "the second time at a shape it is known"
    assert len(run.idents) == len(run.kernels)


@pytest.mark.cpu
def test_items_of_unequal_shapes_are_run_in_groups_and_padded_ones_together() -> None:
    path = weights.text_detector()
    for options in ({}, {"pad": 0.0}):
        model = ready(path, **options)
        whole = OnnxRunner(model.spec)
        chance = np.random.default_rng(5)
        columns = [[chance.random((3, 192, width)).astype(np.float32) for width in (192, 256, 192)]]
        for _ in range(3):
            got, run = carry_out(model, columns)
            assert_same(got, whole.run(columns))
        assert len(run.kernels) > 1


@pytest.mark.cpu
def test_two_batches_of_one_shape_at_once_do_not_touch_each_other(tmp_path: Path) -> None:
    model = ready(onnx_models.slow(tmp_path / "long.onnx", products=16, side=512))
    runs = [model.plan([[np.full(3, value, np.float32)] * 2]) for value in (1, 2)]
    assert len(runs[0].kernels) > 1
    for kernels in zip(runs[0].kernels, runs[1].kernels, strict=True):
        for kernel in kernels:
            kernel()
    for value, run in zip((1, 2), runs, strict=True):
        np.testing.assert_array_equal(run.values(), np.full((2, 3), value, np.float32))


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["nudity", "tiny_reader"])
def test_another_process_that_knows_the_cut_has_the_same_kernels(name: str) -> None:
    path, chance = getattr(weights, name)(), np.random.default_rng(5)
    columns = {
        size: [[chance.random(REAL[name]).astype(np.float32) for _ in range(size)]] for size in (1, 3, 4, 1, 3, 4)
    }
    runs: list[dict[int, BatchRun]] = []
    cut: Cut | None = None
    for _ in range(2):
        model = CutModel(onnx(path, name="made", batch=(1, 2, 4)).spec, cut)
        if model.wants is not None:
            model.make_ready()
        else:
            assert cut is None, "what the first batch has shown is remembered, too"
        for size in (1, 3, 4, 4):
            got, _ = carry_out(model, columns[size])
            assert_same(got, OnnxRunner(model.spec).run(columns[size]))
        runs.append({size: model.plan(columns[size]) for size in (1, 3, 4)})
        cut = model.cut()
        assert cut is not None and cut.at
    first, second = runs
    for size in first:
        assert first[size].name and first[size].name == second[size].name
        assert first[size].idents == second[size].idents


@pytest.mark.cpu
def test_cuts_of_other_places_have_other_names(tmp_path: Path) -> None:
    spec = onnx(onnx_models.slow(tmp_path / "long.onnx", products=16, side=512), name="made", batch=(1,)).spec
    names = set()
    for at, ends in (((4,), (1, 2)), ((4,), (2,)), ((5,), (1, 2)), ((4, 9), (1, 2, 3)), ((4, 9), (2, 3))):
        model = CutModel(spec, Cut(spec.model, ((1, 3),), 1, (at,), ((0, ((1, 3),), ends),)))
        model.make_ready()
        run = model.plan([[np.ones(3, np.float32)]])
        assert len(run.kernels) == len(ends)
        names.add(run.name)
    assert len(names) == 5
    assert {sequence_model(name) for name in names} == {spec.model[:16]}


@pytest.mark.cpu
@pytest.mark.parametrize("at", [((4000,),), ((2, 10_000),)])
def test_a_cut_that_does_not_fit_the_model_is_passed_over(at: tuple[tuple[int, ...], ...], tmp_path: Path) -> None:
    spec = onnx(onnx_models.slow(tmp_path / "long.onnx", products=16, side=512), name="made", batch=(1,)).spec
    model = CutModel(spec, Cut(spec.model, ((1, 3),), 1, at))
    model.make_ready()
    assert len(model.plan([[np.ones(3, np.float32)]]).kernels) > 1
    cut = model.cut()
    assert cut is not None and cut.at != at


@pytest.mark.cpu
def test_buffers_are_bounded_and_used_again(tmp_path: Path) -> None:
    model = ready(onnx_models.slow(tmp_path / "long.onnx", products=16, side=512))
    for size in (*range(1, 30), 1, 2, 3):
        carry_out(model, [[np.ones(3, np.float32)] * size])
    assert len(model._free) <= 12


def nonzero(path: Path) -> Path:
    """y = x, past matrix products over as many rows as x has numbers that are not 1; so it is long at nought."""
    side, products = 384, 16
    nodes = [
        helper.make_node("Sub", ["x", "one"], ["less"]),
        helper.make_node("NonZero", ["less"], ["where"]),
        helper.make_node("Transpose", ["where"], ["rows"], perm=[1, 0]),
        helper.make_node("Cast", ["rows"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["floats", "wide"], ["m0"]),
        *(helper.make_node("MatMul", [f"m{i}", "w"], [f"m{i + 1}"]) for i in range(products)),
        helper.make_node("ReduceMean", [f"m{products}"], ["end"], keepdims=0),
        helper.make_node("Mul", ["end", "none"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]
    chance = np.random.default_rng(7)
    constants = {
        "wide": chance.standard_normal((2, side)).astype(np.float32) / side,
        "w": chance.standard_normal((side, side)).astype(np.float32) / side,
        "none": np.float32(0),
        "one": np.float32([1]),
    }
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "nonzero",
        [helper.make_tensor_value_info("x", kind, ["batch", 512])],
        [helper.make_tensor_value_info("y", kind, ["batch", 512])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx_file.save(model, path)
    return path


@pytest.mark.cpu
def test_a_model_whose_shapes_depend_on_values_is_found_out_and_runs_whole(tmp_path: Path) -> None:
    model = CutModel(onnx(nonzero(tmp_path / "nonzero.onnx"), name="made", batch=(1,)).spec)
    model.make_ready()
    assert len(model.plan([[np.zeros(512, np.float32)]]).kernels) > 1
    for numbers in (0, 300, 7):
        x = (np.arange(512) < numbers).astype(np.float32)
        run = model.plan([[x]])
        try:
            for kernel in run.kernels:
                kernel()
        except Exception as error:
            run.rescue(error)
        np.testing.assert_array_equal(run.values()[0], x)
    assert model.whole_because
    assert len(model.plan([[x]]).kernels) == 1


# -- served ----------------------------------------------------------------------------------------------------------


@pytest.mark.cpu
def test_a_live_system_by_kernel_answers_and_writes_what_ran(tmp_path: Path) -> None:
    log = tmp_path / "kernels.jsonl"
    options = Options(device="cpu:1", port=0, by_kernel=True, kernel_log=log, arena_bytes=1 << 26)

    async def serve() -> list[Any]:
        target = "tests.live.apps:app"
        served = await launch(load_target(target), target, options)
        loop = asyncio.get_running_loop()

        def ask(workflow: str, value: float, **more: int) -> asyncio.Future[Result]:
            future: asyncio.Future[Result] = loop.create_future()
            given = [np.full(3, value, np.float32)]
            served.system.submit(workflow, given, lambda _, result: future.set_result(result), **more)
            return future

        try:
            lows = [ask("heavy", i, priority=4) for i in range(6)]
            highs = [ask("plain", i, priority=1) for i in range(6)]
            found = await asyncio.gather(*lows, *highs)
            outputs = [np.array(next(iter(r.outputs.values()))) for r in found]
            for result in found:
                result.release()
            specs = [w.spec for w in served.system.controller.workers.values() if w.spec.kind == "cpu"]
            assert [(s.preempts, s.cores) for s in specs] == [(True, 1)]
        finally:
            assert await served.stop()
        assert [r.outcome in ("ok", "late") for r in found] == [True] * 12
        return outputs

    outputs = asyncio.run(serve())
    plain = load_target("tests.live.apps:app").workflows
    for i, (low, high) in enumerate(zip(outputs[:6], outputs[6:], strict=True)):
        given = {"x": np.full(3, i, np.float32)}
        np.testing.assert_array_equal(low, np.asarray(next(iter(plain["heavy"].local(**given).values()))))
        np.testing.assert_array_equal(high, np.asarray(next(iter(plain["plain"].local(**given).values()))))
    with log.open("rb") as lines:
        records = list(decode_records(lines))
    assert {r.name for r in records} >= {"double", "slow"}
    assert {r.priority for r in records} == {1, 4}
    assert all(before.end_ns <= after.begin_ns for before, after in pairwise(records))


def test_devices_and_policies_that_run_no_kernels_are_refused_by_name() -> None:
    stages = load_target("tests.live.apps:app").specs
    with pytest.raises(DeclarationError, match=r"--by-kernel.*emulated:v100.*--device cpu:N"):
        parse_device("emulated:v100", stages, by_kernel=True)
    with pytest.raises(DeclarationError, match=r"--by-kernel.*--workers 2.*cpu:N"):
        parse_device("cpu:1", stages, workers=2, by_kernel=True)
    specs, _, cores = parse_device("cpu:1", stages, by_kernel=True)
    assert cores == 1
    assert [s.preempts for s in specs] == [s.kind == "cpu" for s in specs]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *((Options(by_kernel=True, policy=PolicySpec(name)), f"'{name}'.*--policy") for name in ROUTED_POLICIES),
        (Options(kernel_log=Path("kernels.jsonl")), "--kernel-log.*--by-kernel"),
        (Options(ageing_ns=MS), "--ageing.*--by-kernel"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: Options, said: str) -> None:
    target = "tests.live.apps:app"
    with pytest.raises(DeclarationError, match=said):
        asyncio.run(launch(load_target(target), target, options))


__all__ = ["apps"]
