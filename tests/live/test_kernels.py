"""Served kernel by kernel: the same answers, what ran is written down, and what cannot be served so is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests import onnx_models

from dovetail import onnx
from dovetail.errors import DeclarationError
from dovetail.live.devices import parse_device
from dovetail.live.front.cutter import Cutter
from dovetail.live.front.system import Result
from dovetail.live.kernels.cut_model import CutModel
from dovetail.live.kernels.cutting import Found, Wanted
from dovetail.profile.kernels import Cut
from dovetail.profile.store import ProfileStore
from dovetail.record.kernels import KernelRecord, decode_records
from dovetail.serve.launch import Options, Served, launch
from dovetail.units import MS
from dovetail.workflow.app import load_target

APP = "tests.live.apps:app"
LONG = "tests.live.long_app:app"
#: A server that hangs should fail a test, not hang it.
PATIENCE_SECONDS = 120.0
#: A model that has not been cut by then never will be.
MOST_REQUESTS = 400

Ask = Callable[[str, float, int], Awaitable[np.ndarray]]


def play(
    target: str,
    options: Options,
    scene: Callable[[Served, Ask], Awaitable[None]],
    store: ProfileStore | None = None,
) -> None:
    """Serve the application while the scene lasts; `ask` puts a request of a class and gives its only output."""

    async def serve() -> None:
        served = await launch(load_target(target), target, options, store=store)
        loop = asyncio.get_running_loop()

        async def ask(workflow: str, value: float, priority: int) -> np.ndarray:
            future: asyncio.Future[Result] = loop.create_future()
            given = [np.full(3, value, np.float32)]
            served.system.submit(workflow, given, lambda _, r: future.set_result(r), priority=priority)
            result = await future
            assert result.outcome in ("ok", "late"), result
            output = np.array(next(iter(result.outputs.values())))
            result.release()
            return output

        try:
            await scene(served, ask)
        finally:
            assert await served.stop()

    async def bounded() -> None:
        await asyncio.wait_for(serve(), PATIENCE_SECONDS)

    asyncio.run(bounded())


def expected(target: str, workflow: str, value: float) -> np.ndarray:
    found = load_target(target).workflows[workflow].local(x=np.full(3, value, np.float32))
    return np.asarray(next(iter(found.values())))


def kernels(log: Path) -> list[KernelRecord]:
    with log.open("rb") as lines:
        return list(decode_records(lines))


@pytest.mark.cpu
def test_models_in_kernels_answer_as_whole_ones_and_what_ran_is_written_down(tmp_path: Path) -> None:
    log = tmp_path / "kernels.jsonl"
    outputs: list[np.ndarray] = []

    async def scene(served: Served, ask: Ask) -> None:
        lows = [ask("heavy", i, 4) for i in range(6)]
        highs = [ask("plain", i, 1) for i in range(6)]
        outputs.extend(await asyncio.gather(*lows, *highs))
        specs = [w.spec for w in served.system.controller.workers.values() if w.spec.kind == "cpu"]
        assert [(s.preempts, s.cores) for s in specs] == [(True, 1)]

    options = Options(device="cpu:1", port=0, kernels="always", kernel_log=log, arena_bytes=1 << 26)
    play(APP, options, scene)
    for i, (low, high) in enumerate(zip(outputs[:6], outputs[6:], strict=True)):
        np.testing.assert_array_equal(low, expected(APP, "heavy", i))
        np.testing.assert_array_equal(high, expected(APP, "plain", i))
    records = kernels(log)
    assert {r.name for r in records} >= {"double", "slow"}
    assert {r.priority for r in records} == {1, 4}
    assert all(before.end_ns <= after.begin_ns for before, after in pairwise(records))


@pytest.fixture
def asked_to_cut(monkeypatch: pytest.MonkeyPatch) -> list[Wanted]:
    """What the front was asked to cut. It answers at once, where a process would measure what is best."""
    asked: list[Wanted] = []

    async def cut(_: Cutter, wanted: Wanted) -> Found:
        asked.append(wanted)
        return Found(Cut(wanted.stage.model, wanted.item, 1, ((5, 10, 15),)))

    monkeypatch.setattr(Cutter, "_cut", cut)
    return asked


@pytest.mark.cpu
@pytest.mark.parametrize("classes", [(1, 1), (4, 1)], ids=["one class", "two classes"])
def test_a_model_is_cut_while_it_is_served_once_a_lower_class_could_be_in_the_way(
    classes: tuple[int, int], tmp_path: Path, asked_to_cut: list[Wanted]
) -> None:
    """Nothing says so but the requests. Answers are right before, meanwhile and after."""
    log = tmp_path / "kernels.jsonl"
    sizes: list[int] = []

    async def scene(served: Served, ask: Ask) -> None:
        for first in range(0, MOST_REQUESTS, 2):
            outputs = await asyncio.gather(*(ask("lengthy", first + i, c) for i, c in enumerate(classes)))
            for i, output in enumerate(outputs):
                np.testing.assert_array_equal(output, expected(LONG, "lengthy", first + i))
            sizes.append(max((r.kernel for r in kernels(log)), default=0) + 1)
            if sizes[-1] > 1 or (first >= 6 and classes == (1, 1)):
                break

    options = Options(device="cpu:1", port=0, kernel_log=log, arena_bytes=1 << 26)
    play(LONG, options, scene)
    assert sizes[0] == 1, "whole at first"
    if classes == (1, 1):
        assert not asked_to_cut and set(sizes) == {1}
    else:
        assert [(w.stage.name, w.item, w.threads) for w in asked_to_cut] == [("long", ((1, 3),), 1)]
        assert sizes[-1] > 1


@pytest.mark.cpu
def test_where_to_cut_is_found_out_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Whatever it finds, that it stays whole included, fits the model."""
    stage = onnx(onnx_models.slow(tmp_path / "long.onnx", products=8, side=256), name="long", batch=(1,)).spec
    found: list[Cut] = []
    said: list[str] = []

    async def find() -> None:
        cutter = Cutter(lambda _, each: found.append(each.cut), said.append)
        for _ in range(2):
            cutter.want(Wanted(stage, ((1, 3),), 1))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while cutter.busy:
                await asyncio.sleep(0.01)
        await cutter.close()

    asyncio.run(find())
    assert not said
    assert [cut.model for cut in found] == [stage.model], "asked for twice, found out once"
    model = CutModel(stage, found[0])
    model.make_ready()
    run = model.plan([[np.ones(3, np.float32)]])
    for kernel in run.kernels:
        kernel()
    np.testing.assert_allclose(run.values()[0], np.ones(3, np.float32), rtol=1e-4)


def test_which_devices_may_stop_a_batch_between_kernels() -> None:
    stages = load_target(APP).specs
    for device, workers in (("cpu:1", 1), ("emulated:v100x2", 1)):
        for wanted in ("auto", "always", "never"):
            chosen = [s for s in stages if s.name in ("double", "slow")] if "emulated" in device else stages
            specs, _, _ = parse_device(device, chosen, workers=workers, kernels=wanted)
            devices = [s for s in specs if not s.on_host]
            assert devices and all(s.preempts == (wanted != "never") for s in devices)
            assert not any(s.preempts for s in specs if s.on_host)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(kernels="never", kernel_log=Path("kernels.jsonl")), "--kernel-log.*--kernels never"),
        (Options(kernels="never", ageing_ns=MS), "--ageing.*--kernels never"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: Options, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        asyncio.run(launch(load_target(APP), APP, options))
