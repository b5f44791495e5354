"""Dovetail's own router: plan ahead, decide late, and let the worker say no.

Compass (`baselines.compass`) plans a request on arrival and adjusts single tasks when a queue has grown. Beyond it:
- the best worker is found without a look at all of them (`index`), so a decision does not grow with the cluster;
- a fetch is planned beside the wait for inputs, and the worker is told of it when the request arrives (`Hint`);
- every item is decided afresh when its inputs are there, joins too: one controller has the whole request, so there is
  nobody to agree with;
- what this controller has done and no row shows yet is counted (`belief`);
- a route carries the latest start it was meant for. A worker that is busier than believed refuses at once; that
  costs a message, teaches, and the item goes elsewhere;
- workers that are free already are taken by hash of controller, request and node, not by number, so that controllers
  with the same old view do not all run to the same worker;
- a worker's queue is ordered by what is left of the requests, with age counted in;
- idle memory is filled with copies of models whose holders are busy (`ahead`).

Rules of this file: integers decide; the same calls give the same answers; a request that has ended leaves nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from ..state import Batch, CompiledGraph, Config, Item, Request, Worker, WorkerRow
from ..state.worker import FULL_SHARE
from ..units import MS, SECOND
from ..workflow.graph import StageSpec
from .ahead import Ahead
from .belief import Belief
from .index import Candidate, Need, WorkerIndex
from .outline import Outline, Task, outline
from .router import Hint, Route
from .transfer import Delays

__all__ = ["DovetailRouter", "RouterSettings", "Times"]

#: A routed item runs alone on the whole device.
_WHOLE = Config(1, 1, FULL_SHARE)
#: Orders of classes must not overlap: later than any arrival plus any rest.
_CLASS_STEP = 1 << 62
_MASK = (1 << 64) - 1


class Times(Protocol):
    """The part of a predictor (`predict.Predictor`) that is asked here."""

    def duration_ns(self, stage: StageSpec, items: int, config: Config, worker: Worker) -> int:
        """Expected run time on `worker` as it is now."""
        ...


class RouterSettings(msgspec.Struct, frozen=True):
    """How the router routes; the defaults are the product, everything else is an ablation."""

    #: Plan on arrival, and tell workers which models they will need.
    hints: bool = True
    #: Estimate fetches beside the wait; otherwise behind it, as Compass does.
    overlap: bool = True
    #: Decide afresh at hand-over; otherwise the plan stands.
    afresh: bool = True
    #: Count what was sent and is in no row yet.
    corrections: bool = True
    #: Take one of the free workers by hash; otherwise the one that the index has first.
    spread: bool = True
    #: Refusals that an item may meet; the route after them has no window. 0 is no window at all.
    bounces: int = 3
    #: A worker may start an item this much later than expected before it refuses, and by this part of its run time.
    tolerance_ns: int = 20 * MS
    tolerance_pct: int = 10
    #: A planned worker is kept if another is not better by more than this.
    keep_ns: int = 5 * MS
    #: A request may be overtaken by one whose rest is shorter by d, if that arrived at most `favour` times d later. 0
    #: is first come, first served; the larger, the nearer to shortest rest first. Nobody waits for ever at any value.
    favour: int = 20
    #: Times its fetch that a model costs where another must be evicted for it. Compass: 2.
    evict_factor: int = 2
    #: Holders of a model that should be free beside those in use, where idle memory allows; 0 makes no copies.
    spares: int = 1
    #: Least time between two copies of one model.
    copy_every_ns: int = 100 * MS
    #: A fetch that was asked for and is in no row after its time and this is not believed any more.
    doubt_ns: int = 1 * SECOND


class _Kind:
    """Workers that are equal in everything but load and memory."""

    __slots__ = ("index", "sample")

    def __init__(self, sample: Worker) -> None:
        self.index = WorkerIndex()
        self.sample = sample


class _Open:
    """What is kept of a request: where its results are, where nodes were planned, how often items were refused."""

    __slots__ = ("made", "planned", "refused")

    def __init__(self) -> None:
        self.made: dict[int, set[int]] = {}
        self.planned: dict[int, int] = {}
        self.refused: dict[tuple[int, int], int] = {}


class _Chosen(msgspec.Struct, frozen=True, gc=False):
    """A decision: who, when it should start and end."""

    kind: int
    worker: int
    start_ns: int
    fetch_ns: int
    end_ns: int


class _Planned:
    """A worker as the plan at hand has changed it."""

    __slots__ = ("free_bytes", "free_ns", "resident")

    def __init__(self, free_ns: int, resident: frozenset[str], free_bytes: int) -> None:
        self.free_ns = free_ns
        self.resident = resident
        self.free_bytes = free_bytes


class DovetailRouter:
    """Answers where, for one ingress.

    `ingress` tells controllers apart that share workers; `home` is the worker that this one runs beside, 0 for none.
    `in_bytes` says how large a request's input is, by workflow and entry node; otherwise the entry's output stands in.
    """

    def __init__(
        self,
        times: Times,
        settings: RouterSettings | None = None,
        *,
        ingress: int = 0,
        home: int = 0,
        delays: Delays | None = None,
        in_bytes: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self.settings = settings or RouterSettings()
        self.home = home
        self._times = times
        self._delays = delays or Delays()
        self._in_bytes = in_bytes or {}
        self._salt = (ingress + 1) * 0x9E3779B97F4A7C15 & _MASK
        self.workers: dict[int, Worker] = {}
        self.beliefs: dict[int, Belief] = {}
        self._kinds: dict[tuple[str, tuple[str, ...], int], int] = {}
        self.kinds: list[_Kind] = []
        self._kind_of: dict[int, int] = {}
        #: Stage -> kinds that could run it.
        self._able: dict[str, tuple[int, ...]] = {}
        self._outlines: dict[str, Outline] = {}
        #: Model -> bytes.
        self._sizes: dict[str, int] = {}
        self._open: dict[int, _Open] = {}
        #: Batch -> (latest start that its route allowed, its item), for refusals; and routes not yet sent.
        self._windows: dict[int, int] = {}
        self._routed: dict[tuple[int, int, int], tuple[_Chosen, int]] = {}
        #: (When to doubt, worker, model, when it was asked for).
        self._asked: deque[tuple[int, int, str, int]] = deque()
        self._ahead = Ahead(self.settings.spares, self.settings.copy_every_ns)

    # -- workers ------------------------------------------------------------------------------------------------

    def joined(self, worker: Worker) -> None:
        """It is idle and holds nothing, as far as is known."""
        spec = worker.spec
        key = spec.kind, spec.runs, spec.memory_bytes
        number = self._kinds.get(key)
        if number is None:
            number = self._kinds[key] = len(self.kinds)
            self.kinds.append(_Kind(worker))
            self.kinds[number].index.know(self._sizes.values())
            self._able.clear()
            self._outlines.clear()
        self.workers[worker.id] = worker
        self._kind_of[worker.id] = number
        self.beliefs[worker.id] = Belief(spec.memory_bytes)
        self._show(worker.id, 0)

    def lost(self, worker: Worker) -> None:
        """Plans that name it find somebody else when their items come up."""
        if self.workers.pop(worker.id, None) is not None:
            del self.beliefs[worker.id]
            self.kinds[self._kind_of.pop(worker.id)].index.drop(worker.id)

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """Rows count from when they were written; what was done since is added."""
        for row in rows:
            belief = self.beliefs.get(row.worker)
            if belief is not None and belief.hear(row):
                self._show(row.worker, now_ns)

    def holds(self, worker: int, weights: str, here: bool, now_ns: int) -> None:
        """Believed until a row is as new."""
        belief = self.beliefs.get(worker)
        if belief is not None and weights:
            belief.change(weights, here, now_ns)
            self._show(worker, now_ns)

    def _show(self, worker: int, now_ns: int) -> None:
        """Put what is believed of a worker into the index."""
        belief = self.beliefs[worker]
        resident, free_bytes = belief.memory(self._sizes)
        self.kinds[self._kind_of[worker]].index.put(worker, belief.free_ns(now_ns), resident, free_bytes)

    # -- requests -----------------------------------------------------------------------------------------------

    def plan(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """Place all nodes by falling rank, and say which models should be fetched meanwhile."""
        settings = self.settings
        state = self._open[request.id] = _Open()
        if not settings.hints and settings.afresh and not settings.spares:
            return ()
        self._doubt(now_ns)
        shape = self._outline(request.graph)
        hints: list[Hint] = []
        overlay: dict[int, _Planned] = {}
        ends: dict[int, _Chosen] = {}
        #: Model -> how many of its free holders this request will use.
        taken: dict[str, int] = {}
        for node in shape.order:
            task = shape.tasks[node]
            arrive_ns, near = self._inputs(task, ends, now_ns)
            spread = self._spread(request.id, node, 0)
            chosen = self._choose(task, now_ns, arrive_ns, near, spread, overlay)
            if chosen is None:
                continue
            ends[node] = chosen
            worker = chosen.worker
            state.planned[node] = worker
            after = overlay.get(worker)
            if after is None:
                known = self.kinds[chosen.kind].index.workers[worker]
                after = overlay[worker] = _Planned(known.free_ns, known.resident, known.free_bytes)
            after.free_ns = chosen.end_ns
            if task.weights and task.weights not in after.resident:
                after.resident |= {task.weights}
                after.free_bytes -= min(after.free_bytes, task.weights_bytes)
                if settings.hints and task.sources:
                    hints.append(self._ask(worker, task, now_ns))
            elif task.weights:
                taken[task.weights] = taken.get(task.weights, 0) + 1
        if settings.spares:
            self._copy(shape, taken, hints, request.id, now_ns)
        return hints

    def _copy(self, shape: Outline, taken: dict[str, int], hints: list[Hint], request: int, now_ns: int) -> None:
        """Keep spare copies of what this request needs."""
        done = set()
        for task in shape.tasks:
            if not task.weights or task.weights in done:
                continue
            done.add(task.weights)
            spread = self._spread(request, task.node, 1)
            for kind in self._kinds_for(task.stage):
                index = self.kinds[kind].index
                used = taken.get(task.weights, 0)
                worker = self._ahead.copy_to(index, task.weights, task.weights_bytes, used, now_ns, spread)
                if worker is not None:
                    hints.append(self._ask(worker, task, now_ns))
                    break

    def _ask(self, worker: int, task: Task, now_ns: int) -> Hint:
        """Tell a worker to fetch, and believe that it does until there is reason to doubt it."""
        self.beliefs[worker].change(task.weights, True, now_ns)
        self._asked.append((now_ns + task.fetch_ns + self.settings.doubt_ns, worker, task.weights, now_ns))
        self._show(worker, now_ns)
        return Hint(worker, task.stage.name)

    def _doubt(self, now_ns: int) -> None:
        """Fetches that should be in some row by now and are not."""
        asked = self._asked
        while asked and asked[0][0] <= now_ns:
            _, worker, weights, at_ns = asked.popleft()
            belief = self.beliefs.get(worker)
            if belief is not None and belief.doubt(weights, at_ns):
                self._show(worker, now_ns)

    def route(self, item: Item, now_ns: int) -> Route | None:
        """The worker where it can start first, by what is known now; the plan breaks near-ties."""
        settings = self.settings
        request = item.request
        self._doubt(now_ns)
        task = self._outline(request.graph).tasks[item.node]
        state = self._open.setdefault(request.id, _Open())
        refused = state.refused.get((item.node, item.index), 0)
        arrive_ns, near = self._made(task, state, item, now_ns)
        planned = state.planned.get(item.node)
        chosen, reason = None, ""
        if planned in self.workers and not refused:
            here = self._at(planned, task, now_ns, near.get(planned, arrive_ns))
            if not settings.afresh:
                chosen, reason = here, "as planned"
        else:
            here = None
        if chosen is None:
            spread = self._spread(request.id, item.node + (item.index << 16), 2 + refused)
            chosen = self._choose(task, now_ns, arrive_ns, near, spread, {})
            if chosen is None:
                return None
            reason = "fetches it first" if chosen.fetch_ns else "can start first"
            if here is not None and not here.fetch_ns and here.end_ns <= chosen.end_ns + settings.keep_ns:
                chosen, reason = here, "as planned"
        latest_ns = 0
        if refused < settings.bounces:
            run_ns = chosen.end_ns - chosen.start_ns
            latest_ns = chosen.start_ns + settings.tolerance_ns + run_ns * settings.tolerance_pct // 100
        self._routed[request.id, item.node, item.index] = chosen, latest_ns
        order = request.priority * _CLASS_STEP + request.arrived_ns + settings.favour * task.path_ns
        return Route(chosen.worker, latest_ns, order, reason)

    def sent(self, batch: Batch, now_ns: int) -> None:
        """Count it until a row does."""
        for item in batch.items:
            routed = self._routed.pop((item.request.id, item.node, item.index), None)
            if routed is None:
                continue
            chosen, latest_ns = routed
            if latest_ns:
                self._windows[batch.id] = latest_ns
            belief = self.beliefs.get(batch.worker.id)
            if belief is None or not self.settings.corrections:
                continue
            task = self._outline(item.request.graph).tasks[item.node]
            there_ns = now_ns + max((self._delay_ns(s, item) for s in task.sources), default=task.entry_ns)
            belief.send(batch.id, there_ns, chosen.start_ns, chosen.end_ns - chosen.start_ns, task.weights)
            self._show(batch.worker.id, now_ns)

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """Remember where its results are; a refusal says that the worker is busier than believed."""
        worker = batch.worker.id
        latest_ns = self._windows.pop(batch.id, 0)
        belief = self.beliefs.get(worker)
        for item in batch.items:
            state = self._open.get(item.request.id)
            if state is None:
                continue
            if done:
                state.made.setdefault(item.node, set()).add(worker)
            elif latest_ns:
                key = item.node, item.index
                state.refused[key] = state.refused.get(key, 0) + 1
        if belief is None:
            return
        known = belief.sent.pop(batch.id, None)
        if not done and latest_ns:
            belief.refuse(max(latest_ns, now_ns) + batch.expected_ns // 4, now_ns)
        if known is not None or not done:
            self._show(worker, now_ns)

    def closed(self, request: Request) -> None:
        """Forget it."""
        self._open.pop(request.id, None)

    # -- estimates ----------------------------------------------------------------------------------------------

    def _choose(
        self, task: Task, now_ns: int, arrive_ns: int, near: Mapping[int, int], spread: int, overlay: dict[int, _Planned]
    ) -> _Chosen | None:
        """The worker on which the task ends first; workers of one kind run it equally fast."""
        need = self._need(task, now_ns, arrive_ns)
        best: _Chosen | None = None
        for number in self._kinds_for(task.stage):
            kind = self.kinds[number]
            found = kind.index.best(need, near, spread, overlay)
            for worker, planned in overlay.items():
                if self._kind_of[worker] == number:
                    start = _start(planned, worker, need, near.get(worker, arrive_ns))
                    if found is None or start < found:
                        found = start
            if found is None:
                continue
            run_ns = self._times.duration_ns(task.stage, 1, _WHOLE, self.workers[found.worker])
            if best is None or found.start_ns + run_ns < best.end_ns:
                best = _Chosen(number, found.worker, found.start_ns, found.fetch_ns, found.start_ns + run_ns)
        return best

    def _at(self, worker: int, task: Task, now_ns: int, arrive_ns: int) -> _Chosen:
        """The same for one worker."""
        number = self._kind_of[worker]
        found = self.kinds[number].index.start_ns(worker, self._need(task, now_ns, arrive_ns), arrive_ns)
        run_ns = self._times.duration_ns(task.stage, 1, _WHOLE, self.workers[worker])
        return _Chosen(number, worker, found.start_ns, found.fetch_ns, found.start_ns + run_ns)

    def _need(self, task: Task, now_ns: int, arrive_ns: int) -> Need:
        return Need(
            now_ns,
            arrive_ns,
            task.weights,
            task.weights_bytes,
            task.fetch_ns,
            task.fetch_ns * self.settings.evict_factor,
            now_ns if self.settings.overlap else -1,
        )

    def _inputs(self, task: Task, ends: dict[int, _Chosen], now_ns: int) -> tuple[int, dict[int, int]]:
        """When the inputs of a planned task are anywhere, and where they are earlier."""
        if not task.sources:
            return now_ns + task.entry_ns, {self.home: now_ns} if self.home in self.workers else {}
        tasks = [(ends[s], s) for s in task.sources if s in ends]
        arrive_ns, near = now_ns, {}
        for end, source in tasks:
            arrive_ns = max(arrive_ns, end.end_ns + self._move_ns(source, task))
        for end, _ in tasks:
            near[end.worker] = max(
                [now_ns] + [e.end_ns + (0 if e.worker == end.worker else self._move_ns(s, task)) for e, s in tasks]
            )
        return arrive_ns, near
