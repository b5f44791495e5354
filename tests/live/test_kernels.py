"""Served kernel by kernel: the same answers, what ran is written down, and what cannot be served so is refused."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.errors import DeclarationError
from dovetail.live.devices import parse_device
from dovetail.live.front.system import Result
from dovetail.record.kernels import decode_records
from dovetail.serve.launch import Options, launch
from dovetail.units import MS
from dovetail.wiring import ROUTED_POLICIES, PolicySpec
from dovetail.workflow.app import load_target


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
