"""The ledger: what became of the requests, by workflow and class, in memory that does not grow with the run.

Simulated and live runs, the demo's table and the server's statistics are all this ledger, fed with the controller's
actions. Latencies go into a histogram of logarithmic buckets with 64 steps per power of two, so a percentile is
within 1.6 % of the true one however many requests there were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ..control.actions import Action, Reject, Reply
from ..state import OUTCOMES
from ..units import SECOND

__all__ = ["Histogram", "Ledger", "Summary"]

_STEP_BITS: Final = 6


class Histogram:
    """Counts of durations in logarithmic buckets."""

    __slots__ = ("buckets", "count", "max_ns", "total_ns")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.total_ns = 0
        self.max_ns = 0

    def add(self, ns: int) -> None:
        """Count one duration."""
        shift = ns.bit_length() - _STEP_BITS - 1
        bucket = (shift << _STEP_BITS) + (ns >> shift) if shift > 0 else ns
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += 1
        self.total_ns += ns
        if ns > self.max_ns:
            self.max_ns = ns

    def merge(self, other: Histogram) -> None:
        """Add another histogram's counts."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += other.count
        self.total_ns += other.total_ns
        self.max_ns = max(self.max_ns, other.max_ns)

    def quantile(self, q: float) -> int:
        """The smallest bucket's upper edge below which a share `q` of the durations lies; 0 if there are none."""
        wanted = max(1, -(-int(q * 1_000_000) * self.count // 1_000_000))
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return min(_upper_edge(bucket), self.max_ns)
        return self.max_ns

    def cumulative(self) -> list[tuple[int, float]]:
        """(duration, share of durations up to it), for a plot."""
        points, seen = [], 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            points.append((_upper_edge(bucket), seen / self.count))
        return points


def _upper_edge(bucket: int) -> int:
    # A mantissa has its top bit set, so it reaches from 2^6 to 2^7 - 1 and the shift is one less than it looks.
    shift = (bucket >> _STEP_BITS) - 1
    if shift <= 0:
        return bucket
    mantissa = bucket - (shift << _STEP_BITS)
    return ((mantissa + 1) << shift) - 1


class Summary(msgspec.Struct, frozen=True):
    """One line of the table."""

    workflow: str
    priority: int
    requests: int
    outcomes: dict[str, int]
    objective_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    #: Share of all requests that were answered within their objective.
    hit_rate: float
    #: Requests per second answered within their objective.
    goodput_per_s: float
    cost_usd_per_1000: float


class _Row:
    __slots__ = ("cost_usd", "latency", "outcomes")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.latency = Histogram()
        self.cost_usd = 0.0


class Ledger:
    """Outcomes, latencies and cost by workflow and class."""

    def __init__(self, workflows: Sequence[tuple[str, int]], *, skip_before_ns: int = 0) -> None:
        #: (name, objective in ns) of each graph, in the controller's order.
        self.workflows = list(workflows)
        #: Requests that arrived earlier are left out: the run was warming up.
        self.skip_before_ns = skip_before_ns
        self.rows: dict[tuple[int, int], _Row] = {}
        self.first_ns = -1
        self.last_ns = 0

    def go_on(self, before: Ledger) -> None:
        """Count on where another one is, workflow by workflow. Both count together from now on."""
        index = {name: number for number, (name, _) in enumerate(self.workflows)}
        for (graph, priority), row in before.rows.items():
            name = before.workflows[graph][0]
            if name in index:
                self.rows[index[name], priority] = row

    def note(self, actions: Iterable[Action], now_ns: int) -> None:
        """Take the actions of one step."""
        for action in actions:
            kind = type(action)
            if kind is Reply or kind is Reject:
                self.add(action, now_ns)  # type: ignore[arg-type]

    def add(self, action: Reply | Reject, now_ns: int) -> None:
        """Take one answer."""
        arrived = action.arrived_ns
        if arrived < self.skip_before_ns:
            return
        row = self.rows.get((action.graph, action.priority))
        if row is None:
            row = self.rows[action.graph, action.priority] = _Row()
        if self.first_ns < 0 or arrived < self.first_ns:
            self.first_ns = arrived
        self.last_ns = now_ns
        row.outcomes[action.outcome] += 1
        row.cost_usd += action.cost_usd
        if type(action) is Reply:
            row.latency.add(now_ns - arrived)

    def summary(self) -> list[Summary]:
        """One entry per workflow and class, in that order."""
        seconds = max(self.last_ns - self.first_ns, 1) / SECOND
        lines = []
        for (graph, priority), row in sorted(self.rows.items()):
            name, objective_ns = self.workflows[graph]
            total = sum(row.outcomes.values())
            latency = row.latency
            lines.append(
                Summary(
                    workflow=name,
                    priority=priority,
                    requests=total,
                    outcomes=dict(row.outcomes),
                    objective_ms=objective_ns / 1e6,
                    p50_ms=latency.quantile(0.50) / 1e6,
                    p95_ms=latency.quantile(0.95) / 1e6,
                    p99_ms=latency.quantile(0.99) / 1e6,
                    mean_ms=latency.total_ns / max(1, latency.count) / 1e6,
                    hit_rate=row.outcomes["ok"] / total,
                    goodput_per_s=row.outcomes["ok"] / seconds,
                    cost_usd_per_1000=row.cost_usd / total * 1000,
                )
            )
        return lines
