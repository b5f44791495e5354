"""What one controller believes of one worker: the last row of the state table, and what that row cannot know yet.

A row is old when it is read. Whatever this controller has done since the row was written is not in it: batches that
it sent, models that it asked to be fetched, a refusal that showed the worker to be busier than its row says. All of
these are kept with the time from which on a row would show them, and forgotten when a row of that time is there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..state import WorkerRow
from ..state.worker import FULL_SHARE

__all__ = ["Belief"]

#: Free memory of a worker that does not say how much it has.
UNLIMITED_BYTES = 1 << 62


class _Sent(msgspec.Struct, frozen=True, gc=False):
    """A batch on its way: when it is there, when it should start, and how long it should run."""

    there_ns: int
    start_ns: int
    run_ns: int
    weights: str
    share_pct: int = FULL_SHARE


class Belief:
    """One worker, as one controller sees it."""

    __slots__ = (
        "at_ns", "busy_until_ns", "changes", "free_at_ns", "free_bytes", "free_pct", "next_ns", "refused_ns",
        "resident", "sent",
    )  # fmt: skip

    def __init__(self, memory_bytes: int) -> None:
        #: When the last row was written, and what it said.
        self.at_ns = -1
        self.free_at_ns = 0
        self.free_pct = FULL_SHARE
        self.next_ns = 0
        self.resident: frozenset[str] = frozenset()
        self.free_bytes = memory_bytes or UNLIMITED_BYTES
        #: Batch -> what it adds, while no row knows it.
        self.sent: dict[int, _Sent] = {}
        #: Model -> (known to rows from when on, whether it is there).
        self.changes: dict[str, tuple[int, bool]] = {}
        #: A refusal, when it was made and until when the worker is busy by it.
        self.refused_ns = -1
        self.busy_until_ns = 0

    def hear(self, row: WorkerRow) -> bool:
        """Take a row, unless a newer one is known; say whether anything may have changed."""
        at_ns = row.at_ns
        if at_ns < self.at_ns:
            return False
        self.at_ns = at_ns
        self.free_at_ns = row.free_at_ns if row.free_at_ns > at_ns else 0
        self.free_pct = row.free_pct if self.free_at_ns else FULL_SHARE
        self.next_ns = row.next_ns
        self.resident = frozenset(row.resident)
        self.free_bytes = row.free_bytes
        if self.sent:
            self.sent = {k: s for k, s in self.sent.items() if s.there_ns > at_ns}
        if self.changes:
            self.changes = {w: c for w, c in self.changes.items() if c[0] > at_ns}
        return True

    def send(
        self, batch: int, there_ns: int, start_ns: int, run_ns: int, weights: str, share_pct: int = FULL_SHARE
    ) -> None:
        """A batch is on its way; its model will be there."""
        self.sent[batch] = _Sent(there_ns, start_ns, run_ns, weights, share_pct)
        if weights:
            self.changes[weights] = there_ns, True

    def end(self, batch: int, done: bool) -> bool:
        """A batch has ended; if it was not done, its model has not come for it either. Says whether it counted."""
        sent = self.sent.pop(batch, None)
        if sent is None:
            return False
        if not done:
            self.doubt(sent.weights, sent.there_ns)
        return True

    def change(self, weights: str, here: bool, at_ns: int) -> None:
        """A model comes or has gone."""
        self.changes[weights] = at_ns, here

    def doubt(self, weights: str, at_ns: int) -> bool:
        """A fetch asked for at that time is still in no row: it seems not to have been made."""
        if self.changes.get(weights) != (at_ns, True):
            return False
        del self.changes[weights]
        return True

    def refuse(self, until_ns: int, now_ns: int) -> None:
        """It refused because it cannot start by then."""
        self.refused_ns = now_ns
        self.busy_until_ns = max(self.busy_until_ns, until_ns)

    def free_ns(self, now_ns: int) -> int:
        """When all of it is free, by all that is known; 0 if it is already."""
        free_ns = self.free_at_ns
        for sent in self.sent.values():
            if sent.share_pct < FULL_SHARE:
                free_ns = max(free_ns, sent.start_ns + sent.run_ns)  # beside the others
            else:
                free_ns = (free_ns if free_ns > sent.start_ns else sent.start_ns) + sent.run_ns
        if self.refused_ns >= self.at_ns and self.busy_until_ns > free_ns:
            free_ns = self.busy_until_ns
        return free_ns if free_ns > now_ns else 0

    def room_ns(self, share_pct: int, now_ns: int) -> int:
        """When a share of it is free; 0 if it is already.

        If not, it is when the next batch should end, as long as nothing is known to wait for that.
        """
        whole_ns = self.free_ns(now_ns)
        if not whole_ns or (self.refused_ns >= self.at_ns and self.busy_until_ns > now_ns):
            return whole_ns
        left_pct = self.free_pct if self.free_at_ns > now_ns else FULL_SHARE
        ends = [self.next_ns] if self.next_ns and self.free_at_ns > now_ns else []
        for sent in self.sent.values():
            if sent.start_ns + sent.run_ns > now_ns:
                left_pct -= sent.share_pct
                ends.append(sent.start_ns + sent.run_ns)
        if left_pct >= share_pct:
            return 0
        if left_pct <= 0 or not ends:
            return whole_ns
        next_ns = min(ends)
        return min(whole_ns, next_ns) if next_ns > now_ns else whole_ns

    def memory(self, sizes: Mapping[str, int]) -> tuple[frozenset[str], int]:
        """Which models are there, and how many bytes are free."""
        if not self.changes:
            return self.resident, self.free_bytes
        here, free_bytes = set(self.resident), self.free_bytes
        for weights, (_, comes) in self.changes.items():
            if comes and weights not in here:
                here.add(weights)
                free_bytes -= sizes.get(weights, 0)
            elif not comes and weights in here:
                here.discard(weights)
                free_bytes += sizes.get(weights, 0)
        return frozenset(here), max(0, free_bytes)
