"""The simulated device: a worker that takes its times from a profile.

It keeps the worker contract to the letter (tests/contract runs the same suite against it and against real worker
processes): it starts a batch inside its window or refuses it, answers every batch exactly once, never runs more
than its whole share, and runs nothing whose model it does not hold. It has no clock of its own; whoever drives it
calls `wake` at the times it asks for, be they virtual (`sim`) or real (`live`, as an emulated device).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Protocol

from ..control import (
    Action,
    BatchFailed,
    BatchFinished,
    Event,
    EvictModel,
    LoadModel,
    ModelLoaded,
    RunBatch,
)
from ..device import Arbiter, FirstComeArbiter, KernelFinished, KernelReady
from ..profile.table import ProfileTable
from ..state import WorkerSpec
from ..units import MS
from ..workflow.graph import StageSpec

__all__ = ["Branching", "SimDevice"]

#: Run time of a stage without a profile, per item. Python stages of a catalogue workflow that nobody measured.
UNPROFILED_NS = 1 * MS

#: (when, what to hand to `wake` then)
Schedule = Callable[[int, "SimDevice", object], None]


class Branching(Protocol):
    """Says how many elements a simulated result has, and whether a simulated condition holds."""

    def counts(self, request: int, node: int) -> tuple[int, ...]:
        """The counts of the node's counted outputs for one item."""
        ...


class SimDevice:
    """One simulated worker."""

    def __init__(
        self,
        ident: int,
        spec: WorkerSpec,
        stages: Mapping[str, StageSpec],
        table: ProfileTable,
        schedule: Schedule,
        *,
        rng: random.Random | None = None,
        branching: Branching | None = None,
        arbiter: Arbiter | None = None,
    ) -> None:
        self.ident = ident
        self.spec = spec
        self._stages = stages
        self._table = table
        self._schedule = schedule
        self._rng = rng
        self._branching = branching
        self._arbiter: Arbiter = arbiter or FirstComeArbiter()
        self._loaded: dict[str, int] = {}
        #: Batches that were taken and not yet answered, with the time they began (-1: not yet).
        self._open: dict[int, list[RunBatch | int]] = {}

    def take(self, action: Action, now_ns: int) -> list[Event]:
        """Carry out an action; what can be answered at once is returned."""
        if type(action) is RunBatch:
            if action.stage not in self._loaded:
                return [BatchFailed(now_ns, action.cause, action.batch, now_ns, now_ns, "not_loaded", action.stage)]
            self._open[action.batch] = [action, -1]
            if action.earliest_ns > now_ns:
                self._schedule(action.earliest_ns, self, action)
                return []
            return self._ready(action, now_ns)
        if isinstance(action, LoadModel):
            entry = self._table.entry(action.stage, self.spec.kind)
            load_ns = 0 if action.stage in self._loaded or entry is None else entry.load_ns
            self._schedule(now_ns + load_ns, self, action)
        elif isinstance(action, EvictModel):
            self._loaded.pop(action.stage, None)
        return []

    def wake(self, payload: object, now_ns: int) -> list[Event]:
        """A time that this device asked for has come."""
        if type(payload) is int:
            return self._finish(payload, now_ns)
        if type(payload) is RunBatch:
            return self._ready(payload, now_ns)
        assert isinstance(payload, LoadModel)
        nbytes = self._stages[payload.stage].weights_bytes
        self._loaded[payload.stage] = nbytes
        return [ModelLoaded(now_ns, payload.cause, self.ident, payload.stage, nbytes)]

    def _ready(self, action: RunBatch, now_ns: int) -> list[Event]:
        started = self._arbiter.step(KernelReady(now_ns, action.batch, 0, action.share_pct))
        return self._begin(started, now_ns) if started else []

    def _begin(self, started: list[object] | list, now_ns: int) -> list[Event]:  # type: ignore[type-arg]
        """Start the batches that the arbiter lets through; those whose window has closed are refused."""
        events: list[Event] = []
        queue = list(started)
        while queue:
            ident = queue.pop(0).task
            entry = self._open[ident]
            action = entry[0]
            assert isinstance(action, RunBatch)
            if now_ns > action.latest_ns:
                del self._open[ident]
                events.append(BatchFailed(now_ns, action.cause, ident, now_ns, now_ns, "too_late"))
                queue.extend(self._arbiter.step(KernelFinished(now_ns, ident, 0)))
                continue
            entry[1] = now_ns
            self._schedule(now_ns + self.run_time_ns(action), self, ident)
        return events

    def run_time_ns(self, action: RunBatch) -> int:
        """How long the batch takes: the profile's time, scattered log-normally by the profile's spread."""
        items = len(action.items)
        kind = self.spec.kind
        mean = self._table.latency_ns(action.stage, kind, items, action.cpus, action.share_pct)
        if mean is None:
            return UNPROFILED_NS * items
        if self._rng is not None:
            spread = self._table.entries[action.stage, kind].spread
            if spread > 0.0:
                sigma = math.sqrt(math.log1p(spread * spread))
                mean = round(mean * math.exp(self._rng.gauss(-sigma * sigma / 2, sigma)))
        return mean if mean > 1 else 1

    def _finish(self, ident: int, now_ns: int) -> list[Event]:
        action, begin = self._open.pop(ident)
        assert isinstance(action, RunBatch) and isinstance(begin, int)
        counts: tuple[int, ...] = ()
        if self._branching is not None:
            counts = tuple(
                count for request, node, _ in action.items for count in self._branching.counts(request, node)
            )
        finished: list[Event] = [BatchFinished(now_ns, action.cause, ident, begin, now_ns, counts)]
        started = self._arbiter.step(KernelFinished(now_ns, ident, 0))
        return finished + self._begin(started, now_ns) if started else finished
