"""Run the real models of an application against the slices that they declare, and see what each one got.

Rules of this file
- The server is the one that `dovetail serve` starts, with its workers and its default policy. Requests go straight to
  it, without HTTP: so many of each workflow are always open, so that everybody always has work.
- What is judged is the kernel log that workers write (`record.shares`), not what the client saw.
- It prints nothing. `cli/verify_shares.py` shows it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..device.tokens import QuotaMode
from ..errors import DeclarationError
from ..live.front.answers import Result
from ..live.front.system import LiveSystem
from ..profile.samples import inputs_of
from ..record.kernels import decode_records
from ..record.shares import ShareReport, share_report
from ..serve.launch import Options, launch
from ..units import SECOND
from ..workflow.app import App

__all__ = ["ShareOptions", "ShareResult", "verify_shares"]

#: No request is refused for being late: what is measured is the device.
PATIENCE_NS = 3600 * SECOND


class ShareOptions(msgspec.Struct, frozen=True):
    """How shares are verified."""

    seconds: float = 12.0
    window_s: float = 2.0
    tolerance_pct: float = 3.0
    quotas: QuotaMode = "conserving"
    kernels: str = "auto"
    device: str = "cpu"
    #: Requests of each workflow that are always open.
    at_a_time: int = 6
    #: Each workflow is then served alone for so long, to compare; 0: not at all.
    alone_s: float = 0.0


class ShareResult(msgspec.Struct, frozen=True):
    """What was asked, what was got, and what became of the requests."""

    target: str
    options: ShareOptions
    asked_pct: dict[str, int]
    report: ShareReport
    #: Workflow -> outcome -> requests.
    outcomes: dict[str, dict[str, int]]
    #: Workflow -> answers per second alone; empty if that was not measured.
    alone_per_s: dict[str, float] = {}

    @property
    def of_alone(self) -> float | None:
        """What all did together, each counted as a part of what it does alone: 1 if sharing costs nothing."""
        if not self.alone_per_s:
            return None
        per_s = {name: found.get("ok", 0) / self.options.seconds for name, found in self.outcomes.items()}
        return sum(per_s[name] / alone for name, alone in self.alone_per_s.items() if alone)

    @property
    def holds(self) -> bool:
        """Whether every client had what it asked for in every window."""
        return self.report.held


async def verify_shares(
    app: App, target: str, options: ShareOptions, progress: Callable[[float, float], None] = lambda _, __: None
) -> ShareResult:
    """Serve the application for a while under load that never ends, and compare."""
    slices = {spec.name: spec for spec in app.specs if not spec.on_host}
    asked = {spec.client or spec.name: spec.quota_pct for spec in slices.values() if spec.quota_pct}
    if not asked:
        raise DeclarationError(f"{target} declares no quota; write quota=... at a stage or a workflow")
    inputs: dict[str, list[Any]] = {}
    for name, workflow in app.workflows.items():
        values, trouble = inputs_of(workflow)
        if values is None:
            raise DeclarationError(trouble)
        inputs[name] = values
    with tempfile.TemporaryDirectory(prefix="dovetail-shares-") as scratch:
        log = Path(scratch, "kernels.jsonl")
        served = await launch(
            app,
            target,
            Options(
                device=options.device,
                port=0,
                kernel_log=log,
                kernels="always" if options.kernels == "always" else "auto",
                quotas=options.quotas,
            ),
        )
        alone: dict[str, float] = {}
        try:
            outcomes = await _load(served.system, inputs, options, progress)
            ended_ns = served.system.now_ns()
            # Afterwards, when all is warm.
            for name in inputs if options.alone_s else ():
                short = msgspec.structs.replace(options, seconds=options.alone_s)
                found = await _load(served.system, {name: inputs[name]}, short, lambda _, __: None)
                alone[name] = found[name]["ok"] / options.alone_s
        finally:
            await served.stop(10.0)
        with log.open("rb") as lines:
            records = [r for r in decode_records(lines) if r.end_ns <= ended_ns]
    report = share_report(
        records,
        {name: spec.client or name for name, spec in slices.items()},
        asked,
        round(options.window_s * SECOND),
        devices=len({record.client for record in records}) or 1,
        tolerance_pct=options.tolerance_pct,
        strict=options.quotas == "strict",
        last_ns=round(options.seconds * SECOND),
    )
    ended = {name: dict(found) for name, found in outcomes.items()}
    return ShareResult(target, options, asked, report, ended, alone)


async def _load(
    system: LiveSystem,
    inputs: dict[str, list[Any]],
    options: ShareOptions,
    progress: Callable[[float, float], None],
) -> dict[str, Counter[str]]:
    """Keep requests of every workflow open until the time is over and all are answered."""
    loop = asyncio.get_running_loop()
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in inputs}
    begin_s = time.monotonic()

    async def one_after_the_other(name: str) -> None:
        while (passed_s := time.monotonic() - begin_s) < options.seconds:
            progress(passed_s, options.seconds)
            ended: asyncio.Future[str] = loop.create_future()

            def done(ident: int, result: Result, ended: asyncio.Future[str] = ended) -> None:
                result.release()
                if not ended.done():
                    ended.set_result(result.outcome)

            system.submit(name, inputs[name], done, objective_ns=PATIENCE_NS)
            outcomes[name][await ended] += 1

    async with asyncio.TaskGroup() as loops:
        for name in inputs:
            for _ in range(options.at_a_time):
                loops.create_task(one_after_the_other(name))
    return outcomes
