"""The state table: what several ingresses can know of the workers that they share.

Rules of this file
- A worker writes its row when something changes, but others can read it only from its next push on (every `push_ns`,
  each worker at its own phase).
- An ingress reads the table before a decision, if `pull_ns` have passed since it last did. So what it knows is up to
  push + pull old. The row of the worker on its own machine is always fresh, as in Compass.
"""

from __future__ import annotations

from collections import deque

import msgspec

from ..state import WorkerRow

__all__ = ["Staleness", "StateTable"]

#: Changes that are kept before those that every ingress has read are dropped.
_CHANGES_KEPT = 1 << 16


class Staleness(msgspec.Struct, frozen=True):
    """How old what ingresses know of workers may be."""

    push_ns: int = 1_000_000
    pull_ns: int = 1_000_000


class StateTable:
    """The rows of all workers, as each ingress may read them."""

    def __init__(self, ingresses: int, staleness: Staleness) -> None:
        self._staleness = staleness
        #: Of each worker, its rows by the time they were written; older than anybody may read are dropped.
        self._rows: dict[int, deque[WorkerRow]] = {}
        self._lost: set[int] = set()
        #: Ingress -> the worker on its own machine, if it has one.
        self._own: dict[int, int] = {}
        #: Workers in the order in which they changed, and how far each ingress has read.
        self._changes: list[int] = []
        self._dropped = 0
        self._read = [0] * ingresses
        self._pulled_ns = [-staleness.pull_ns] * ingresses
        #: Per ingress, workers whose last change had not been pushed when it read.
        self._unread: list[dict[int, None]] = [{} for _ in range(ingresses)]
        #: Per ingress, worker -> time of the row it has.
        self._known: list[dict[int, int]] = [{} for _ in range(ingresses)]

    def join(self, worker: int, own_of: int | None) -> None:
        """A worker takes part; `own_of` is the ingress on its machine."""
        self._rows[worker] = deque()
        if own_of is not None:
            self._own[own_of] = worker

    def lose(self, worker: int) -> None:
        """A worker is gone: nobody hears of it any more."""
        self._lost.add(worker)

    def __contains__(self, worker: int) -> bool:
        return worker in self._rows

    def write(self, row: WorkerRow) -> None:
        """A worker says how it is."""
        ident = row.worker
        rows = self._rows[ident]
        if rows and rows[-1].at_ns == row.at_ns:
            rows.pop()
        rows.append(row)
        self._changes.append(ident)
        # Whoever reads from now on sees the last push or a later one.
        pushed_ns = self._pushed_ns(ident, row.at_ns)
        while len(rows) > 1 and rows[1].at_ns <= pushed_ns:
            rows.popleft()
        if len(self._changes) > _CHANGES_KEPT:
            done = min(self._read) - self._dropped
            del self._changes[:done]
            self._dropped += done

    def _pushed_ns(self, worker: int, now_ns: int) -> int:
        """When the worker last pushed its row."""
        push_ns = self._staleness.push_ns
        if not push_ns:
            return now_ns
        phase_ns = worker * push_ns // (len(self._rows) + 1) % push_ns
        return (now_ns - phase_ns) // push_ns * push_ns + phase_ns

    def read(self, ingress: int, now_ns: int) -> list[WorkerRow]:
        """Rows that this ingress has not seen, as they were at their last push."""
        known, own = self._known[ingress], self._own.get(ingress, 0)
        fresh: list[WorkerRow] = []
        if own and own not in self._lost and self._rows[own] and known.get(own) != self._rows[own][-1].at_ns:
            fresh.append(self._rows[own][-1])
            known[own] = fresh[0].at_ns
        if now_ns - self._pulled_ns[ingress] < self._staleness.pull_ns:
            return fresh
        self._pulled_ns[ingress] = now_ns
        unread = self._unread[ingress]
        unread.update(dict.fromkeys(self._changes[self._read[ingress] - self._dropped :]))
        self._read[ingress] = self._dropped + len(self._changes)
        later: dict[int, None] = {}
        for ident in unread:
            if ident == own or ident in self._lost:
                continue
            rows, pushed_ns = self._rows[ident], self._pushed_ns(ident, now_ns)
            if rows[-1].at_ns > pushed_ns:
                later[ident] = None
            row = next((r for r in reversed(rows) if r.at_ns <= pushed_ns), None)
            if row is not None and known.get(ident, -1) < row.at_ns:
                known[ident] = row.at_ns
                fresh.append(row)
        self._unread[ingress] = later
        return fresh
