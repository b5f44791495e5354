"""What predictions buy live: real models in two classes near saturation on this machine, served by the product.

Rules of this file
- Everything is the product's: front, worker, policy. Runs differ in one thing, what says how long a batch takes
  beside others: ours, a rival in its place, or nobody.
- Runs take turns, so that a machine that changes its mind meets all of them. Requests of a round are the same.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from ...errors import Overloaded
from ...live.front.system import Result
from ...predict import Estimator
from ...serve.launch import Options, Served, launch
from ...units import SECOND
from ...wiring import PolicySpec
from ...workflow.app import load_target
from ..experiment import Goal, Lab, over_seeds
from ..rivals.interference import RIVALS
from ..rivals.interference.served import Served as InPlace
from .fikit_models import ONNX_MODELS
from .interference_app import MODELS

__all__ = ["Outcome", "serve_all", "served"]

OURS = "our own"
TARGET = "dovetail.lab.experiments.interference_app:app"
#: Who takes turns.
NAMES = ("none", "constant", "ewma", "rls", "ours")
#: Rounds, seconds of a run after its warm-up, and the part of the cores that is asked for. First class: as below.
ROUNDS, RUN_S, WARM_S, LOAD, FIRST = 3, 8.0, 3.0, 0.9, 0.3


class Outcome(msgspec.Struct, frozen=True):
    """What came of a run."""

    missed: dict[int, float]
    goodput: float
    #: Whether neighbours were felt at its end.
    felt: bool


async def _alone_s(server: Served) -> float:
    """Mean time of a request that has the machine to itself, measured once."""
    times = []
    for name in MODELS:
        for _ in range(4):
            done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            value = np.ones(ONNX_MODELS[name].item, np.float32)
            server.system.submit(f"flow_{name}", [value], lambda _, result, done=done: done.set_result(result))  # type: ignore[misc]
            result = await done
            result.release()
        times.append(result.latency_ns / SECOND)
    return statistics.fmean(times)


async def _run(name: str, seed: int, seconds: float) -> Outcome:
    policy = PolicySpec(goal="time", interference=name != "none")
    options = Options(port=0, policy=policy, kernels="never")
    server = await launch(load_target(TARGET), TARGET, options)
    try:
        predictor = server.system.controller.policy.predictor
        if name not in ("none", "ours"):
            assert isinstance(predictor, Estimator)
            predictor.ask_instead(InPlace(RIVALS[name]()))
        interval_s = await _alone_s(server) / 2 / LOAD
        return await _offer(server, random.Random(f"served/{seed}"), interval_s, seconds)
    finally:
        await server.stop(10.0)


async def _offer(server: Served, rng: random.Random, interval_s: float, seconds: float) -> Outcome:
    values = {name: np.ones(ONNX_MODELS[name].item, np.float32) for name in MODELS}
    counts = {1: [0, 0], 2: [0, 0]}
    waiting: set[asyncio.Future[None]] = set()
    begin = time.monotonic()
    due = begin
    while due < begin + WARM_S + seconds:
        due += rng.expovariate(1 / interval_s)
        name, priority = rng.choice(MODELS), 1 if rng.random() < FIRST else 2
        if due > time.monotonic():
            await asyncio.sleep(due - time.monotonic())
        counted = counts[priority] if due >= begin + WARM_S else [0, 0]
        counted[0] += 1
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(_: int, result: Result, done: asyncio.Future[None] = done, counted: list[int] = counted) -> None:
            counted[1] += result.outcome == "ok"
            result.release()
            done.set_result(None)

        try:
            server.system.submit(f"flow_{name}", [values[name]], tell, priority=priority)
        except Overloaded:
            continue
        waiting.add(done)
        done.add_done_callback(waiting.discard)
    if waiting:
        await asyncio.wait(waiting, timeout=20)
    predictor = server.system.controller.policy.predictor
    felt = any(predictor.felt(worker.spec.kind) for worker in server.system.controller.workers.values())
    return Outcome(
        {c: 100 * (1 - good / max(1, sent)) for c, (sent, good) in counts.items()},
        sum(good for _, good in counts.values()) / seconds,
        felt,
    )


def serve_all(lab: Lab, names: Sequence[str] = NAMES) -> dict[str, list[Outcome]]:
    """Runs of all, in turn."""
    rounds, seconds = (1, 4.0) if lab.quick else (ROUNDS, RUN_S)
    found: dict[str, list[Outcome]] = {name: [] for name in names}
    for number in range(rounds):
        for at, name in enumerate(names):
            lab.show("live: what predictions buy", (number + at / len(names)) / rounds)
            found[name].append(asyncio.run(_run(name, lab.seeds[0] + number, seconds)))
    return found


def served(lab: Lab, found: dict[str, list[Outcome]]) -> None:
    """Claims on these runs."""

    def mean(name: str, first: bool) -> float:
        return statistics.fmean(o.missed[1] if first else o.goodput for o in found[name])

    felt = sum(o.felt for o in found["ours"])
    for ident, first, goal in (("first-class", True, Goal("at most", 2.0, "%")), ("goodput", False, None)):
        listed = ", ".join(f"{name} {mean(name, first):.1f}" for name in found if name != "ours")
        values = [o.missed[1] if first else o.goodput for o in found["ours"]]
        if goal is None:
            goal = Goal("at least", 0.97, "×")
            values = [o.goodput / n.goodput for o, n in zip(found["ours"], found["none"], strict=True)]
        text = (
            "requests of the first class that were not answered in time, in per cent"
            if first
            else f"answers in time per second over those of the policy that knows no interference; ours "
            f"{mean('ours', False):.1f} per second"
        )
        lab.claim(
            f"live.worth.{ident}",
            f"{text}; with another predictor in its place: {listed}; neighbours were felt in {felt} of "
            f"{len(found['ours'])} runs",
            source=OURS,
            goal=goal,
            measured=over_seeds(values),
        )
