"""The simulated worker that keeps a queue and its own memory (`WorkerSpec.keeps_queue`).

To whoever drives it, it is a `SimDevice`. It takes any batch at any time and brings the model itself; what to do when
is its desk's business (`place.desk`), the very one that live workers have, and how long it takes is the profile's.
A load from host memory takes `Entry.load_ns`; one from outside takes `cold_factor` times that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

import msgspec

from ..control import (
    Action,
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
from ..control.actions import NEVER_NS
from ..place.cache import ModelCache, names_of
from ..place.desk import Desk
from ..place.tickets import DeskAction, Evict, Load, Refuse, Rules, Start, Wake
from ..profile.table import ProfileTable
from ..state import WorkerRow, WorkerSpec
from ..workflow.graph import StageSpec
from .device import Branching, Schedule, SimDevice

__all__ = ["CachedDevice"]

#: Budget of a worker whose memory is not counted (`WorkerSpec.memory_bytes` of 0).
UNCOUNTED_BYTES = 1 << 62


class _Run(msgspec.Struct, eq=False):
    """A batch that was taken and is not answered yet."""

    action: RunBatch
    counts: tuple[int, ...]
    begin_ns: int = -1


class _Fetch(msgspec.Struct, eq=False):
    """A load on its way, and the action that led to it."""

    weights: str
    asked: RunBatch | LoadModel


class CachedDevice(SimDevice):
    """One simulated worker with a desk."""

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
        rules: Rules | None = None,
        reserve_bytes: int = 0,
        host_bytes: int | None = None,
        cold_factor: float = 1.0,
        starts_on_host: bool = True,
        unload_ns: Callable[[str], int] | None = None,
    ) -> None:
        """`unload_ns` is how long a model takes out of the device; it counts with `Rules.fetch_blocks` only.

        With `starts_on_host` every model is in host memory from the beginning, as in Compass, as far as `host_bytes`
        (None: no bound) go.
        """
        super().__init__(ident, spec, stages, table, schedule, rng=rng, branching=branching)
        rules = rules or Rules()
        #: Batches with a model that found it here when the device was free for them, as Compass counts; and the rest.
        self.hits = 0
        self.misses = 0
        #: Batches with a model that was already here when they were taken.
        self.here_when_taken = 0
        self.loads = 0
        self.evictions = 0
        #: It has run something.
        self.used = False
        self._cold_factor = cold_factor
        self._loads_ns: dict[str, int] = {}
        cache = ModelCache(
            spec.memory_bytes or UNCOUNTED_BYTES,
            reserve_bytes=reserve_bytes,
            host_bytes=host_bytes,
            eviction=rules.eviction,
            names=names_of(stages.values()),
        )
        for stage in stages.values():
            entry = table.entry(stage.name, spec.kind)
            if entry is not None:
                self._loads_ns.setdefault(stage.weights, entry.load_ns)
            if starts_on_host and stage.weights_bytes:
                cache.put_on_host(stage.weights, stage.weights_bytes)
        if unload_ns is None:
            self.desk = Desk(ident, cache, self.load_time_ns, rules)
        else:
            self.desk = Desk(ident, cache, self.load_time_ns, rules, unload_ns=unload_ns)
        self._runs: dict[int, _Run] = {}
        #: The last hint at each model, until it is loaded.
        self._hints: dict[str, LoadModel] = {}

    def row(self, now_ns: int) -> WorkerRow:
        """What it tells everybody about itself."""
        return self.desk.row(now_ns)

    def load_time_ns(self, weights: str, tier: str) -> int:
        """How long a load from host memory or from outside takes."""
        load_ns = self._loads_ns.get(weights, 0)
        return load_ns if tier == "host" else round(load_ns * self._cold_factor)

    def take(self, action: Action, now_ns: int) -> list[Event]:
        """Carry out an action; what can be answered at once is returned.

        A `LoadModel` is a hint: it is answered when it leads to a load, or if the model can never be held.
        """
        desk = self.desk
        if type(action) is RunBatch:
            stage = self._stages[action.stage]
            if stage.weights_bytes and desk.cache.tier(stage.weights) == "resident":
                self.here_when_taken += 1
            branching = self._branching
            # Asked now, while the requests are surely open; by the end of the batch some may have been closed.
            self._runs[action.batch] = _Run(action, () if branching is None else branching.counts(action.items))
            answers = desk.take(
                action.batch,
                stage.weights,
                stage.weights_bytes,
                action.share_pct,
                action.order,
                action.expected_ns,
                action.earliest_ns,
                0 if action.latest_ns >= NEVER_NS else action.latest_ns,
                now_ns,
                action.accept_ns,
            )
            return self._carry_out(answers, action, now_ns)
        if isinstance(action, LoadModel):
            stage = self._stages[action.stage]
            if problem := desk.cache.too_large(stage.weights, stage.weights_bytes):
                return [LoadFailed(now_ns, action.cause, self.ident, action.stage, problem)]
            self._hints[stage.weights] = action
            return self._carry_out(desk.hint(stage.weights, stage.weights_bytes, now_ns), action, now_ns)
        if isinstance(action, EvictModel):
            answers = desk.drop(self._stages[action.stage].weights, action.reason, now_ns)
            return self._carry_out(answers, action, now_ns)
        return []

    def wake(self, payload: object, now_ns: int) -> list[Event]:
        """A time that this device asked for has come."""
        if type(payload) is _Run:
            action = payload.action
            del self._runs[action.batch]
            self.busy_pct_ns += (now_ns - payload.begin_ns) * action.share_pct
            finished = BatchFinished(now_ns, action.cause, action.batch, payload.begin_ns, now_ns, payload.counts)
            return [finished, *self._carry_out(self.desk.ended(action.batch, now_ns), action, now_ns)]
        if type(payload) is _Fetch:
            self.loads += 1
            asked, nbytes = payload.asked, self.desk.cache.nbytes(payload.weights)
            self._hints.pop(payload.weights, None)
            loaded = ModelLoaded(now_ns, asked.cause, self.ident, asked.stage, nbytes)
            return [loaded, *self._carry_out(self.desk.loaded(payload.weights, now_ns), asked, now_ns)]
        return self._carry_out(self.desk.tick(now_ns), None, now_ns)

    def _carry_out(
        self, answers: Iterable[DeskAction], asked: RunBatch | LoadModel | EvictModel | None, now_ns: int
    ) -> list[Event]:
        """Do what the desk says; `asked` is what it was told by."""
        events: list[Event] = []
        for answer in answers:
            if type(answer) is Start:
                self._begin_run(answer, now_ns)
            elif type(answer) is Load:
                run = self._runs.get(answer.batch)
                wanted = self._hints[answer.weights] if run is None else run.action
                end_ns = now_ns + self.load_time_ns(answer.weights, answer.tier)
                self._schedule(end_ns, self, _Fetch(answer.weights, wanted))
            elif type(answer) is Evict:
                self.evictions += 1
                cause = self._cause(answer, asked)
                events.append(ModelEvicted(now_ns, cause, self.ident, answer.weights, answer.nbytes, answer.reason))
            elif type(answer) is Refuse:
                refused = self._runs.pop(answer.batch).action
                events.append(
                    BatchFailed(now_ns, refused.cause, refused.batch, now_ns, now_ns, answer.reason, answer.detail)
                )
            elif isinstance(answer, Wake):
                self._schedule(answer.at_ns, self, None)
        return events

    def _cause(self, evict: Evict, asked: RunBatch | LoadModel | EvictModel | None) -> int:
        """Of an eviction: the batch or the hint that needed the room, or the wish to have it gone."""
        action = self._hints.get(evict.newcomer, asked)
        if evict.batch in self._runs:
            action = self._runs[evict.batch].action
        return 0 if action is None else action.cause

    def _begin_run(self, start: Start, now_ns: int) -> None:
        run = self._runs[start.batch]
        action = run.action
        self.used = True
        if self._stages[action.stage].weights_bytes:
            if start.hit:
                self.hits += 1
            else:
                self.misses += 1
        run.begin_ns = now_ns + start.wait_ns
        self._schedule(run.begin_ns + self.run_time_ns(action), self, run)
