"""The same worker, four times: simulated, real on this machine's cores with whole batches and kernel by kernel, and
emulated, behind one small interface. And three times more as workers that keep a queue and their own memory.

A world is asked as the controller asks a worker and answers with the controller's events. The simulated one has a
clock of its own; the others are processes behind a doorbell, and their clock is the machine's.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tests import onnx_models

from dovetail import onnx
from dovetail.control import (
    BatchFailed,
    BatchFinished,
    Event,
    EvictModel,
    LoadFailed,
    LoadModel,
    ModelEvicted,
    ModelLoaded,
    RunBatch,
)
from dovetail.control.actions import NEVER_NS
from dovetail.live.front.process import WorkerProcess
from dovetail.live.links.wire import (
    Argument,
    Done,
    Evict,
    Evicted,
    Failed,
    Free,
    FromWorker,
    Hello,
    Learned,
    Load,
    Loaded,
    LoadFailure,
    Loading,
    Ready,
    Run,
    State,
)
from dovetail.live.tensors.arena import Arena
from dovetail.live.tensors.codec import Ref, decode, encode
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.sim.cached import CachedDevice
from dovetail.sim.device import SimDevice
from dovetail.state import WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

#: A dead worker should fail a test, not hang it.
PATIENCE_SECONDS = 60.0
#: Numbers of one item, and so the count of its result.
WIDTH = onnx_models.WIDTH
#: Profile of the simulated and the emulated device: (batch, time).
TIMES_NS = {"quick": {1: 2 * MS, 8: 5 * MS}, "slow": {1: 40 * MS, 8: 90 * MS}}


def make_stages(directory: Path) -> dict[str, StageSpec]:
    """`quick` and `fragile` double their input at once, `slow` takes its time."""
    files = [onnx_models.double(directory / f"{name}.onnx") for name in ("quick", "fragile")]
    files.append(onnx_models.slow(directory / "slow.onnx"))
    return {s.name: s.spec for s in (onnx(file, batch=(1, 2, 4, 8)) for file in files)}


def make_entries(kind: str, stages: Iterable[str] = TIMES_NS) -> list[Entry]:
    """What the simulated and the emulated device take their times from; a stage of no known time is quick."""
    return [
        Entry(
            stage,
            kind,
            points=tuple(Point(batch, 1, ns, 0.0, 1) for batch, ns in TIMES_NS.get(stage, TIMES_NS["quick"]).items()),
            load_ns=3 * MS,
        )
        for stage in stages
    ]


def make_long_stage(directory: Path) -> dict[str, StageSpec]:
    """`long` takes many times as long as `slow`: a model of many kernels."""
    file = onnx_models.slow(directory / "long.onnx", products=20, side=512)
    return {"long": onnx(file, batch=(1, 2, 4, 8)).spec}


class World(Protocol):
    """A worker that can run `quick`, `fragile` and `slow`, none of them loaded."""

    #: Values of a batch that has finished, by its number; the simulated world has none.
    results: dict[int, list[Any]]

    def now_ns(self) -> int: ...
    def load(self, stage: str) -> None: ...
    def evict(self, stage: str) -> None: ...
    def run(
        self,
        batch: int,
        stage: str = "quick",
        *,
        items: int = 1,
        share_pct: int = 100,
        earliest_ns: int = 0,
        latest_ns: int = NEVER_NS,
        value: Any = None,
        order: int = 0,
    ) -> None: ...
    def next_event(self) -> Event: ...
    def close(self) -> None: ...


class SimWorld:
    """A `SimDevice` in virtual time."""

    def __init__(self, stages: dict[str, StageSpec], memory_bytes: int = 0) -> None:
        self.results: dict[int, list[Any]] = {}
        self._now_ns = 0
        self._heap: list[tuple[int, int, object]] = []
        self._events: deque[Event] = deque()
        self._sequence = 0
        spec = WorkerSpec(
            "sim-0", "sim", ("onnx",), 0, memory_bytes, 0.0, "simulated", keeps_queue=bool(memory_bytes)
        )
        make = CachedDevice if spec.keeps_queue else SimDevice
        table = ProfileTable(make_entries("sim", stages))
        self.device = make(1, spec, stages, table, self._schedule, branching=self)

    def counts(self, items: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
        return (WIDTH,) * len(items)

    def _schedule(self, at_ns: int, _: SimDevice, payload: object) -> None:
        self._sequence += 1
        heappush(self._heap, (at_ns, self._sequence, payload))

    def now_ns(self) -> int:
        return self._now_ns

    def load(self, stage: str) -> None:
        self._events.extend(self.device.take(LoadModel(0, 1, stage), self._now_ns))

    def evict(self, stage: str) -> None:
        self._events.extend(self.device.take(EvictModel(0, 1, stage, "a test says so"), self._now_ns))

    def run(
        self,
        batch: int,
        stage: str = "quick",
        *,
        items: int = 1,
        share_pct: int = 100,
        earliest_ns: int = 0,
        latest_ns: int = NEVER_NS,
        value: Any = None,
        order: int = 0,
    ) -> None:
        triples = tuple((i + 1, 0, 0) for i in range(items))
        action = RunBatch(batch, batch, 1, stage, triples, 1, share_pct, earliest_ns, latest_ns, 0, order)
        self._events.extend(self.device.take(action, self._now_ns))

    def next_event(self) -> Event:
        while not self._events:
            self._now_ns, _, payload = heappop(self._heap)
            self._events.extend(self.device.wake(payload, self._now_ns))
        return self._events.popleft()

    def close(self) -> None:
        pass


class ProcessWorld:
    """A worker process behind a real doorbell."""

    def __init__(self, stages: dict[str, StageSpec], spec: WorkerSpec, entries: list[Entry]) -> None:
        self.results: dict[int, list[Any]] = {}
        self._origin_ns = time.monotonic_ns()
        self._events: deque[Event] = deque()
        self._loop = asyncio.new_event_loop()
        self._front = Arena.create(0, 16 << 20)
        hello = Hello(1, spec, "", [], list(stages.values()), entries, (1,), self._origin_ns, 64 << 20)
        self._loop.run_until_complete(self._start(hello))

    async def _start(self, hello: Hello) -> None:
        self._heard = asyncio.Event()
        self._worker = WorkerProcess(hello, self._front, self._on_message, self._on_lost)
        while self._worker.arena is None:
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), PATIENCE_SECONDS)

    def _on_lost(self, worker: WorkerProcess, why: str) -> None:
        raise AssertionError(f"the worker is lost: {why}")

    def _on_message(self, worker: WorkerProcess, message: FromWorker) -> None:
        self._heard.set()
        now = self.now_ns()
        if isinstance(message, Done):
            assert worker.arena is not None
            arenas = {worker.ident: worker.arena}
            self.results[message.batch] = [np.array(decode(ref, arenas)) for ref in message.results]
            worker.send(Free([ref.offset for ref in message.results]))
            self._events.append(
                BatchFinished(now, message.cause, message.batch, message.begin_ns, message.end_ns, message.counts)
            )
        elif isinstance(message, Failed):
            self._events.append(
                BatchFailed(
                    now,
                    message.cause,
                    message.batch,
                    message.begin_ns,
                    message.end_ns,
                    message.reason,
                    message.detail,
                )
            )
        elif isinstance(message, Loaded):
            self._events.append(ModelLoaded(now, message.cause, worker.ident, message.stage, message.nbytes))
        elif isinstance(message, LoadFailure):
            self._events.append(LoadFailed(now, message.cause, worker.ident, message.stage, message.detail))
        elif isinstance(message, Evicted):
            weights, nbytes, reason = message.weights, message.nbytes, message.reason
            self._events.append(ModelEvicted(now, message.cause, worker.ident, weights, nbytes, reason))
        else:
            assert isinstance(message, Ready | Loading | State | Learned)

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._origin_ns

    def load(self, stage: str) -> None:
        self._worker.send(Load(stage, 0))

    def evict(self, stage: str) -> None:
        self._worker.send(Evict(stage))

    def run(
        self,
        batch: int,
        stage: str = "quick",
        *,
        items: int = 1,
        share_pct: int = 100,
        earliest_ns: int = 0,
        latest_ns: int = NEVER_NS,
        value: Any = None,
        order: int = 0,
        priority: int = 1,
        objective_ns: int = 0,
    ) -> None:
        values = [np.full(WIDTH, i + 1, np.float32) if value is None else value for i in range(items)]
        refs: list[Ref] = [encode(v, self._front) for v in values]
        columns = [[Argument((ref,)) for ref in refs]]
        counted = [(-1,)] * items
        window = (earliest_ns, latest_ns)
        message = Run(batch, batch, stage, 1, share_pct, *window, columns, counted, free=[], order=order)
        message.priority, message.objective_ns = priority, objective_ns
        self._worker.send(message)

    def next_event(self) -> Event:
        return self._loop.run_until_complete(self._next())

    async def _next(self) -> Event:
        while not self._events:
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), PATIENCE_SECONDS)
        return self._events.popleft()

    def close(self) -> None:
        self._loop.run_until_complete(self._worker.stop())
        if self._worker.arena is not None:
            self._worker.arena.close()
        self._front.close()
        self._loop.close()


def make_world(name: str, stages: dict[str, StageSpec]) -> World:
    """A fresh worker of that kind."""
    if name == "simulated":
        return SimWorld(stages)
    if name == "cpu":
        return ProcessWorld(stages, WorkerSpec("cpu-0", "cpu", ("onnx",), 2, enforcement="cooperative"), [])
    if name == "kernelled":
        spec = WorkerSpec("cpu-0", "cpu", ("onnx",), 1, enforcement="cooperative", preempts=True)
        return ProcessWorld(stages, spec, [])
    spec = WorkerSpec("gpu-0", "gpu", ("onnx",), enforcement="emulated")
    return ProcessWorld(stages, spec, make_entries("gpu"))


#: Size of a heavy model's file.
HEAVY_BYTES = 6_000_000
#: What models may take: two heavy ones fit, three do not. Of its budget a real worker sets aside more than half.
KEPT_BYTES = {"simulated": 16_000_000, "emulated": 16_000_000, "cpu": 40_000_000}


def make_heavy_stages(directory: Path) -> dict[str, StageSpec]:
    """As `make_stages`, and `a`, `b`, `c` whose models double, too, and `again` with the model of `a`."""
    stages = make_stages(directory)
    for seed, name in enumerate("abc"):
        file = onnx_models.heavy(directory / f"{name}.onnx", HEAVY_BYTES, seed)
        stages[name] = onnx(file, batch=(1, 2, 4, 8)).spec
    stages["again"] = onnx(directory / "a.onnx", name="again", batch=(1, 2, 4, 8)).spec
    return stages


def make_kept_world(name: str, stages: dict[str, StageSpec]) -> World:
    """A fresh worker of that kind that keeps a queue and its own memory."""
    memory_bytes = KEPT_BYTES[name]
    if name == "simulated":
        return SimWorld(stages, memory_bytes)
    if name == "cpu":
        spec = WorkerSpec("cpu-0", "cpu", ("onnx",), 2, memory_bytes, 0.0, "cooperative", keeps_queue=True)
        return ProcessWorld(stages, spec, [])
    spec = WorkerSpec("gpu-0", "gpu", ("onnx",), 0, memory_bytes, 0.0, "emulated", keeps_queue=True)
    return ProcessWorld(stages, spec, make_entries("gpu", stages))
