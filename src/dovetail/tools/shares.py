"""Run the real models of an application against the slices that they declare, and see what each one got.

Rules of this file
- The server is the one that `dovetail serve` starts, with its workers and its default policy. Requests go straight to
  it, without HTTP: so many of each workflow are always open, so that everybody always has work.
- If workflows are of several classes, those of the highest are not under such load: one request after the other, at
  random times. What counts for them is how long an answer takes.
- What is judged is the kernel log that workers write (`record.shares`), not what the client saw; of a high class it
  is what the client saw.
- It prints nothing. `cli/verify_shares.py` shows it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..device.tokens import QuotaMode
from ..errors import DeclarationError
from ..live.front.answers import Result
from ..live.front.system import LiveSystem
from ..profile.samples import inputs_of
from ..record.kernels import decode_records
from ..record.shares import ShareReport, busy_ns, share_report
from ..serve.launch import Options, launch
from ..units import SECOND
from ..workflow.app import App

__all__ = ["ShareOptions", "ShareResult", "p99", "verify_shares"]

#: No request is refused for being late: what is measured is the device.
PATIENCE_NS = 3600 * SECOND
#: Models are cut within this time, or not before the load begins.
WARM_UP_SECONDS = 60.0
#: Alone and together are compared in turns of so long, of which the first part is not counted: requests have to come.
TURN_SECONDS, SETTLE_SECONDS = 1.0, 0.2
#: Between two requests of a high class, about.
PAUSE_SECONDS = 0.08


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
    #: Each workflow is then served alone for so long, to compare, or those of a high class; 0: none.
    alone_s: float = 0.0
    #: After that all but the client that asks for most, for so long; 0: not at all.
    idle_s: float = 0.0
    seed: int = 1


class ShareResult(msgspec.Struct, frozen=True):
    """What was asked, what was got, and what became of the requests."""

    target: str
    options: ShareOptions
    asked_pct: dict[str, int]
    report: ShareReport
    #: Workflow -> outcome -> requests.
    outcomes: dict[str, dict[str, int]]
    #: Workflow -> answers per second alone, and beside all others in turn with that; empty if it was not measured.
    alone_per_s: dict[str, float] = {}
    together_per_s: dict[str, float] = {}
    #: What all did together in each round of turns, each counted as a part of what it did alone in that round.
    rounds_of_alone: list[float] = []
    #: Workflow of the high class -> how long its answers took beside others, and alone, each in order; in turns if it
    #: was measured alone.
    high_ns: dict[str, list[int]] = {}
    alone_ns: dict[str, list[int]] = {}
    #: Per cent of the time in which the device ran kernels while one client was idle, and who that was.
    idle_busy_pct: float | None = None
    idle_client: str = ""

    @property
    def of_alone(self) -> float | None:
        """What all did together, each counted as a part of what it does alone: 1 if sharing costs nothing.

        The median of rounds: a machine that is slow for one turn counts for one round. None if that was not measured,
        or a high class does not do all that it could.
        """
        return statistics.median(self.rounds_of_alone) if self.rounds_of_alone else None

    @property
    def busy_pct(self) -> float:
        """Per cent of the time in which the device ran kernels while all had work."""
        busy = [window.busy_pct for window in self.report.windows]
        return sum(busy) / len(busy) if busy else 0.0

    @property
    def furthest_pct(self) -> float:
        """By how much what a client got is off what it asked for, at the most, in per cent of that."""
        asked, got = self.asked_pct, self.report.of_busy_pct
        all_asked, all_got = sum(asked.values()), sum(got.get(name, 0.0) for name in asked)
        if not all_got:
            return 100.0
        parts = [(got.get(name, 0.0) / all_got) / (pct / all_asked) for name, pct in asked.items()]
        return max(abs(part - 1) * 100 for part in parts)

    @property
    def high_ratio(self) -> float | None:
        """The 99th percentile of the high class beside others over that alone, of the worst workflow."""
        ratios = [p99(self.high_ns[name]) / p99(alone) for name, alone in self.alone_ns.items() if alone]
        return max(ratios, default=None)

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
    highest = min(graph.priority for graph in app.graphs)
    high = {g.name for g in app.graphs if g.priority == highest < max(g.priority for g in app.graphs)}
    clients_of = {g.name: {s.client or s.name for s in g.stages} for g in app.graphs}
    # Whoever asks for little is not judged by what it had.
    asked = {client: pct for client, pct in asked.items() if not any(client in clients_of[name] for name in high)}
    idle = max(asked, key=lambda client: asked[client], default="")
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
        turns: list[tuple[Counter[str], Counter[str]]] = []
        alone_ns: dict[str, list[int]] = {}
        idle_at_ns = (0, 0)
        try:
            load = _Load(served.system, inputs, high, options)
            await _warm_up(load, inputs, served.system)
            high_ns = load.took_ns
            begun_ns = served.system.now_ns()
            outcomes = await load.run(inputs, options.seconds, progress)
            ended_ns = served.system.now_ns()
            # In short turns, alone and together, so that a machine that becomes slower counts on both sides. Of a
            # high class as much is looked at alone as together: the longest of many is longer than that of few.
            rounds = round(options.alone_s / TURN_SECONDS)
            if high and rounds:
                high_ns = {}
            for _ in range(rounds):
                turns.append((Counter(), Counter()))
                for name in high or inputs:
                    await load.turn([name], turns[-1][0], alone_ns)
                await load.turn(inputs, turns[-1][1], high_ns)
            load.took_ns = {}
            if options.idle_s:
                begin_ns = served.system.now_ns()
                await load.run([name for name in inputs if idle not in clients_of[name]], options.idle_s)
                idle_at_ns = (begin_ns, served.system.now_ns())
        finally:
            await served.stop(10.0)
        with log.open("rb") as lines:
            every = list(decode_records(lines))
    records = [r for r in every if begun_ns <= r.begin_ns and r.end_ns <= ended_ns]
    devices = len({record.client for record in records}) or 1
    clients = {name: spec.client or name for name, spec in slices.items()}
    report = share_report(
        records,
        clients,
        asked,
        round(options.window_s * SECOND),
        devices=devices,
        tolerance_pct=options.tolerance_pct,
        strict=options.quotas == "strict",
        last_ns=round(options.seconds * SECOND),
    )
    idle_busy_pct = None
    if options.idle_s:
        begin_ns, end_ns = idle_at_ns[0], idle_at_ns[0] + round(options.idle_s * SECOND)
        idle_busy_pct = busy_ns(every, begin_ns, end_ns - begin_ns) * 100.0 / ((end_ns - begin_ns) * devices)
    ended = {name: dict(found) for name, found in outcomes.items()}
    turns_s = len(turns) * (TURN_SECONDS - SETTLE_SECONDS)

    def per_s(which: int) -> dict[str, float]:
        total = sum((turn[which] for turn in turns), Counter[str]())
        return {name: count / turns_s for name, count in total.items() if not high}

    measured = (
        per_s(0),
        per_s(1),
        [sum(all_[n] / own[n] for n in own if own[n]) for own, all_ in turns] if not high else [],
        {n: sorted(t) for n, t in high_ns.items()},
        {n: sorted(t) for n, t in alone_ns.items()},
    )
    return ShareResult(target, options, asked, report, ended, *measured, idle_busy_pct, idle)


async def _warm_up(load: _Load, names: Iterable[str], system: LiveSystem) -> None:
    """Under load, until nothing is being found out any more: models are cut when it is known which are to be."""
    give_up_s = time.monotonic() + WARM_UP_SECONDS
    await load.run(names, 2.0)
    while system.fleet.cutter.busy and time.monotonic() < give_up_s:
        await load.run(names, 0.5)
    load.took_ns = {}


def p99(took_ns: list[int]) -> int:
    """The 99th percentile of what is in order."""
    return took_ns[-(-99 * len(took_ns) // 100) - 1] if took_ns else 0


class _Load:
    """Keeps requests open; how long answers to those of a high class took is in `took_ns`."""

    def __init__(
        self, system: LiveSystem, inputs: dict[str, list[Any]], high: set[str], options: ShareOptions
    ) -> None:
        self._system = system
        self._inputs = inputs
        self._high = high
        self._options = options
        self._rng = random.Random(options.seed)
        self.took_ns: dict[str, list[int]] = {}

    async def run(
        self,
        names: Iterable[str],
        seconds: float,
        progress: Callable[[float, float], None] = lambda _, __: None,
        settle_s: float = 0.0,
    ) -> dict[str, Counter[str]]:
        """Keep requests of these workflows open until the time is over and all are answered.

        What is answered after that, or before they have settled, is not counted if it is well.
        """
        outcomes: dict[str, Counter[str]] = {name: Counter() for name in names}
        begin_s = time.monotonic()

        async def one_after_the_other(name: str) -> None:
            while (passed_s := time.monotonic() - begin_s) < seconds:
                progress(passed_s, seconds)
                outcome = await self._answer(name)
                if outcome != "ok" or settle_s <= time.monotonic() - begin_s <= seconds:
                    outcomes[name][outcome] += 1

        async def now_and_then(name: str) -> None:
            took = self.took_ns.setdefault(name, [])
            while time.monotonic() - begin_s < seconds:
                await asyncio.sleep(self._rng.uniform(0.5, 1.5) * PAUSE_SECONDS)
                sent_ns = time.monotonic_ns()
                outcomes[name][await self._answer(name)] += 1
                took.append(time.monotonic_ns() - sent_ns)

        async with asyncio.TaskGroup() as loops:
            for name in outcomes:
                if name in self._high:
                    loops.create_task(now_and_then(name))
                else:
                    for _ in range(self._options.at_a_time):
                        loops.create_task(one_after_the_other(name))
        return outcomes

    async def turn(self, names: Iterable[str], counts: Counter[str], took_ns: dict[str, list[int]]) -> None:
        """A turn of these workflows: add how many were answered, and how long those of a high class took."""
        self.took_ns = took_ns
        for name, found in (await self.run(names, TURN_SECONDS, settle_s=SETTLE_SECONDS)).items():
            counts[name] += found["ok"]

    async def _answer(self, name: str) -> str:
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def done(ident: int, result: Result) -> None:
            result.release()
            if not ended.done():
                ended.set_result(result.outcome)

        self._system.submit(name, self._inputs[name], done, objective_ns=PATIENCE_NS)
        return await ended
