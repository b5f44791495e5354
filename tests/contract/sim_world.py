"""The simulated worker behind the contract's small interface, and what all worlds have in common.

Rule of this file: nothing of `dovetail.live` is imported here, so that the contract of the simulated worker is a pure
test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Protocol

from tests import onnx_models

from dovetail import onnx
from dovetail.control import Event, EvictModel, LoadModel, RunBatch
from dovetail.control.actions import NEVER_NS
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.sim.device import SimDevice
from dovetail.sim.sequences import AHEAD, Kernel, KernelSequence
from dovetail.state import WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

#: Numbers of one item, and so the count of its result.
WIDTH = onnx_models.WIDTH
#: Profile of the simulated and the emulated device: (batch, time).
TIMES_NS = {"quick": {1: 2 * MS, 8: 5 * MS}, "slow": {1: 40 * MS, 8: 90 * MS}, "long": {1: 400 * MS, 8: 900 * MS}}
#: Size of a heavy model's file.
HEAVY_BYTES = 6_000_000
#: Kernels of every stage in the world that has some.
KERNELS = 20


def make_stages(directory: Path) -> dict[str, StageSpec]:
    """`quick` and `fragile` double their input at once, `slow` takes its time."""
    files = [onnx_models.double(directory / f"{name}.onnx") for name in ("quick", "fragile")]
    files.append(onnx_models.slow(directory / "slow.onnx"))
    return {s.name: s.spec for s in (onnx(file, batch=(1, 2, 4, 8)) for file in files)}


def make_long_stage(directory: Path) -> dict[str, StageSpec]:
    """`long` takes many times as long as `slow`: a model of many kernels."""
    file = onnx_models.slow(directory / "long.onnx", products=20, side=512)
    return {"long": onnx(file, batch=(1, 2, 4, 8)).spec}


def make_heavy_stages(directory: Path) -> dict[str, StageSpec]:
    """As `make_stages`, and `a`, `b`, `c` whose models double, too, and `again` with the model of `a`."""
    stages = make_stages(directory)
    for seed, name in enumerate("abc"):
        file = onnx_models.heavy(directory / f"{name}.onnx", HEAVY_BYTES, seed)
        stages[name] = onnx(file, batch=(1, 2, 4, 8)).spec
    stages["again"] = onnx(directory / "a.onnx", name="again", batch=(1, 2, 4, 8)).spec
    return stages


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


def even_kernels(stage: str, kernels: int = KERNELS) -> KernelSequence:
    """Kernels that take equally long each, all of them launched at once."""
    made = tuple(Kernel(f"{stage}-{i}", "compute", 100, 1_000, 0) for i in range(kernels))
    return KernelSequence(stage, made, AHEAD)


class World(Protocol):
    """A worker that can run `quick`, `fragile` and `slow`, none of them loaded."""

    #: Values of a batch that has finished, by its number; the simulated world has none.
    results: dict[int, list[Any]]

    def now_ns(self) -> int: ...
    def load(self, stage: str, *, keep: bool = True) -> None: ...
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
        priority: int = 1,
        objective_ns: int = 0,
        ingress: int = 0,
    ) -> None: ...
    def next_event(self) -> Event: ...
    def close(self) -> None: ...


class SimWorld:
    """A `SimDevice` in virtual time."""

    def __init__(self, stages: Mapping[str, StageSpec], *, memory_bytes: int = 0, kernels: bool = False) -> None:
        self.results: dict[int, list[Any]] = {}
        self._now_ns = 0
        self._heap: list[tuple[int, int, object]] = []
        self._events: deque[Event] = deque()
        self._sequence = 0
        spec = WorkerSpec("sim-0", "sim", ("onnx",), 0, memory_bytes, 0.0, "simulated", preempts=kernels)
        sequences = {name: even_kernels(name) for name in stages} if kernels else {}
        table = ProfileTable(make_entries("sim", stages))
        self.device = SimDevice(1, spec, stages, table, self._schedule, branching=self, sequences=sequences)

    def counts(self, items: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
        return (WIDTH,) * len(items)

    def _schedule(self, at_ns: int, _: SimDevice, payload: object) -> None:
        self._sequence += 1
        heappush(self._heap, (at_ns, self._sequence, payload))

    def now_ns(self) -> int:
        return self._now_ns

    def load(self, stage: str, *, keep: bool = True) -> None:
        self._events.extend(self.device.take(LoadModel(0, 1, stage, keep), self._now_ns))

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
        priority: int = 1,
        objective_ns: int = 0,
        ingress: int = 0,
    ) -> None:
        action = RunBatch(
            batch,
            batch,
            1,
            stage,
            tuple((i + 1, 0, 0) for i in range(items)),
            1,
            share_pct,
            earliest_ns,
            latest_ns,
            0,
            order,
            priority=priority,
            objective_ns=objective_ns,
            ingress=ingress,
        )
        self._events.extend(self.device.take(action, self._now_ns))
        self.device.machine.validate()

    def next_event(self) -> Event:
        while not self._events:
            self._now_ns, _, payload = heappop(self._heap)
            self._events.extend(self.device.wake(payload, self._now_ns))
            self.device.machine.validate()
        return self._events.popleft()

    def close(self) -> None:
        pass
