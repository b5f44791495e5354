"""A device whose contention nobody is told: models, arrivals, and the batches that come of them, as samples.

Rules of this file
- The truth is at the level of kernels. A model is a row of kernels bounded by arithmetic or by memory, and rates are
  those of `sim.contention` for the kernels that run together, times how sensitive the victim and how rough the others
  are: numbers that no predictor sees.
- A predictor sees what a profile would tell: time alone, share, items, and roughly which part of it is memory-bound.
- The same seed gives the same samples. A scenario changes one thing after `before` batches.
- Batches start in the order of arrival, as many at once as `at_once` says; the device is not partitioned.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec

from ...predict.interference import Beside, Load, quarter_octaves
from ...sim.contention import slowdown
from ...sim.fluid import Flow, Fluid
from ...units import MS, SECOND
from ..rivals.interference.common import Sample

__all__ = ["CHANGES", "Change", "World", "samples"]

Change = Literal["none", "new model", "doubled rate", "other batch mix", "more at once"]
CHANGES: tuple[Change, ...] = ("new model", "doubled rate", "other batch mix", "more at once")

_FOREVER = 1 << 62
_SHARES = (30, 50, 80, 100)
#: Single batches deviate by so much: median within-run deviation of iGniter's co-located batches is 0.9 %.
_SCATTER = 0.01


class World(msgspec.Struct, frozen=True):
    """What is simulated: everything that a predictor is not told follows from `seed`."""

    seed: int
    change: Change = "none"
    before: int = 1000
    after: int = 400
    models: int = 8
    at_once: int = 4
    #: Of what the device can do with one at a time.
    load: float = 1.0


class _Model:
    """One model: what a profile tells, and what it does not."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.share_pct = rng.choice(_SHARES)
        self.item_ns = rng.uniform(2 * MS, 12 * MS)
        memory = rng.uniform(0.1, 0.9)
        #: (kind, part of the work) of each kernel.
        kinds = ["memory" if rng.random() < memory else "compute" for _ in range(rng.randint(4, 10))]
        parts = [rng.uniform(0.5, 1.5) for _ in kinds]
        self.kernels = [(kind, part / sum(parts)) for kind, part in zip(kinds, parts, strict=True)]
        true = sum(part for kind, part in self.kernels if kind == "memory")
        self.memory = min(1.0, max(0.0, true + rng.gauss(0, 0.05)))
        self.cache = min(1.0, max(0.0, 0.3 * true + rng.gauss(0.1, 0.05)))
        self.sensitive, self.rough = rng.uniform(0.6, 1.5), rng.uniform(0.6, 1.5)

    def solo_ns(self, items: int) -> int:
        return round(self.item_ns * (0.4 + 0.6 * items))

    def load(self, items: int) -> Load:
        solo_q = quarter_octaves(self.solo_ns(items))
        return Load(self.name, items, self.share_pct, solo_q, "", 1 - self.memory, self.cache, self.memory)


class _Batch:
    """A batch that runs: one kernel of it flows at a time."""

    def __init__(self, model: _Model, items: int, scatter: float) -> None:
        self.model = model
        self.flow = Flow()
        self.flow.share_pct = model.share_pct
        self.load = model.load(items)
        self.solo_ns = model.solo_ns(items)
        self.works = [(kind, round(self.solo_ns * scatter * part)) for kind, part in model.kernels]
        self.at = 0
        self.started_ns = 0
        self.known: tuple[Beside, ...] = ()
        self.queued: tuple[Beside, ...] = ()
        self.slots = 0
        self.beside: dict[int, tuple[_Batch, int, int]] = {}


def samples(world: World) -> list[Sample]:
    """All batches in the order of their ends."""
    return _Device(world).run()


class _Device:
    """The device, its queue and its clients."""

    def __init__(self, world: World) -> None:
        self.world = world
        rng = self.rng = random.Random(world.seed)
        self.models = [_Model(f"m{number}", rng) for number in range(world.models)]
        self.items = (1, 2, 4)
        self.at_once = world.at_once
        self.pace = 1.0
        self.heap: list[tuple[int, int, object]] = []
        self.order = 0
        self.fluid = Fluid(self._schedule, None, self._rates)
        self.running: list[_Batch] = []
        self.batch_of: dict[Flow, _Batch] = {}
        self.queue: deque[tuple[_Model, int]] = deque()
        self.out: list[Sample] = []

    def _schedule(self, at_ns: int, _owner: object, what: object) -> None:
        self.order += 1
        heapq.heappush(self.heap, (at_ns, self.order, what))

    def _rates(self, running: Sequence[Flow]) -> list[float]:
        """The truth: rates of those who run together."""
        rates = []
        for flow in running:
            extra = 0.0
            for other in running:
                if other is not flow:
                    pair = slowdown(flow.kind, flow.share_pct, other.kind, other.share_pct) - 1
                    extra += pair * self.batch_of[flow].model.sensitive * self.batch_of[other].model.rough
            rates.append(1 / (1 + extra))
        return rates

    def _next_arrival(self, now_ns: int) -> None:
        mean_items = sum(self.items) / len(self.items)
        work_ns = sum(m.solo_ns(1) * (0.4 + 0.6 * mean_items) for m in self.models) / len(self.models)
        rate = self.world.load * self.pace / work_ns
        self._schedule(now_ns + round(self.rng.expovariate(rate)), None, "arrival")

    def run(self) -> list[Sample]:
        world = self.world
        wanted = world.before + (world.after if world.change != "none" else 0)
        self._next_arrival(0)
        changed = False
        while len(self.out) < wanted:
            at_ns, _, what = heapq.heappop(self.heap)
            assert at_ns < 100_000 * SECOND
            if what == "arrival":
                # A queue that is long already grows no longer: clients are refused.
                if len(self.queue) < 4 * self.at_once:
                    self.queue.append((self.rng.choice(self.models), self.rng.choice(self.items)))
                self._next_arrival(at_ns)
            elif isinstance(what, Flow) and what.end_ns == at_ns and what in self.batch_of:
                self._kernel_ended(self.batch_of[what], at_ns)
            if not changed and world.change != "none" and len(self.out) >= world.before:
                changed = True
                self._change()
            while self.queue and len(self.running) < self.at_once:
                model, items = self.queue.popleft()
                self._start(_Batch(model, items, self.rng.lognormvariate(0, _SCATTER)), at_ns)
        return self.out[:wanted]

    def _change(self) -> None:
        match self.world.change:
            case "new model":
                self.models = [*self.models[1:], _Model("new", self.rng)]
            case "doubled rate":
                self.pace = 2.0
            case "other batch mix":
                self.items = (4, 8, 16)
            case "more at once":
                self.at_once *= 2
                self.pace = 2.0

    def _start(self, batch: _Batch, now_ns: int) -> None:
        batch.started_ns = now_ns
        batch.known = tuple(Beside(other.load, 0, self._left_ns(other, now_ns)) for other in self.running)
        batch.queued = tuple(Beside(model.load(items), 0, model.solo_ns(items)) for model, items in self.queue)
        batch.slots = self.at_once
        for other in self.running:
            batch.beside[id(other)] = other, now_ns, _FOREVER
            other.beside[id(batch)] = batch, now_ns, _FOREVER
        self.running.append(batch)
        self.batch_of[batch.flow] = batch
        self._begin_kernel(batch, now_ns)

    def _left_ns(self, batch: _Batch, now_ns: int) -> int:
        """Work alone that is left: how far it is can be told from its kernels."""
        left = sum(ns for _, ns in batch.works[batch.at :]) - self.fluid.done_ns(batch.flow, now_ns)
        return max(1, round(left))

    def _begin_kernel(self, batch: _Batch, now_ns: int) -> None:
        batch.flow.kind, work_ns = batch.works[batch.at]
        self.fluid.begin(batch.flow, work_ns, now_ns)

    def _kernel_ended(self, batch: _Batch, now_ns: int) -> None:
        self.fluid.end(batch.flow, now_ns)
        batch.at += 1
        if batch.at < len(batch.works):
            self._begin_kernel(batch, now_ns)
            return
        self.running.remove(batch)
        del self.batch_of[batch.flow]
        for other in self.running:
            there, since, _ = other.beside[id(batch)]
            other.beside[id(batch)] = there, since, now_ns
        begin = batch.started_ns
        beside = tuple(
            Beside(other.load, since - begin, end if end == _FOREVER else end - begin)
            for other, since, end in batch.beside.values()
        )
        self.out.append(
            Sample(
                "device", batch.load, batch.solo_ns, now_ns - begin, batch.known, beside, batch.queued, batch.slots
            )
        )
