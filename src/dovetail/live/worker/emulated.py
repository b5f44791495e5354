"""The simulated device against the real clock: times of a GPU, values held from the first real run.

The first batch of a stage is computed for real on the processor, once, and its first result is what every later item
of that stage gets. So times are those of the emulated device, and shapes and fan-out are plausible, but answers are
not those of the inputs; every reply is labelled so. All models are in host memory from the beginning.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from ...control import BatchFailed, BatchFinished, Event, EvictModel, LoadFailed, LoadModel, ModelEvicted, ModelLoaded
from ...device import TokenAccount, TokenSettings
from ...errors import DovetailError
from ...profile.table import ProfileTable
from ...sim.device import SimDevice
from ...sim.sequences import catalogue_sequences
from ...state.run_batch import cause_of, task_of
from ...workflow.runners import ModelRunner, make_model
from ..links import wire
from ..links.wire import FromWorker, Hello, Run
from ..tensors.arena import ArenaFull
from .executor import MAX_DETAIL_CHARS, Answer, BadMessage, Values, WakeAt, counts, state_of
from .models import stage_failed

__all__ = ["EmulatedExecutor"]


class EmulatedExecutor:
    """Hands everything to a `SimDevice` and gives its answers real values."""

    #: All that it does, it does at once.
    lanes = 0

    def __init__(self, hello: Hello, values: Values, answer: Answer, wake_at: WakeAt) -> None:
        self._values = values
        self._answer = answer
        self._specs = {s.name: s for s in hello.stages}
        self._runners: dict[str, ModelRunner] = {}
        self._held: dict[str, Any] = {}
        self._runs: dict[int, Run] = {}
        #: Whom to tell of models.
        self._ingresses = {hello.ingress}
        self._now_ns = 0
        self._device = SimDevice(
            hello.worker,
            hello.spec,
            self._specs,
            ProfileTable(hello.entries),
            lambda at_ns, _device, payload: wake_at(at_ns, payload),
            sequences=catalogue_sequences(hello.stages) if hello.kernels != "never" else None,
            account=TokenAccount(TokenSettings(mode=hello.quotas)),
        )

    def introduce(self) -> tuple[list[FromWorker], wire.Ready]:
        """What goes before the introduction, and the introduction."""
        return [], wire.Ready(os.getpid())

    def load(self, message: wire.Load, ingress: int, now_ns: int) -> None:
        """Takes as long as the weights take to the emulated device, once the file has been read here."""
        self._now_ns = now_ns
        try:
            self._read(message.stage)
        except DovetailError as error:
            self._answer(ingress, wire.LoadFailure(message.stage, str(error)[:MAX_DETAIL_CHARS], message.cause))
            return
        load = LoadModel(task_of(ingress, message.cause), 0, message.stage, message.keep)
        self._report(self._device.take(load, now_ns))

    def _read(self, stage: str) -> None:
        """The model in the processor's memory, until its first result is there."""
        if self._specs[stage].kind in ("onnx", "torch") and stage not in self._held and stage not in self._runners:
            self._runners[stage] = make_model(self._specs[stage])

    def evict(self, message: wire.Evict, ingress: int, now_ns: int) -> None:
        """A model is not wanted any more; a batch that was taken before still has it."""
        self._now_ns = now_ns
        reason = message.reason or "the controller wants it gone"
        evict = EvictModel(task_of(ingress, message.cause), 0, message.stage, reason)
        self._report(self._device.take(evict, now_ns))

    def run(self, message: Run, now_ns: int) -> None:
        """Hand the batch to the simulated device."""
        self._now_ns = now_ns
        batch = message.batch
        task = task_of(batch.ingress, batch.batch)
        if task in self._runs:
            raise BadMessage(f"batch {batch.batch} of ingress {batch.ingress} was taken before")
        self._runs[task] = message
        if batch.ingress:
            batch = msgspec.structs.replace(batch, cause=task_of(batch.ingress, batch.cause))
        self._report(self._device.take(batch, now_ns))

    def join(self, ingress: int) -> None:
        """One more to tell."""
        self._ingresses.add(ingress)

    def owes(self, ingress: int) -> bool:
        """Whether a batch of an ingress has not ended."""
        return any(message.batch.ingress == ingress for message in self._runs.values())

    def leave(self, ingress: int, now_ns: int) -> None:
        """An ingress is gone: what it asked for and has not begun is withdrawn, the rest ends unheard."""
        self._now_ns = now_ns
        self._ingresses.discard(ingress)
        for task in [t for t, message in self._runs.items() if message.batch.ingress == ingress]:
            events = self._device.withdraw(task, now_ns)
            if self._device.machine.task(task) is None:
                del self._runs[task]
            self._report(events)

    def wake(self, payload: object, now_ns: int) -> None:
        """The simulated device asked for this time."""
        self._now_ns = now_ns
        self._report(self._device.wake(payload, now_ns))

    def told(self, message: wire.Recut | wire.Watch | wire.Standing, ingress: int, now_ns: int) -> None:
        """It has only times, its batches are all that there is to see, and a slice begins anew where it moves to."""

    def close(self) -> None:
        """Nothing is to be kept."""

    def _report(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, BatchFinished | BatchFailed):
                self._answered(event)
                continue
            for ingress in self._ingresses:
                # A step of another ingress means nothing to this one.
                cause = cause_of(event.cause, ingress)
                message: FromWorker
                if isinstance(event, ModelLoaded):
                    message = wire.Loaded(event.stage, event.nbytes, cause)
                elif isinstance(event, LoadFailed):
                    message = wire.LoadFailure(event.stage, event.detail, cause)
                else:
                    assert isinstance(event, ModelEvicted)
                    message = wire.Evicted(event.weights, event.nbytes, event.reason, cause)
                self._answer(ingress, message)
        if events:
            state = self.state(self._now_ns)
            for ingress in self._ingresses:
                self._answer(ingress, state)

    def _answered(self, event: BatchFinished | BatchFailed) -> None:
        message = self._runs.pop(task_of(event.ingress, event.batch))
        if isinstance(event, BatchFinished):
            self._answer(event.ingress, self._finished(event, message))
            return
        cause = message.batch.cause
        failed = wire.Failed(event.batch, cause, event.begin_ns, event.end_ns, event.reason, event.detail)
        self._answer(event.ingress, failed)

    def state(self, now_ns: int) -> wire.State:
        """What it says of itself."""
        device = self._device
        counts = (device.hits, device.misses, device.loads, device.evictions)
        return state_of(device.machine, now_ns, counts, len(self._ingresses), self._values)

    def _finished(self, event: BatchFinished, message: Run) -> FromWorker:
        batch, begin_ns, end_ns = message.batch, event.begin_ns, event.end_ns
        try:
            values = [self._value(message)] * len(message.counted)
            counted = counts(values, message.counted)
            results = self._values.store(values, ingress=batch.ingress)
        except ArenaFull as error:
            return wire.Failed(batch.batch, batch.cause, begin_ns, end_ns, "no_memory", str(error))
        except Exception as error:
            return wire.Failed(batch.batch, batch.cause, begin_ns, end_ns, "error", stage_failed(batch.stage, error))
        return wire.Done(batch.batch, batch.cause, begin_ns, end_ns, results, counted, event.busy_ns)

    def _value(self, message: Run) -> Any:
        """What every item of the stage gets: the result of the first one."""
        stage = message.batch.stage
        if stage not in self._held:
            self._read(stage)
            if stage in self._runners:
                columns = [column[:1] for column in self._values.columns(message)]
                self._held[stage] = self._runners[stage].run(columns)[0]
                del self._runners[stage]
            else:
                self._held[stage] = np.zeros(1, dtype=np.float32)
        return self._held[stage]
