"""The simulated worker behind the contract's small interface.

Rule of this file: nothing of `dovetail.live` is imported here, so that the contract of the simulated worker is a pure
test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from tests.contract.stages import DIVISIBLE, WIDTH, make_entries

from dovetail.control import BatchFailed, BatchFinished, Event, EvictModel, LoadModel, RunBatch
from dovetail.profile.table import ProfileTable
from dovetail.sim.device import SimDevice
from dovetail.sim.sequences import Kernel, KernelSequence
from dovetail.state import WorkerSpec
from dovetail.state.run_batch import task_of
from dovetail.workflow.graph import StageSpec

__all__ = ["SimWorld", "World"]

#: Kernels of a batch that is divisible.
KERNELS = 20


class World(Protocol):
    """A worker, asked as a controller asks it; what it says is heard as the controller's events.

    Ingress 0 is here from the beginning.
    """

    #: Values of a batch that has finished, by ingress and number; the simulated world has none.
    results: dict[tuple[int, int], list[Any]]

    def now_ns(self) -> int: ...
    def run(self, batch: RunBatch, value: Any = None) -> None: ...
    def load(self, stage: str, ingress: int, *, keep: bool) -> None: ...
    def evict(self, stage: str, ingress: int) -> None: ...
    def join(self, ingress: int) -> Sequence[str]:
        """Another ingress comes; the models that are here now."""

    def leave(self, ingress: int) -> None:
        """It is gone, and hears nothing any more."""

    def next_event(self) -> tuple[int, Event]:
        """What an ingress hears next."""

    def close(self) -> None: ...


def even_kernels(stage: str) -> KernelSequence:
    """Kernels that take equally long each, all of them launched at once."""
    made = tuple(Kernel(f"{stage}-{i}", "compute", 100, 1_000) for i in range(KERNELS))
    return KernelSequence(stage, made)


class SimWorld:
    """A `SimDevice` in virtual time."""

    def __init__(self, stages: Mapping[str, StageSpec], *, memory_bytes: int, kernels: bool) -> None:
        self.results: dict[tuple[int, int], list[Any]] = {}
        self._now_ns = 0
        self._heap: list[tuple[int, int, object]] = []
        self._heard: deque[tuple[int, Event]] = deque()
        self._ingresses = {0}
        self._open: set[int] = set()
        self._sequence = 0
        spec = WorkerSpec("sim-0", "sim", ("onnx",), 0, memory_bytes, 0.0, "simulated", preempts=kernels)
        sequences = {name: even_kernels(name) for name in DIVISIBLE} if kernels else {}
        table = ProfileTable(make_entries("sim", stages))
        self._device = SimDevice(1, spec, stages, table, self._schedule, branching=self, sequences=sequences)

    def counts(self, items: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
        return (WIDTH,) * len(items)

    def _schedule(self, at_ns: int, _: SimDevice, payload: object) -> None:
        self._sequence += 1
        heappush(self._heap, (at_ns, self._sequence, payload))

    def _tell(self, events: Sequence[Event]) -> None:
        self._device.machine.validate()
        for event in events:
            if isinstance(event, BatchFinished | BatchFailed):
                self._open.remove(task_of(event.ingress, event.batch))
                if event.ingress in self._ingresses:
                    self._heard.append((event.ingress, event))
            else:
                self._heard.extend((ingress, event) for ingress in sorted(self._ingresses))

    def now_ns(self) -> int:
        return self._now_ns

    def run(self, batch: RunBatch, value: Any = None) -> None:
        self._open.add(task_of(batch.ingress, batch.batch))
        self._tell(self._device.take(batch, self._now_ns))

    def load(self, stage: str, ingress: int, *, keep: bool) -> None:
        self._tell(self._device.take(LoadModel(0, 1, stage, keep), self._now_ns))

    def evict(self, stage: str, ingress: int) -> None:
        self._tell(self._device.take(EvictModel(0, 1, stage, "a test says so"), self._now_ns))

    def join(self, ingress: int) -> Sequence[str]:
        self._ingresses.add(ingress)
        return self._device.row(self._now_ns).resident

    def leave(self, ingress: int) -> None:
        self._ingresses.discard(ingress)
        self._heard = deque(pair for pair in self._heard if pair[0] != ingress)
        for task in sorted(t for t in self._open if task_of(ingress, 0) <= t < task_of(ingress + 1, 0)):
            events = self._device.withdraw(task, self._now_ns)
            if self._device.machine.task(task) is None:
                self._open.discard(task)
            self._tell(events)

    def next_event(self) -> tuple[int, Event]:
        while not self._heard:
            self._now_ns, _, payload = heappop(self._heap)
            self._tell(self._device.wake(payload, self._now_ns))
        return self._heard.popleft()

    def close(self) -> None:
        pass
