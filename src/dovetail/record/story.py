"""The story of one request, told from a log in a single pass: what happened to it, when, and because of what.

Rules of this file: pure and streaming; what is kept is bounded by what happens while the request is open. Every
moment carries the number of its step, which is the `cause` of the actions of that step, so a reader can go from
here to the log and back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from ..control.actions import Action, EvictModel, LoadModel, Reject, Reply, SetSlice, StartWorker, StopWorker
from ..control.events import Event, LoadFailed, ModelEvicted, ModelLoaded, SliceChanged, WorkerJoined, WorkerLost
from ..errors import LogError
from ..place.fit import ENDING, HIGHER
from ..state import Item, Request
from ..units import format_ns
from ..workflow.graph import Graph
from .follow import Change, FollowedBatch, Follower, Present
from .log import Step
from .scaling import told
from .verdict import Leg, Rival, Visit, critical_path, legs, verdict

__all__ = ["Moment", "Story", "UnknownRequest", "story"]


class UnknownRequest(LogError):
    """The log has no such request; the message says which it has."""


class Moment(msgspec.Struct, frozen=True):
    """One line of the story. `kind` is one of: request, queue, batch, failure, model, worker, scale."""

    at_ns: int
    step: int
    kind: str
    text: str


class Story(msgspec.Struct, frozen=True):
    """The whole life of a request. Times count from the start of the run."""

    request: int
    #: The client's own id; empty if it gave none.
    client_id: str
    workflow: str
    priority: int
    arrived_ns: int
    objective_ns: int
    #: 0 is none.
    deadline_ns: int
    #: One of `state.OUTCOMES`, or "open" if the log ends first.
    outcome: str
    ended_ns: int
    #: The controller's own words where it refused; empty otherwise.
    reason: str
    cost_usd: float
    #: One sentence: where the time went, or why there was no answer.
    verdict: str
    moments: tuple[Moment, ...]
    visits: tuple[Visit, ...]
    #: The critical path; the parts of its legs add up to `ended_ns - arrived_ns`.
    path: tuple[Leg, ...]


def story(
    steps: Iterable[Step], request: int | str, graphs: Sequence[Graph], present: Present | None = None
) -> Story:
    """The story of a request by its number, or by the client's own id if that is text (its first use counts).

    `steps` must begin with the first step of the log, or after the moment that `present` tells of; reading stops
    where the request ends.
    """
    follower = Follower(graphs, present)
    teller: _Teller | None = None
    first = last = count = 0
    ids: list[str] = []
    for step in steps:
        change = follower.step(step.event, step.actions)
        if change.arrived is not None:
            last = change.arrived.id
            first, count = first or last, count + 1
            if step.note:
                ids[1:] = [step.note]
            if teller is None and request in (last, step.note or None):
                teller = _Teller(follower, change.arrived, step.note)
        if teller is not None and teller.take(step.event, step.actions, change):
            break
    if teller is None:
        name = f"request {request}" if isinstance(request, int) else f"request with the client's id {request!r}"
        has = f"it has {count}, numbers {first} to {last}" if count else "it has none at all"
        called = f"; clients called them {' to '.join(map(repr, ids))}" if ids else ""
        raise UnknownRequest(f"the log has no {name}; {has}{called}")
    return teller.told()


class _Teller:
    """Collects what concerns one request from its arrival to its end."""

    def __init__(self, follower: Follower, request: Request, client_id: str) -> None:
        self.follower = follower
        self.request = request
        self.client_id = client_id
        self.arrived_step = follower.number
        self.end: Reply | Reject | None = None
        self.moments: list[Moment] = []
        self.visits: list[Visit] = []
        #: Visits that have not ended, by batch.
        self.open: dict[int, list[Visit]] = {}
        self.rivals: dict[int, Rival] = {}
        #: (node, index) -> time, step, depth of the queue and holders of the model when it was queued.
        self.queued: dict[tuple[int, int], tuple[int, int, int, tuple[int, ...]]] = {}
        self.stages = {node.stage.name for node in request.graph.nodes}
        self.clients = {node.stage.client or node.stage.name for node in request.graph.nodes}
        self.weights = {node.stage.weights for node in request.graph.nodes}
        #: Slices that were opened or resized since it came, and their sizes.
        self.slices: dict[int, tuple[int, int]] = {}
        #: Steps in which something of this request was sent: what workers evict for it has one of them as its cause.
        self.sent: set[int] = set()
        for run in follower.running.values():
            self._rival(run)

    def take(self, event: Event, actions: Sequence[Action], change: Change) -> bool:
        """Take one step; True once the request has ended."""
        if change.arrived is self.request:
            r = self.request
            deadline = f", deadline {format_ns(r.deadline_ns - r.arrived_ns)}" if r.deadline_ns else ""
            objective = format_ns(r.objective_ns - r.arrived_ns)
            self._say("request", f"arrived for {r.graph.name}, class {r.priority}: objective {objective}{deadline}")
        self._surroundings(event, actions)
        for run in change.ended:
            self._rival(run)
            self._ended(run)
        self._queue([item for item in change.queued if item.request is self.request])
        for run in change.started:
            self._rival(run)
            self._started(run)
        self.end = next((action for request, action in change.closed if request is self.request), None)
        if self.end is None:
            return False
        told = f": {self.end.reason}" if isinstance(self.end, Reject) else ""
        self._say("request", f"{'answered' if isinstance(self.end, Reply) else 'ended'}, {self.end.outcome}{told}")
        return True

    def told(self) -> Story:
        """The story so far."""
        f, r = self.follower, self.request
        self._still_waiting()
        outcome, ended_step = (self.end.outcome, f.number) if self.end is not None else ("open", -2)
        reason = self.end.reason if isinstance(self.end, Reject) else ""
        if isinstance(self.end, Reject) and self.end.retry_after_ns:
            reason += f"; worth another try after {format_ns(self.end.retry_after_ns)}"
        path = critical_path(self.visits, self.arrived_step, ended_step)
        parts = legs(path, f.now_ns)
        spent, allowed = f.now_ns - r.arrived_ns, r.objective_ns - r.arrived_ns
        return Story(
            request=r.id,
            client_id=self.client_id,
            workflow=r.graph.name,
            priority=r.priority,
            arrived_ns=r.arrived_ns,
            objective_ns=r.objective_ns,
            deadline_ns=r.deadline_ns,
            outcome=outcome,
            ended_ns=f.now_ns,
            reason=reason,
            cost_usd=self.end.cost_usd if self.end is not None else 0.0,
            verdict=verdict(outcome, reason, spent, allowed, path, parts, self.rivals.values()),
            moments=tuple(self.moments),
            visits=tuple(self.visits),
            path=parts,
        )

    def _say(self, kind: str, text: str) -> None:
        self.moments.append(Moment(self.follower.now_ns, self.follower.number, kind, text))

    def _surroundings(self, event: Event, actions: Sequence[Action]) -> None:
        """Workers that come and go, models of this workflow that are loaded and evicted, and what went for them."""
        name = self.follower.name
        if isinstance(event, WorkerLost):
            self._say("worker", f"{name(event.worker)} was lost: {event.detail}")
        elif isinstance(event, WorkerJoined):
            self._say("worker", f"{event.spec.name} joined")
        elif isinstance(event, ModelLoaded) and self.follower.weights.get(event.stage) in self.weights:
            self._say("model", f"{name(event.worker)} has loaded the model of {event.stage}")
            for visit in (v for visits in self.open.values() for v in visits):
                if visit.workers[0] == event.worker and event.stage in self.follower.sharers[visit.weights]:
                    visit.loaded_ns = event.at_ns
        elif isinstance(event, ModelEvicted) and (event.weights in self.weights or event.cause in self.sent):
            stages = ", ".join(self.follower.sharers.get(event.weights, (event.weights,)))
            self._say("model", f"{name(event.worker)} evicted the model of {stages}: {event.reason}")
        elif isinstance(event, SliceChanged) and event.client in self.clients:
            where = f", on {name(event.worker)}" if event.worker else ""
            self._say("slice", f"{event.client} has {event.share_pct} % for {event.quota_pct} % of the time{where}")
        elif isinstance(event, LoadFailed) and event.stage in self.stages:
            who = name(event.worker)
            self._say("model", f"{who} could not load the model of {event.stage}: {event.detail}")
        for action in actions:
            if isinstance(action, LoadModel) and action.stage in self.stages:
                how = "asked to load" if action.keep else "told that it will need"
                self._say("model", f"{name(action.worker)} was {how} the model of {action.stage}")
            elif isinstance(action, EvictModel) and action.stage in self.stages:
                who = name(action.worker)
                self._say("model", f"{who} was asked to evict the model of {action.stage}: {action.reason}")
            elif isinstance(action, StartWorker | StopWorker):
                self._say("scale", f"the scaler: {told(action, name)}")
            elif isinstance(action, SetSlice) and action.stage in self.stages:
                before = self.slices.get(action.slice, (0, 0))
                self.slices[action.slice] = (action.share_pct, action.quota_pct)
                self._say("scale", f"the scaler: {told(action, name, before)}")

    def _queue(self, items: list[Item]) -> None:
        f = self.follower
        by_node = Counter(item.node for item in items)
        for node, count in by_node.items():
            stage = self.request.graph.nodes[node].stage.name
            others = f.depth[stage] - count
            again = " again" if any(i.attempts for i in items if i.node == node) else ""
            before = f"; {_count(others, 'other item')} waiting for it" if others > 0 else ""
            self._say("queue", f"{_count(count, 'item')} queued{again} for {stage}{before}")
        for item in items:
            stage = self.request.graph.nodes[item.node].stage.name
            seen = (f.now_ns, f.number, f.depth[stage], tuple(f.holders[stage]))
            self.queued[item.node, item.index] = seen

    def _started(self, run: FollowedBatch) -> None:
        mine = [item for item in run.items if item.request is self.request]
        action = run.action
        if mine:
            self.sent.add(self.follower.number)
        for node in dict.fromkeys(item.node for item in mine):
            visit = self._visit(node, [i.index for i in mine if i.node == node], run)
            visit.sent_ns, visit.sent_step = run.sent_ns, self.follower.number
            visit.cpus, visit.share_pct, visit.expected_ns = action.cpus, action.share_pct, action.expected_ns
            self.open.setdefault(action.batch, []).append(visit)
            other_items, other_requests = len(action.items) - len(mine), visit.batch_requests - 1
            beside = ""
            if other_items:
                beside = f" with {_count(other_items, 'item')} of {_count(other_requests, 'other request')}"
            waited = format_ns(run.sent_ns - visit.queued_ns)
            why = f" ({action.reason})" if action.reason else ""
            self._say(
                "batch",
                f"{_count(visit.items, 'item')} of {visit.stage} sent to {visit.worker} in batch {action.batch}"
                f"{beside}{why}, {'at once' if run.sent_ns == visit.queued_ns else f'after waiting {waited}'}",
            )

    def _ended(self, run: FollowedBatch) -> None:
        for visit in self.open.pop(run.action.batch, ()):
            visit.begin_ns, visit.end_ns, visit.busy_ns = run.begin_ns, run.end_ns, run.busy_ns
            visit.done_ns, visit.done_step, visit.failed = run.done_ns, self.follower.number, run.failed
            took_ns = run.end_ns - run.begin_ns
            ran, expected = format_ns(run.busy_ns), format_ns(visit.expected_ns)
            if run.busy_ns < took_ns:
                ran += f" within {format_ns(took_ns)}, others in between"
            how = f"failed: {run.failed}" if run.failed else f"finished: ran {ran}, expected {expected}"
            kind = "failure" if run.failed else "batch"
            self._say(kind, f"batch {visit.batch} of {visit.stage} on {visit.worker} {how}")

    def _still_waiting(self) -> None:
        for node in dict.fromkeys(node for node, _ in self.queued):
            self._visit(node, [index for n, index in self.queued if n == node], None)

    def _visit(self, node: int, indices: list[int], run: FollowedBatch | None) -> Visit:
        compiled = self.request.graph.nodes[node]
        stage = compiled.stage.name
        seen = [self.queued.pop((node, index)) for index in indices]
        last = max(seen)
        visit = Visit(
            node=node,
            name=compiled.node.name,
            stage=stage,
            items=len(indices),
            batch_items=len(run.action.items) if run else 0,
            batch_requests=len({request for request, _, _ in run.action.items}) if run else 0,
            batch=run.action.batch if run else 0,
            workers=(run.action.worker,) if run else tuple(self.follower.holders[stage]),
            worker=self.follower.name(run.action.worker) if run else "",
            weights=compiled.stage.weights,
            fetches=run is not None and self.follower.fetches(run.action.worker),
            ahead=run is not None and run.action.reason in (ENDING, HIGHER),
            queued_ns=last[0],
            first_queued_ns=min(seen)[0],
            queued_step=last[1],
            depth=last[2],
            holders=last[3],
        )
        self.visits.append(visit)
        return visit

    def _rival(self, run: FollowedBatch) -> None:
        a = run.action
        self.rivals[a.batch] = Rival(a.batch, a.worker, a.stage, run.sent_ns, run.done_ns)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
