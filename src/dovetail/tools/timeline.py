"""A run over time, in bins: arrivals, good answers, latencies, and how busy the devices were.

It observes the steps of a run, simulated, live or read from a log, in memory that does not grow: when the bins are
used up, neighbours are put together and each bin is twice as wide.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ..control import (
    Action,
    BatchFailed,
    BatchFinished,
    Event,
    Reject,
    Reply,
    RequestArrived,
    RequestRefused,
    RunBatch,
    WorkerJoined,
    WorkerLost,
)
from ..record.ledger import Histogram
from ..state.worker import FULL_SHARE
from ..units import MS

__all__ = ["Bin", "Timeline"]

MAX_BINS, MIN_BINS = 240, 15
#: Width of a bin at first: far below what is worth drawing.
FIRST_WIDTH_NS = 10 * MS

#: (graph, class)
Line = tuple[int, int]


class Bin:
    """What happened in one stretch of time."""

    __slots__ = ("arrived", "busy_pct_ns", "good", "latency", "there_ns")

    def __init__(self) -> None:
        self.arrived = 0
        self.good = Counter[Line]()
        #: Latencies of the answers that were given in it.
        self.latency: dict[Line, Histogram] = defaultdict(Histogram)
        #: Kind of device -> share × time at work, and time that devices of the kind were there.
        self.busy_pct_ns = Counter[str]()
        self.there_ns = Counter[str]()

    def merge(self, other: Bin) -> None:
        """Put the next bin into this one."""
        self.arrived += other.arrived
        self.good.update(other.good)
        self.busy_pct_ns.update(other.busy_pct_ns)
        self.there_ns.update(other.there_ns)
        for line, histogram in other.latency.items():
            self.latency[line].merge(histogram)

    def busy(self, kind: str) -> float:
        """Mean share of the devices of a kind that was at work, from 0 to 1."""
        return self.busy_pct_ns[kind] / FULL_SHARE / self.there_ns[kind] if self.there_ns.get(kind) else 0.0


class Timeline:
    """Observes a run."""

    def __init__(self) -> None:
        self.width_ns = FIRST_WIDTH_NS
        self.bins: list[Bin] = []
        self.end_ns = 0
        self._answers = 0
        self._batches: dict[int, RunBatch] = {}
        self._kinds: dict[int, str] = {}
        #: Worker -> since when its presence is not yet counted.
        self._since_ns: dict[int, int] = {}

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        """Take one step."""
        now_ns = event.at_ns
        if type(event) is RequestArrived or type(event) is RequestRefused:
            self._bin(now_ns).arrived += 1
        elif type(event) is BatchFinished:
            batch = self._batches.pop(event.batch, None)
            if batch is not None and batch.worker in self._kinds:
                kind, share = self._kinds[batch.worker], batch.share_pct
                for part, ns in self._between(event.begin_ns, event.end_ns):
                    part.busy_pct_ns[kind] += ns * share
        elif type(event) is WorkerJoined:
            self._kinds[event.worker] = event.spec.kind
            self._since_ns[event.worker] = now_ns
        elif type(event) is BatchFailed:
            self._batches.pop(event.batch, None)
        elif type(event) is WorkerLost:
            self._count_presence(event.worker, now_ns)
            self._batches = {ident: b for ident, b in self._batches.items() if b.worker != event.worker}
        for action in actions:
            if type(action) is RunBatch:
                self._batches[action.batch] = action
            elif type(action) is Reply:
                line = (action.graph, action.priority)
                now = self._bin(now_ns)
                now.latency[line].add(now_ns - action.arrived_ns)
                now.good[line] += action.outcome == "ok"
                self._answers += 1
                self.end_ns = now_ns
            elif type(action) is Reject:
                self.end_ns = now_ns

    def finish(self) -> None:
        """The run is over: count the workers that are still there."""
        for worker in list(self._since_ns):
            self._count_presence(worker, self.end_ns)

    def _count_presence(self, worker: int, until_ns: int) -> None:
        since_ns = self._since_ns.pop(worker, None)
        if since_ns is not None:
            for part, ns in self._between(since_ns, until_ns):
                part.there_ns[self._kinds[worker]] += ns

    def _bin(self, at_ns: int) -> Bin:
        while at_ns // self.width_ns >= MAX_BINS:
            self._widen()
        index = at_ns // self.width_ns
        while len(self.bins) <= index:
            self.bins.append(Bin())
        return self.bins[index]

    def widen(self, answers: int) -> None:
        """Put neighbours together until the bins have so many answers on average, or there are few bins."""
        while len(self.bins) > 2 * MIN_BINS and self._answers < answers * len(self.bins):
            self._widen()

    def _widen(self) -> None:
        for left, right in zip(self.bins[::2], self.bins[1::2], strict=False):
            left.merge(right)
        self.bins = self.bins[::2]
        self.width_ns *= 2

    def _between(self, begin_ns: int, end_ns: int) -> Iterator[tuple[Bin, int]]:
        """Each bin between two times, and its part of the time."""
        if end_ns > begin_ns:
            self._bin(end_ns - 1)
        while begin_ns < end_ns:
            part_end_ns = min(end_ns, (begin_ns // self.width_ns + 1) * self.width_ns)
            yield self._bin(begin_ns), part_end_ns - begin_ns
            begin_ns = part_end_ns
