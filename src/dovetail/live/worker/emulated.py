"""The simulated device against the real clock: times of a GPU, values held from the first real run.

The first batch of a stage is computed for real on the processor, once, and its first result is what every later item
of that stage gets. So times are those of the emulated device, and shapes and fan-out are plausible, but answers are
not those of the inputs; every reply is labelled so. A device that keeps a queue has all models in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...control import (
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
from ...errors import DovetailError
from ...profile.table import ProfileTable
from ...sim.cached import CachedDevice
from ...sim.device import SimDevice
from ...workflow.runners import OnnxRunner
from ..links.wire import Done, Evicted, Failed, FromWorker, Hello, Load, Loaded, LoadFailure, Run, State
from ..tensors.arena import ArenaFull
from .executor import MAX_DETAIL_CHARS, Answer, Values, WakeAt, counts

__all__ = ["EmulatedExecutor"]


class EmulatedExecutor:
    """Hands everything to a `SimDevice` and gives its answers real values."""

    def __init__(self, hello: Hello, values: Values, answer: Answer, wake_at: WakeAt) -> None:
        self._values = values
        self._answer = answer
        self._specs = {s.name: s for s in hello.stages}
        self._runners: dict[str, OnnxRunner] = {}
        self._held: dict[str, Any] = {}
        self._runs: dict[int, Run] = {}
        self._now_ns = 0
        make = CachedDevice if hello.spec.keeps_queue else SimDevice
        self._device = make(
            hello.worker,
            hello.spec,
            self._specs,
            ProfileTable(hello.entries),
            lambda at_ns, _device, payload: wake_at(at_ns, payload),
        )

    def load(self, message: Load, now_ns: int) -> None:
        """Takes as long as the weights take to the emulated device, once the file has been read here."""
        self._now_ns = now_ns
        try:
            self._read(message.stage)
        except DovetailError as error:
            self._answer(LoadFailure(message.stage, str(error)[:MAX_DETAIL_CHARS], message.cause))
            return
        self._report(self._device.take(LoadModel(message.cause, 0, message.stage), now_ns))

    def _read(self, stage: str) -> None:
        """The model in the processor's memory, until its first result is there."""
        if self._specs[stage].kind == "onnx" and stage not in self._held and stage not in self._runners:
            self._runners[stage] = OnnxRunner(self._specs[stage], threads=1)

    def evict(self, stage: str) -> None:
        """Let a stage's model go; a batch that was taken before still has it."""
        self._report(self._device.take(EvictModel(0, 0, stage, "the controller wants it gone"), self._now_ns))

    def run(self, message: Run, now_ns: int) -> None:
        """Hand the batch to the simulated device."""
        self._now_ns = now_ns
        if message.stage not in self._specs:
            self._answer(Failed(message.batch, message.cause, now_ns, now_ns, "not_loaded", message.stage))
            return
        self._runs[message.batch] = message
        self._report(
            self._device.take(
                RunBatch(
                    message.cause,
                    message.batch,
                    0,
                    message.stage,
                    ((0, 0, 0),) * len(message.counted),
                    message.cpus,
                    message.share_pct,
                    message.earliest_ns,
                    message.latest_ns,
                    message.expected_ns,
                    message.order,
                    "",
                    message.accept_ns,
                ),
                now_ns,
            )
        )

    def wake(self, payload: object, now_ns: int) -> None:
        """The simulated device asked for this time."""
        self._now_ns = now_ns
        self._report(self._device.wake(payload, now_ns))

    def _report(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ModelLoaded):
                self._answer(Loaded(event.stage, event.nbytes, event.cause))
            elif isinstance(event, LoadFailed):
                self._answer(LoadFailure(event.stage, event.detail, event.cause))
            elif isinstance(event, ModelEvicted):
                self._answer(Evicted(event.weights, event.nbytes, event.reason, event.cause))
            elif isinstance(event, BatchFinished):
                self._answer(self._finished(event))
            elif isinstance(event, BatchFailed):
                del self._runs[event.batch]
                self._answer(
                    Failed(event.batch, event.cause, event.begin_ns, event.end_ns, event.reason, event.detail)
                )

        if events and isinstance(self._device, CachedDevice):
            self._answer(self._state(self._device))

    def _state(self, device: CachedDevice) -> State:
        cache = device.desk.cache
        return State(
            device.row(self._now_ns),
            device.hits,
            device.misses,
            device.loads,
            device.evictions,
            cache.used_bytes,
            cache.usable_bytes,
        )

    def _finished(self, event: BatchFinished) -> FromWorker:
        message = self._runs.pop(event.batch)
        begin_ns, end_ns = event.begin_ns, event.end_ns
        try:
            values = [self._value(message)] * len(message.counted)
            counted = counts(values, message.counted)
            results = self._values.store(values)
        except ArenaFull as error:
            return Failed(message.batch, message.cause, begin_ns, end_ns, "no_memory", str(error))
        except Exception as error:
            detail = f"stage {message.stage!r}: {error}" if message.stage not in str(error) else str(error)
            return Failed(message.batch, message.cause, begin_ns, end_ns, "error", detail[:MAX_DETAIL_CHARS])
        return Done(message.batch, message.cause, begin_ns, end_ns, results, counted)

    def _value(self, message: Run) -> Any:
        """What every item of the stage gets: the result of the first one."""
        stage = message.stage
        if stage not in self._held:
            self._read(stage)
            if stage in self._runners:
                columns = [column[:1] for column in self._values.columns(message)]
                self._held[stage] = self._runners[stage].run(columns)[0]
                del self._runners[stage]
            else:
                self._held[stage] = np.zeros(1, dtype=np.float32)
        return self._held[stage]
