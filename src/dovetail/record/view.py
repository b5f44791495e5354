"""What somebody who watches is shown, made from the steps of a run and from samples of its front's books.

Rules of this file: it follows and counts, and decides nothing. "Now" is the last ten seconds. All is bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from ..control.actions import Reply
from ..control.events import LoadFailed, RequestArrived, RequestRefused, WorkerJoined, WorkerLost
from ..state import OUTCOMES
from ..units import MS, SECOND
from .follow import Change, FollowedBatch
from .ledger import Histogram
from .log import Step
from .sight import (
    Banner,
    ClassNow,
    Ended,
    Held,
    Note,
    Ran,
    Running,
    Sample,
    Span,
    StageNow,
    Tick,
    Totals,
    WorkerNow,
)
from .window import Window

__all__ = ["OVER_NS", "View"]

#: What counts as now [our choice]: short enough to see a change, long enough to divide by.
OVER_NS = 10 * SECOND
#: Batches, kernels and requests of one tick, and notes that are kept.
MOST_SPANS, MOST_KERNELS, MOST_ENDED, MOST_NOTES = 1500, 3000, 24, 20
#: Requests of a batch that a click can lead to.
MOST_OF_BATCH = 32

#: (when, graph, class, outcome, latency)
_End = tuple[int, int, int, str, int]


class View:
    """Makes ticks."""

    def __init__(self, banner: Banner, window: Window) -> None:
        self.banner = banner
        self.window = window
        self._stage = {stage.name: i for i, stage in enumerate(banner.stages)}
        self._ends: deque[_End] = deque()
        self._arrived: deque[tuple[int, int, int]] = deque()
        #: (end, worker, stage, begin, items, longest wait)
        self._runs: deque[tuple[int, int, str, int, int, int]] = deque()
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)
        self._kernels: deque[Ran] = deque(maxlen=MOST_KERNELS)
        self._ended: deque[Ended] = deque(maxlen=MOST_ENDED)
        self._trouble: deque[Ended] = deque(maxlen=MOST_ENDED)
        self._notes: deque[Note] = deque(maxlen=MOST_NOTES)
        self._notes_of: dict[int, str] = {}
        self._since_ns = window.now.now_ns

    # -- what comes in ------------------------------------------------------------------------------------------

    def add(self, step: Step) -> None:
        """One more step."""
        event = step.event
        change = self.window.add(step)
        now_ns = event.at_ns
        if isinstance(event, RequestArrived | RequestRefused) and change.arrived is not None:
            self._arrived.append((now_ns, event.graph, change.arrived.priority))
            if step.note and event.request in self.window.now.requests:
                self._notes_of[event.request] = step.note
        elif isinstance(event, WorkerJoined):
            self._say(now_ns, f"{event.spec.name} joined")
        elif isinstance(event, WorkerLost):
            self._say(now_ns, f"{self.window.now.name(event.worker)} was lost: {event.detail}")
        elif isinstance(event, LoadFailed):
            self._say(now_ns, f"{self.window.now.name(event.worker)} could not load {event.stage}: {event.detail}")
        for run in change.ended:
            self._batch_ended(run)
        if change.closed:
            self._closed(change, now_ns, step.note)

    def ran(self, kernels: Iterable[tuple[int, str, int, int, int, int, str]]) -> None:
        """Kernels: worker, stage, class, begin, end, batch and why."""
        for worker, stage, priority, begin_ns, end_ns, batch, why in kernels:
            if stage in self._stage:
                self._kernels.append(Ran(worker, self._stage[stage], priority, begin_ns, end_ns, batch, why))

    def _say(self, now_ns: int, text: str) -> None:
        self._notes.append(Note(now_ns / MS, text[:300]))

    def _batch_ended(self, run: FollowedBatch) -> None:
        action = run.action
        requests = tuple(dict.fromkeys(request for request, _, _ in action.items))[:MOST_OF_BATCH]
        self._spans.append(
            Span(
                action.worker,
                self._stage[action.stage],
                action.priority,
                run.begin_ns,
                run.end_ns,
                run.busy_ns,
                len(action.items),
                action.batch,
                requests,
                run.failed[:200],
            )
        )
        waits = [run.begin_ns - item.queued_ns for item in run.items]
        wait_ns = sum(waits) // len(waits) if waits else 0
        self._runs.append((run.done_ns, action.worker, action.stage, run.begin_ns, len(action.items), wait_ns))

    def _closed(self, change: Change, now_ns: int, note: str) -> None:
        for request, action in change.closed:
            latency_ns = now_ns - action.arrived_ns
            called = self._notes_of.pop(action.request, note if change.arrived is request else "")
            outcome = action.outcome
            told = type(action) is Reply
            self._ends.append((now_ns, action.graph, action.priority, outcome, latency_ns if told else -1))
            name = self.banner.workflows[action.graph].name
            ended = Ended(action.request, called, name, action.priority, outcome, latency_ns / MS, now_ns / MS)
            (self._ended if outcome == "ok" else self._trouble).append(ended)

    # -- what goes out ------------------------------------------------------------------------------------------

    def tick(self, sample: Sample) -> Tick:
        """The present as of a sample, and what is new."""
        now_ns = sample.now_ns
        early_ns = now_ns - OVER_NS
        for ends in (self._ends, self._arrived, self._runs):
            while ends and ends[0][0] < early_ns:
                ends.popleft()
        over_ns = max(1, min(OVER_NS, now_ns - self._since_ns))
        spans, kernels = tuple(self._spans), tuple(self._kernels)
        self._spans.clear()
        self._kernels.clear()
        return Tick(
            now_ms=now_ns / MS,
            over_s=over_ns / SECOND,
            open=sample.open,
            draining=sample.draining,
            classes=self._classes(sample, over_ns),
            stages=self._stages(sample, over_ns),
            workers=self._workers(sample, over_ns),
            running=self._running(),
            spans=spans,
            kernels=kernels,
            ended=tuple(sorted((*self._ended, *self._trouble), key=lambda e: -e.at_ms)),
            evictions=sample.evictions,
            notes=tuple(self._notes),
            arena_used_bytes=sample.arena_used_bytes,
            arena_bytes=sample.arena_bytes,
        )

    def _classes(self, sample: Sample, over_ns: int) -> tuple[ClassNow, ...]:
        totals = {(row.graph, row.priority): row for row in sample.totals}
        outcomes: dict[tuple[int, int], Counter[str]] = {}
        latency: dict[tuple[int, int], Histogram] = {}
        for _, graph, priority, outcome, latency_ns in self._ends:
            key = (graph, priority)
            outcomes.setdefault(key, Counter())[outcome] += 1
            if latency_ns >= 0:
                latency.setdefault(key, Histogram()).add(latency_ns)
        arrived = Counter((graph, priority) for _, graph, priority in self._arrived)
        found = []
        for key in sorted({*totals, *outcomes, *arrived}):
            workflow = self.banner.workflows[key[0]]
            ended, times = outcomes.get(key, Counter()), latency.get(key)
            count = ended.total() - ended["cancelled"]
            found.append(
                ClassNow(
                    workflow=workflow.name,
                    priority=key[1],
                    objective_ms=workflow.objective_ms,
                    totals=totals.get(key) or Totals(*key, *(ended[name] for name in OUTCOMES)),
                    arrivals_per_s=arrived[key] * SECOND / over_ns,
                    goodput_per_s=ended["ok"] * SECOND / over_ns,
                    attainment=ended["ok"] / count if count else None,
                    p50_ms=times.quantile(0.5) / MS if times else None,
                    p99_ms=times.quantile(0.99) / MS if times else None,
                )
            )
        return tuple(found)

    def _stages(self, sample: Sample, over_ns: int) -> tuple[StageNow, ...]:
        runs: dict[str, list[tuple[int, int, int]]] = {}
        for end_ns, _, stage, begin_ns, items, wait_ns in self._runs:
            runs.setdefault(stage, []).append((items, end_ns - begin_ns, wait_ns))
        running = Counter(run.action.stage for run in self.window.now.running.values())
        found = []
        for info in self.banner.stages:
            mine = runs.get(info.name, [])
            count = max(1, len(mine))
            found.append(
                StageNow(
                    name=info.name,
                    depth=sample.depth.get(info.name, 0),
                    workers=len(self.window.now.holders.get(info.name, ())),
                    running=running[info.name],
                    batches_per_s=len(mine) * SECOND / over_ns,
                    items_per_batch=sum(items for items, _, _ in mine) / count,
                    run_ms=sum(ns for _, ns, _ in mine) / count / MS,
                    wait_ms=sum(ns for _, _, ns in mine) / count / MS,
                )
            )
        return tuple(found)

    def _workers(self, sample: Sample, over_ns: int) -> tuple[WorkerNow, ...]:
        intervals: dict[int, list[tuple[int, int]]] = {}
        early_ns = sample.now_ns - over_ns
        for end_ns, worker, _, begin_ns, _, _ in self._runs:
            intervals.setdefault(worker, []).append((max(begin_ns, early_ns), end_ns))
        found = []
        for ident, spec in sorted(self.window.now.workers.items(), key=lambda each: (each[1].on_host, each[0])):
            held = [Held(w, nbytes) for w, nbytes in sorted(sample.resident.get(ident, {}).items())]
            held += [Held(weights, 0, True) for weights in sample.loading.get(ident, ())]
            found.append(
                WorkerNow(
                    ident=ident,
                    name=spec.name,
                    kind=spec.kind,
                    cores=spec.cores,
                    on_host=spec.on_host,
                    preempts=spec.preempts,
                    memory_bytes=spec.memory_bytes,
                    busy=_covered(intervals.get(ident, [])) / over_ns,
                    models=tuple(held),
                    memory=sample.memory.get(spec.name),
                )
            )
        return tuple(found)

    def _running(self) -> tuple[Running, ...]:
        return tuple(
            Running(
                run.action.worker,
                self._stage[run.action.stage],
                run.action.priority,
                run.sent_ns,
                run.action.expected_ns,
                len(run.action.items),
                run.action.batch,
            )
            for run in list(self.window.now.running.values())[:200]
        )


def _covered(intervals: list[tuple[int, int]]) -> int:
    """Time that is in at least one of them."""
    total = last = 0
    for begin, end in sorted(intervals):
        begin = max(begin, last)
        if end > begin:
            total += end - begin
            last = end
    return total
