"""The simulated device against the real clock: times of a GPU, values held from the first real run.

The first batch of a stage is computed for real on the processor, once, and its first result is what every later item
of that stage gets. So times are those of the emulated device, and shapes and fan-out are plausible, but answers are
not those of the inputs; every reply is labelled so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..control import BatchFailed, BatchFinished, Event, EvictModel, LoadModel, ModelLoaded, RunBatch
from ..errors import DovetailError
from ..profile.table import ProfileTable
from ..sim.device import SimDevice
from ..workflow.runners import OnnxRunner
from .arena import ArenaFull
from .executor import MAX_DETAIL_CHARS, Answer, Values, WakeAt, counts
from .wire import Done, Failed, FromWorker, Hello, Load, Loaded, LoadFailure, Run

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
        self._device = SimDevice(
            hello.worker,
            hello.spec,
            self._specs,
            ProfileTable(hello.entries),
            lambda at_ns, _device, payload: wake_at(at_ns, payload),
        )

    def load(self, message: Load, now_ns: int) -> None:
        """Takes as long as the weights take to the emulated device, once the file has been read here."""
        spec = self._specs[message.stage]
        try:
            if spec.kind == "onnx" and message.stage not in self._held:
                self._runners[message.stage] = OnnxRunner(spec, threads=1)
        except DovetailError as error:
            self._answer(LoadFailure(message.stage, str(error)[:MAX_DETAIL_CHARS], message.cause))
            return
        self._report(self._device.take(LoadModel(message.cause, 0, message.stage), now_ns))

    def evict(self, stage: str) -> None:
        """Let a stage's model go; a batch that was taken before still has it."""
        self._report(self._device.take(EvictModel(0, 0, stage, ""), 0))

    def run(self, message: Run, now_ns: int) -> None:
        """Hand the batch to the simulated device."""
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
                    0,
                ),
                now_ns,
            )
        )

    def wake(self, payload: object, now_ns: int) -> None:
        """The simulated device asked for this time."""
        self._report(self._device.wake(payload, now_ns))

    def _report(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ModelLoaded):
                self._answer(Loaded(event.stage, event.nbytes, event.cause))
            elif isinstance(event, BatchFinished):
                self._answer(self._finished(event))
            elif isinstance(event, BatchFailed):
                del self._runs[event.batch]
                self._answer(
                    Failed(event.batch, event.cause, event.begin_ns, event.end_ns, event.reason, event.detail)
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
            if stage in self._runners:
                columns = [column[:1] for column in self._values.columns(message)]
                self._held[stage] = self._runners[stage].run(columns)[0]
                del self._runners[stage]
            else:
                self._held[stage] = np.zeros(1, dtype=np.float32)
        return self._held[stage]
