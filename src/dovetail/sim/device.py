"""The simulated device: a worker that takes its times from a profile.

It keeps the worker contract to the letter (tests/contract runs the same suite against it and against real worker
processes): it starts a batch inside its window or refuses it, answers every batch exactly once, never runs more
than its whole share, and runs nothing whose model it does not hold. It has no clock of its own; whoever drives it
calls `wake` at the times it asks for, be they virtual (`sim`) or real (`live`, as an emulated device).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

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
from ..device import Arbiter, KernelFinished, KernelReady, StartKernel
from ..profile.table import ProfileTable
from ..state import WorkerSpec
from ..state.worker import FULL_SHARE
from ..units import MS
from ..workflow.graph import StageSpec

__all__ = ["Branching", "SimDevice"]

#: Run time of a stage without a profile, per item. Python stages of a catalogue workflow that nobody measured.
UNPROFILED_NS = 1 * MS

#: (when, what to hand to `wake` then)
Schedule = Callable[[int, "SimDevice", object], None]


class Branching(Protocol):
    """Says how many elements a simulated result has, and whether a simulated condition holds."""

    def counts(self, items: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
        """For each item (request, node, index) in turn, the counts of the node's counted outputs."""
        ...


class _Run(msgspec.Struct, eq=False):
    """A batch that was taken and is not answered yet."""

    action: RunBatch
    counts: tuple[int, ...]
    #: -1 until it begins.
    begin_ns: int = -1


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
        #: It was lost: nobody hears of it any more.
        self.gone = False
        #: Time that it was at work, weighed by share: 100 ns at 50 % are 5,000.
        self.busy_pct_ns = 0
        self._stages = stages
        self._table = table
        self._schedule = schedule
        self._rng = rng
        self._branching = branching
        self._arbiter = arbiter
        self._loaded: dict[str, int] = {}
        #: Stage -> sigma of the logarithm of its run times.
        self._sigmas: dict[str, float] = {}
        #: Batches that have not begun, in the order in which they were taken.
        self._waiting: dict[int, _Run] = {}
        #: Share that no batch runs on; an arbiter keeps its own account.
        self._free_pct = FULL_SHARE

    def take(self, action: Action, now_ns: int) -> list[Event]:
        """Carry out an action; what can be answered at once is returned."""
        if type(action) is RunBatch:
            if action.stage not in self._loaded:
                return [BatchFailed(now_ns, action.cause, action.batch, now_ns, now_ns, "not_loaded", action.stage)]
            branching = self._branching
            # Asked now, while the requests are surely open; by the end of the batch some may have been closed.
            run = _Run(action, () if branching is None else branching.counts(action.items))
            if action.earliest_ns > now_ns:
                self._schedule(action.earliest_ns, self, run)
                return []
            return self._ready(run, now_ns)
        if isinstance(action, LoadModel):
            entry = self._table.entry(action.stage, self.spec.kind)
            load_ns = 0 if action.stage in self._loaded or entry is None else entry.load_ns
            self._schedule(now_ns + load_ns, self, action)
        elif isinstance(action, EvictModel):
            self._loaded.pop(action.stage, None)
        return []

    def wake(self, payload: object, now_ns: int) -> list[Event]:
        """A time that this device asked for has come."""
        if type(payload) is _Run:
            return self._ready(payload, now_ns) if payload.begin_ns < 0 else self._finish(payload, now_ns)
        assert isinstance(payload, LoadModel)
        nbytes = self._stages[payload.stage].weights_bytes
        self._loaded[payload.stage] = nbytes
        return [ModelLoaded(now_ns, payload.cause, self.ident, payload.stage, nbytes)]

    def _ready(self, run: _Run, now_ns: int) -> list[Event]:
        """Without an arbiter: first come, first served, while shares are free. The controller overdraws none."""
        action = run.action
        if self._arbiter is not None:
            self._waiting[action.batch] = run
            started = self._arbiter.step(KernelReady(now_ns, action.batch, 0, action.share_pct))
            return self._begin_started(started, now_ns)
        events: list[Event] = []
        if self._waiting or action.share_pct > self._free_pct:
            self._waiting[action.batch] = run
        elif self._begin(run, now_ns, events):
            self._free_pct -= action.share_pct
        return events

    def _begin_first(self, now_ns: int) -> list[Event]:
        """Without an arbiter: whatever fits of what waits, in order."""
        events: list[Event] = []
        for ident in list(self._waiting):
            share_pct = self._waiting[ident].action.share_pct
            if share_pct > self._free_pct:
                break
            if self._begin(self._waiting.pop(ident), now_ns, events):
                self._free_pct -= share_pct
        return events

    def _begin_started(self, started: list[StartKernel], now_ns: int) -> list[Event]:
        """With an arbiter: what it lets through. A batch is one kernel to it."""
        events: list[Event] = []
        for kernel in started:
            if not self._begin(self._waiting.pop(kernel.task), now_ns, events):
                assert self._arbiter is not None
                started.extend(self._arbiter.step(KernelFinished(now_ns, kernel.task, 0)))
        return events

    def _begin(self, run: _Run, now_ns: int, events: list[Event]) -> bool:
        """Start a batch, or refuse it if its window has closed; whether it was started."""
        action = run.action
        if now_ns > action.latest_ns:
            events.append(BatchFailed(now_ns, action.cause, action.batch, now_ns, now_ns, "too_late"))
            return False
        run.begin_ns = now_ns
        self._schedule(now_ns + self.run_time_ns(action), self, run)
        return True

    def run_time_ns(self, action: RunBatch) -> int:
        """How long the batch takes: the profile's time, scattered log-normally by the profile's spread."""
        stage = action.stage
        mean = self._table.latency_ns(stage, self.spec.kind, len(action.items), action.cpus, action.share_pct)
        if mean is None:
            return UNPROFILED_NS * len(action.items)
        if self._rng is not None:
            sigma = self._sigmas.get(stage)
            if sigma is None:
                spread = self._table.entries[stage, self.spec.kind].spread
                sigma = self._sigmas[stage] = math.sqrt(math.log1p(spread * spread))
            if sigma:
                mean = round(mean * math.exp(self._rng.gauss(-sigma * sigma / 2, sigma)))
        return mean if mean > 1 else 1

    def _finish(self, run: _Run, now_ns: int) -> list[Event]:
        action, begin_ns = run.action, run.begin_ns
        self.busy_pct_ns += (now_ns - begin_ns) * action.share_pct
        batch = action.batch
        finished: list[Event] = [BatchFinished(now_ns, action.cause, batch, begin_ns, now_ns, run.counts)]
        if self._arbiter is None:
            self._free_pct += action.share_pct
            return finished + self._begin_first(now_ns) if self._waiting else finished
        return finished + self._begin_started(self._arbiter.step(KernelFinished(now_ns, batch, 0)), now_ns)
