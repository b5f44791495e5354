"""A run on one time line: every batch, request, model load and queue, for ui.perfetto.dev.

The recorder observes steps, simulated, live or read from a log, and the same steps give the same bytes. A worker is
a process and its tracks are lanes: batches that are on a worker together get different lanes, because slices of one
track must not overlap. Requests do overlap; they are spans, grouped by workflow and class. Arrows follow the edges
of the graph, from the batch that made a value to the batch that used it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..control import Action, Event, EvictModel, LoadFailed, LoadModel, ModelLoaded, Reject, WorkerJoined, WorkerLost
from ..record.follow import Change, FollowedBatch, Follower
from ..state import Request
from ..workflow.graph import Graph, Source
from .chrome import ChromeTrace, Place

__all__ = ["TraceRecorder"]

#: Process of the requests and queues; workers come behind it. (0 is the kernel's idle process to Perfetto.)
_REQUESTS_PID = 1
#: Track numbers are unique over all processes: some viewers look them up without the process.
_LANES_PER_WORKER = 1000
#: Requests that a batch names in its arguments; naming all 256 of a large one would make the trace unwieldy.
_MAX_NAMED = 16

#: Node -> index -> batch that made it, and the last moment of its slice.
_Made = dict[int, dict[int, tuple[int, Place]]]


@dataclass(slots=True)
class _Lane:
    """A track of a worker: the batch that has it (0: none), and the end of its last slice."""

    tid: int
    batch: int = 0
    free_ns: int = 0


class TraceRecorder:
    """Turns the steps of a run into a trace file.

    It stops after the step in which `max_events` is reached, and draws no arrows beyond `max_flows`: those are the
    bulk of a trace with fan-outs and the first thing that can be spared.
    """

    def __init__(self, graphs: Sequence[Graph], *, max_events: int = 2_000_000, max_flows: int = 500_000) -> None:
        self.max_events = max_events
        self.max_flows = max_flows
        self.flows = 0
        #: Why recording stopped; empty while it goes on.
        self.stopped = ""
        self._graphs = graphs
        self._follower = Follower(graphs)
        self._trace = ChromeTrace()
        self._pids: dict[int, int] = {}
        self._lanes: dict[int, list[_Lane]] = {}
        self._busy_pct: dict[int, int] = {}
        self._open = [0] * len(graphs)
        self._made: dict[int, _Made] = {}
        #: (worker, stage) -> when its load began.
        self._loads: dict[tuple[int, str], int] = {}
        #: Counters as they were written, and as they are: one value per counter and time is enough.
        self._written: dict[tuple[int, str], dict[str, int]] = {}
        self._counters: dict[tuple[int, str], dict[str, int]] = {}
        self._trace.process(_REQUESTS_PID, "requests")

    @property
    def events(self) -> int:
        """Events recorded so far."""
        return self._trace.events

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        """Take one step."""
        if self.stopped:
            return
        if self.events >= self.max_events:
            self.stopped = f"stopped after {self.events} events, at {self._follower.now_ns / 1e9:.3f} s of the run"
            print(f"trace: {self.stopped}; raise max_events to record more", file=sys.stderr)
            return
        if event.at_ns != self._follower.now_ns:
            self._write_counters(self._trace)
            self._written.update(self._counters)
            self._counters.clear()
        change = self._follower.step(event, actions)
        self._workers_and_models(event, actions)
        if change.arrived is not None:
            self._made[change.arrived.id] = {}
        for run in change.ended:
            self._ended(run)
        for request, action in change.closed:
            reason = action.reason if isinstance(action, Reject) else ""
            self._request(self._trace, request, action.outcome, reason)
            del self._made[request.id]
        for run in change.started:
            self._started(run)
        self._count(change)

    def write(self, path: Path) -> None:
        """Write what was recorded; what is open is drawn up to the last step. Recording can go on afterwards."""
        tail = self._trace.branch()
        now_ns = self._follower.now_ns
        self._write_counters(tail)
        for request in self._follower.requests.values():
            self._request(tail, request, "open", "")
        for (worker, stage), begin_ns in self._loads.items():
            self._load(tail, worker, stage, begin_ns, "not loaded when the recording ended")
        for run in self._follower.running.values():
            lane = self._lane_of(run)
            begin_ns = max(run.sent_ns, lane.free_ns)
            self._batch(tail, run, lane, begin_ns, max(now_ns, begin_ns + 1), "running when the recording ended")
        other = {"events": self.events + tail.events, "arrows": self.flows, "stopped": self.stopped or "no"}
        self._trace.write(path, tail, other)

    def _request(self, trace: ChromeTrace, request: Request, outcome: str, reason: str) -> None:
        args = {
            "request": request.id,
            "outcome": outcome,
            "reason": reason,
            "objective_ms": (request.objective_ns - request.arrived_ns) / 1e6,
        }
        begin = Place(_REQUESTS_PID, 0, request.arrived_ns)
        trace.span(begin, self._follower.now_ns, "request", f"{request.graph.name} class {request.priority}", args)

    # -- workers and models -----------------------------------------------------------------------------------

    def _workers_and_models(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, WorkerJoined):
            pid = self._pids[event.worker] = _REQUESTS_PID + 1 + len(self._pids)
            self._lanes[event.worker] = []
            self._busy_pct[event.worker] = 0
            self._trace.process(pid, f"{event.spec.name} ({event.spec.kind})")
            self._trace.instant(pid, event.at_ns, "joined", {})
        elif isinstance(event, WorkerLost) and event.worker in self._pids:
            self._trace.instant(self._pids[event.worker], event.at_ns, "lost", {"detail": event.detail})
            for worker, stage in [key for key in self._loads if key[0] == event.worker]:
                self._load(self._trace, worker, stage, self._loads.pop((worker, stage)), "the worker was lost")
        elif isinstance(event, ModelLoaded | LoadFailed) and (event.worker, event.stage) in self._loads:
            begin_ns = self._loads.pop((event.worker, event.stage))
            failed = event.detail if isinstance(event, LoadFailed) else ""
            self._load(self._trace, event.worker, event.stage, begin_ns, failed)
        for action in actions:
            if isinstance(action, LoadModel):
                self._loads[action.worker, action.stage] = event.at_ns
            elif isinstance(action, EvictModel):
                args = {"reason": action.reason, "cause": action.cause}
                self._trace.instant(self._pids[action.worker], event.at_ns, f"evict {action.stage}", args)

    def _load(self, trace: ChromeTrace, worker: int, stage: str, begin_ns: int, failed: str) -> None:
        begin = Place(self._pids[worker], 0, begin_ns)
        trace.span(begin, self._follower.now_ns, "load", f"load {stage}", {"failed": failed} if failed else {})

    # -- batches ----------------------------------------------------------------------------------------------

    def _started(self, run: FollowedBatch) -> None:
        """Give a batch the first free lane; it keeps it until the controller hears of its end."""
        worker = run.action.worker
        self._busy_pct[worker] += run.action.share_pct
        lanes = self._lanes[worker]
        lane = next((lane for lane in lanes if not lane.batch), None)
        if lane is None:
            pid = self._pids[worker]
            lane = _Lane(pid * _LANES_PER_WORKER + len(lanes) + 1)
            lanes.append(lane)
            self._trace.track(pid, lane.tid, f"lane {len(lanes)}")
        lane.batch = run.action.batch

    def _lane_of(self, run: FollowedBatch) -> _Lane:
        return next(lane for lane in self._lanes[run.action.worker] if lane.batch == run.action.batch)

    def _ended(self, run: FollowedBatch) -> None:
        lane = self._lane_of(run)
        # At least 1 ns long, or no arrow could bind to it; for that it may have to wait for the slice before it.
        begin_ns = max(run.begin_ns, lane.free_ns)
        end_ns = max(run.end_ns, begin_ns + 1)
        self._batch(self._trace, run, lane, begin_ns, end_ns, run.failed)
        if not run.failed:
            pid = self._pids[run.action.worker]
            self._arrows(run, Place(pid, lane.tid, begin_ns), Place(pid, lane.tid, end_ns - 1))
        lane.batch, lane.free_ns = 0, end_ns
        self._busy_pct[run.action.worker] -= run.action.share_pct

    def _batch(
        self, trace: ChromeTrace, run: FollowedBatch, lane: _Lane, begin_ns: int, end_ns: int, failed: str
    ) -> None:
        action = run.action
        requests = list(dict.fromkeys(request for request, _, _ in action.items))
        args = {
            "batch": action.batch,
            "items": len(action.items),
            "share_pct": action.share_pct,
            "cpus": action.cpus,
            "expected_ms": action.expected_ns / 1e6,
            "measured_ms": run.busy_ns / 1e6,
            "requests": requests[:_MAX_NAMED],
            "more_requests": max(0, len(requests) - _MAX_NAMED),
            "cause": action.cause,
            "failed": failed,
        }
        begin = Place(self._pids[action.worker], lane.tid, begin_ns)
        trace.slice(begin, end_ns, "failed" if failed else "batch", action.stage, args)

    def _arrows(self, run: FollowedBatch, begin: Place, last: Place) -> None:
        """One arrow per request and pair of batches, however many items went that way."""
        drawn: set[tuple[int, int]] = set()
        for item in run.items:
            made = self._made.get(item.request.id)
            if made is None:
                continue  # the request has ended without this batch
            graph = item.request.graph.graph
            for source in graph.nodes[item.node].sources():
                for batch, start in _makers(graph, made, source, item.index):
                    if (item.request.id, batch) not in drawn and self.flows < self.max_flows:
                        drawn.add((item.request.id, batch))
                        self.flows += 1
                        self._trace.arrow(start, begin, "edge", graph.name)
        for item in run.items:
            made = self._made.get(item.request.id)
            if made is not None:
                made.setdefault(item.node, {})[item.index] = (run.action.batch, last)

    # -- counters ---------------------------------------------------------------------------------------------

    def _count(self, change: Change) -> None:
        counters = self._counters
        if change.arrived is not None:
            self._open[change.arrived.graph.index] += 1
        for request, _ in change.closed:
            self._open[request.graph.index] -= 1
        if change.arrived is not None or change.closed:
            names = [graph.name for graph in self._graphs]
            counters[_REQUESTS_PID, "open requests"] = dict(zip(names, self._open, strict=True))
        for run in (*change.ended, *change.started):
            worker = run.action.worker
            counters[self._pids[worker], "share in use"] = {"pct": self._busy_pct[worker]}
        if change.queued or change.started or change.closed:
            for stage, depth in self._follower.depth.items():
                counters[_REQUESTS_PID, f"queue {stage}"] = {"items": depth}

    def _write_counters(self, trace: ChromeTrace) -> None:
        for key, values in self._counters.items():
            if self._written.get(key) != values:
                trace.counter(key[0], self._follower.now_ns, key[1], values)


def _makers(graph: Graph, made: _Made, source: Source, index: int) -> Iterator[tuple[int, Place]]:
    """Who made what a source stands for: one batch, or for a whole list as many as its items ran in."""
    if source.node < 0:
        return
    items = made.get(source.node)
    if items is None:
        instead = graph.nodes[source.node].otherwise  # its condition did not hold
        if instead is not None:
            yield from _makers(graph, made, instead, index)
    elif not source.each:
        yield from items.values()
    elif index in items:
        yield items[index]
