"""Follows requests through recorded steps: which items wait, which batch runs them, and what became of it.

Rules of this file:
1. It decides nothing. It repeats the controller's own walk (`walk.py`) over the events and takes everything else
   from the recorded actions, so what it tells is what happened, whatever the policy was.
2. It is fed every step from the first one on, in order; or from a later one on, told what was there (`Present`).
   Then it leaves out what became of the requests that were open at that moment.
3. Like the controller it keeps nothing of a request that has ended and no batch of it runs any more.

The story of a request and the exported trace are both written by watching one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ..control.actions import Action, EvictModel, LoadModel, Reject, Reply, RunBatch, StopWorker
from ..control.events import (
    BatchFailed,
    BatchFinished,
    Event,
    ModelEvicted,
    ModelLoaded,
    RequestArrived,
    RequestRefused,
    WorkerJoined,
    WorkerLost,
)
from ..control.walk import arrive, item_done
from ..state import Item, Request, WorkerSpec, compile_graphs
from ..workflow.graph import Graph

__all__ = ["Change", "FollowedBatch", "Follower", "Present"]


class Present(msgspec.Struct, frozen=True):
    """What there is at a moment in the middle of a run."""

    now_ns: int
    #: Number of the last step.
    number: int
    workers: dict[int, WorkerSpec]
    #: Names of workers, also of those that are gone.
    names: dict[int, str]
    #: Stage -> workers that hold its model.
    holders: dict[str, list[int]]
    #: Workers that were ordered to hold models.
    ordered: set[int]
    #: Open requests -> number of their workflow.
    open: dict[int, int]


@dataclass(slots=True, eq=False)
class FollowedBatch:
    """One batch as the log tells it; `begin_ns` to `failed` are meant once it has ended."""

    action: RunBatch
    items: list[Item]
    sent_ns: int
    #: Measured on the worker, but never outside the time from `sent_ns` to `done_ns`: clocks may differ.
    begin_ns: int = 0
    end_ns: int = 0
    #: How long it had the device of that.
    busy_ns: int = 0
    #: When the controller was told.
    done_ns: int = -1
    #: Why it has no results; empty if it has.
    failed: str = ""
    #: Of a batch with items that are left out: for each item how many counts its result has, or less than nought.
    widths: list[int] = field(default_factory=list)

    def ended(self, begin_ns: int, end_ns: int, now_ns: int, failed: str = "", busy_ns: int = 0) -> None:
        """The controller was told what became of it."""
        self.begin_ns = min(max(begin_ns, self.sent_ns), now_ns)
        self.end_ns = min(max(end_ns, self.begin_ns), now_ns)
        self.busy_ns = min(busy_ns or self.end_ns, self.end_ns - self.begin_ns)
        self.done_ns = now_ns
        self.failed = failed


@dataclass(slots=True)
class Change:
    """What one step changed, in the order in which it is to be read."""

    arrived: Request | None = None
    ended: list[FollowedBatch] = field(default_factory=list)
    closed: list[tuple[Request, Reply | Reject]] = field(default_factory=list)
    queued: list[Item] = field(default_factory=list)
    started: list[FollowedBatch] = field(default_factory=list)


class Follower:
    """The state of a run as its log shows it after each step."""

    def __init__(self, graphs: Sequence[Graph], present: Present | None = None) -> None:
        # One queue per workflow and stage: nothing is ever put into them, the walk only needs the graph.
        self.graphs, _ = compile_graphs(graphs, lambda graph, node: f"{graph.name}/{node.stage}")
        self.now_ns = 0
        #: Number of the last step; the `cause` of its actions.
        self.number = 0
        self.requests: dict[int, Request] = {}
        self._ordered: set[int] = set()
        self.workers: dict[int, WorkerSpec] = {}
        #: Names of all workers that ever joined, also of those that are gone.
        self._names: dict[int, str] = {}
        self.running: dict[int, FollowedBatch] = {}
        #: Stage -> workers that hold its model.
        self.holders: dict[str, dict[int, None]] = {s.name: {} for g in graphs for s in g.stages}
        #: Weights -> stages that share them; stage -> its weights.
        self.sharers: dict[str, list[str]] = {}
        self.weights = {s.name: s.weights for g in graphs for s in g.stages}
        for stage, weights in self.weights.items():
            self.sharers.setdefault(weights, []).append(stage)
        #: Stage -> items of open requests that wait for it.
        self.depth: dict[str, int] = dict.fromkeys(self.holders, 0)
        #: Request -> (node, index) -> the item that waits.
        self.waiting: dict[int, dict[tuple[int, int], Item]] = {}
        #: Requests that were open at the beginning -> their workflows: what became of them is left out.
        self._before: dict[int, int] = {}
        if present is not None:
            self._begin(present)

    def _begin(self, present: Present) -> None:
        self.now_ns, self.number = present.now_ns, present.number
        self.workers, self._names = dict(present.workers), dict(present.names)
        self._ordered, self._before = set(present.ordered), dict(present.open)
        for stage, workers in present.holders.items():
            self.holders[stage] = dict.fromkeys(workers)

    def present(self) -> Present:
        """What there is now, for another one that begins here."""
        index = {id(graph): number for number, graph in enumerate(self.graphs)}
        return Present(
            self.now_ns,
            self.number,
            dict(self.workers),
            dict(self._names),
            {stage: list(workers) for stage, workers in self.holders.items()},
            set(self._ordered),
            {**self._before, **{ident: index[id(request.graph)] for ident, request in self.requests.items()}},
        )

    def step(self, event: Event, actions: Sequence[Action]) -> Change:
        """Take the next step of the log."""
        self.number += 1
        self.now_ns = event.at_ns
        change = Change()
        if isinstance(event, RequestArrived):
            change.arrived = self._arrived(event, event.objective_ns, event.deadline_ns)
        elif isinstance(event, RequestRefused):
            change.arrived = self._arrived(event)
        # Closing comes first: the walk below then leaves those requests alone, as the controller did.
        for action in actions:
            if isinstance(action, Reply | Reject):
                if self._before.pop(action.request, None) is None:
                    change.closed.append((self._close(action), action))
            elif isinstance(action, EvictModel):
                self.holders[action.stage].pop(action.worker, None)
            elif isinstance(action, StopWorker) and not action.dry:
                self.workers.pop(action.worker, None)
                for holders in self.holders.values():
                    holders.pop(action.worker, None)
        if isinstance(event, RequestArrived):
            if event.request in self.requests:
                request = self.requests[event.request]
                self._queue(arrive(request, event.counts, self.now_ns), change)
        elif isinstance(event, BatchFinished):
            self._finished(event, change)
        elif isinstance(event, BatchFailed):
            run = self.running.pop(event.batch, None)
            if run is not None:
                why = f"{event.reason}: {event.detail}" if event.detail else event.reason
                self._failed(run, event.begin_ns, event.end_ns, why, change)
        elif isinstance(event, WorkerLost):
            self._lost(event, change)
        elif isinstance(event, WorkerJoined):
            self.workers[event.worker] = event.spec
            self._names[event.worker] = event.spec.name
        elif isinstance(event, ModelLoaded) and event.worker in self.workers and event.stage in self.holders:
            fetched = self.fetches(event.worker)
            for stage in self.sharers[self.weights[event.stage]] if fetched else (event.stage,):
                self.holders[stage][event.worker] = None
        elif isinstance(event, ModelEvicted):
            for stage in self.sharers.get(event.weights, ()):
                self.holders[stage].pop(event.worker, None)
        for action in actions:
            if isinstance(action, RunBatch):
                change.started.append(self._start(action))
            elif isinstance(action, LoadModel) and action.keep:
                self._ordered.add(action.worker)
        return change

    def fetches(self, worker: int) -> bool:
        """Whether the worker brings models for its batches: nobody ordered any to be there."""
        return worker not in self._ordered

    def name(self, worker: int) -> str:
        """What a worker calls itself, also after it was lost."""
        return self._names.get(worker, f"worker {worker}")

    def _arrived(
        self, event: RequestArrived | RequestRefused, objective_ns: int = 0, deadline_ns: int = 0
    ) -> Request:
        graph = self.graphs[event.graph]
        request = self.requests[event.request] = Request(
            event.request,
            graph,
            event.priority or graph.graph.priority,
            event.at_ns,
            objective_ns or event.at_ns + graph.slo_ns,
            deadline_ns,
        )
        self.waiting[request.id] = {}
        return request

    def _close(self, action: Reply | Reject) -> Request:
        request = self.requests.pop(action.request)
        request.outcome = action.outcome
        for item in self.waiting.pop(request.id).values():
            self.depth[request.graph.nodes[item.node].stage.name] -= 1
        return request

    def _queue(self, items: list[Item], change: Change) -> None:
        for item in items:
            self.waiting[item.request.id][item.node, item.index] = item
            self.depth[item.request.graph.nodes[item.node].stage.name] += 1
        change.queued.extend(items)

    def _start(self, action: RunBatch) -> FollowedBatch:
        followed = [item for item in action.items if item[0] not in self._before] if self._before else action.items
        items = [self.waiting[request].pop((node, index)) for request, node, index in followed]
        self.depth[action.stage] -= len(items)
        run = self.running[action.batch] = FollowedBatch(action, items, self.now_ns)
        if len(followed) != len(action.items):
            run.widths = [self._width(request, node) for request, node, _ in action.items]
        return run

    def _width(self, request: int, node: int) -> int:
        """Counts that the result of an item has; below nought for an item that is left out, less one."""
        before = self._before.get(request)
        if before is None:
            return len(self.requests[request].graph.nodes[node].counted)
        return -1 - len(self.graphs[before].nodes[node].counted)

    def _finished(self, event: BatchFinished, change: Change) -> None:
        run = self.running.pop(event.batch, None)
        if run is None:
            return  # its worker was lost and the items have gone elsewhere
        run.ended(event.begin_ns, event.end_ns, self.now_ns, busy_ns=event.busy_ns)
        change.ended.append(run)
        at = 0
        counts = event.counts if not run.widths else _followed(run.widths, event.counts)
        for item in run.items:
            first = at
            if counts:
                at += len(item.request.graph.nodes[item.node].counted)
            if not item.request.outcome:
                self._queue(item_done(item, counts[first:at], self.now_ns), change)

    def _failed(self, run: FollowedBatch, begin_ns: int, end_ns: int, why: str, change: Change) -> None:
        run.ended(begin_ns, end_ns, self.now_ns, why)
        change.ended.append(run)
        again = [item for item in run.items if not item.request.outcome]
        for item in again:
            item.queued_ns = self.now_ns
            item.attempts += 1
        self._queue(again, change)

    def _lost(self, event: WorkerLost, change: Change) -> None:
        spec = self.workers.pop(event.worker, None)
        if spec is None:
            return
        for holders in self.holders.values():
            holders.pop(event.worker, None)
        for run in [r for r in self.running.values() if r.action.worker == event.worker]:
            del self.running[run.action.batch]
            self._failed(run, run.sent_ns, self.now_ns, f"worker {spec.name} was lost: {event.detail}", change)


def _followed(widths: Sequence[int], counts: tuple[int, ...]) -> tuple[int, ...]:
    """The counts of those items that are followed."""
    kept: list[int] = []
    at = 0
    for width in widths if counts else ():
        end = at + (width if width >= 0 else -1 - width)
        if width >= 0:
            kept += counts[at:end]
        at = end
    return tuple(kept)
