"""What a desk has taken: queued, queued for later, running. It keeps the sums, and counts who needs which model.

Rule of this file: it decides nothing. Every batch is in one place; its model is wanted while it is queued and pinned
while it runs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice

from ..state.worker import FULL_SHARE
from .cache import ModelCache
from .forecast import forecast
from .tickets import Rules, Ticket

__all__ = ["Book"]

#: Batches that `free_at_ns` looks at one by one; those behind them are taken to fill the device without gaps.
FORECAST_BATCHES = 32


class Book:
    """Batches that were taken and have not ended."""

    def __init__(self, cache: ModelCache, rules: Rules, fetch_ns: Callable[[str, int], int]) -> None:
        """`fetch_ns(weights, now)` says how long it takes until a model could be here; 0 if it is."""
        self.tickets: dict[int, Ticket] = {}
        #: What may start, by (order, arrival).
        self.queue: list[Ticket] = []
        #: What may not start yet, by time.
        self.early: list[Ticket] = []
        self.running: dict[int, Ticket] = {}
        #: When each load on its way is expected to end.
        self.load_ends: dict[str, int] = {}
        self.free_pct = FULL_SHARE
        #: Sums of expected times.
        self.queued_ns = 0
        self.running_ns = 0
        self._queued_pct_ns = 0
        self._arrivals = 0
        self._cache = cache
        self._rules = rules
        self._fetch_ns = fetch_ns

    def number(self) -> int:
        """The next arrival's."""
        self._arrivals += 1
        return self._arrivals

    def waiting(self) -> Iterator[Ticket]:
        """What is queued, in the order in which it is expected to start."""
        return chain(self.queue, self.early)

    def needs(self) -> dict[str, int]:
        """The position of the first batch that needs it, for each model that is needed."""
        needs: dict[str, int] = {}
        for position, ticket in enumerate(self.waiting()):
            if ticket.nbytes and ticket.weights not in needs:
                needs[ticket.weights] = position
        return needs

    # -- from place to place ----------------------------------------------------------------------------------

    def add(self, ticket: Ticket, now_ns: int) -> None:
        """From outside into the queue."""
        self.tickets[ticket.batch] = ticket
        self.queued_ns += ticket.expected_ns
        self._queued_pct_ns += ticket.expected_ns * ticket.share_pct
        if ticket.nbytes:
            self._cache.want(ticket.weights, ticket.nbytes)
        if ticket.earliest_ns > now_ns:
            insort(self.early, ticket, key=_by_time)
        else:
            insort(self.queue, ticket, key=_by_key)

    def admit(self, now_ns: int) -> None:
        """What may start from now on joins the queue."""
        while self.early and self.early[0].earliest_ns <= now_ns:
            insort(self.queue, self.early.pop(0), key=_by_key)

    def occupy(self, at: int, now_ns: int) -> Ticket:
        """From position `at` of the queue to what runs."""
        ticket = self.queue.pop(at)
        self._leave_queue(ticket)
        self.running[ticket.batch] = ticket
        self.running_ns += ticket.expected_ns
        self.free_pct -= ticket.share_pct
        if ticket.nbytes:
            self._cache.pin(ticket.weights, now_ns)
        return ticket

    def release(self, ticket: Ticket, now_ns: int) -> None:
        """From what runs to outside."""
        del self.running[ticket.batch], self.tickets[ticket.batch]
        self.running_ns -= ticket.expected_ns
        self.free_pct += ticket.share_pct
        if ticket.nbytes:
            self._cache.unpin(ticket.weights, now_ns)

    def remove(self, ticket: Ticket) -> None:
        """From the queue to outside."""
        line, by, key = self.queue, _by_key, ticket.key
        at = bisect_left(line, key, key=by)
        if at < len(line) and line[at] is ticket:
            del line[at]
        else:
            self.early.remove(ticket)
        del self.tickets[ticket.batch]
        self._leave_queue(ticket)

    def _leave_queue(self, ticket: Ticket) -> None:
        self.queued_ns -= ticket.expected_ns
        self._queued_pct_ns -= ticket.expected_ns * ticket.share_pct
        if ticket.nbytes:
            self._cache.unwant(ticket.weights)

    # -- estimates --------------------------------------------------------------------------------------------

    def expected_start_ns(self, ticket: Ticket, now_ns: int) -> int:
        """When a batch that is not in the book yet would start, behind what runs and what comes before it."""
        line = [t for t in self.queue if t.key < ticket.key]
        line.append(ticket)
        starts, _ = forecast(self.running.values(), line, self._fetch_ns, self.load_ends, self._rules, now_ns)
        return starts[ticket.batch]

    def done_ns(self, now_ns: int) -> int:
        """When all of it will have ended."""
        first = list(islice(self.waiting(), FORECAST_BATCHES))
        _, done_ns = forecast(self.running.values(), first, self._fetch_ns, self.load_ends, self._rules, now_ns)
        rest_pct_ns = self._queued_pct_ns - sum(t.expected_ns * t.share_pct for t in first)
        return done_ns + rest_pct_ns // FULL_SHARE

    def validate(self) -> None:
        """Check every invariant, those of the memory too."""
        queued = list(self.waiting())
        running = list(self.running.values())
        assert self.queue == sorted(self.queue, key=_by_key), "the queue is in order"
        assert {t.batch for t in [*queued, *running]} == set(self.tickets), "every batch is somewhere"
        assert len(queued) + len(running) == len(self.tickets), "every batch is in one place"
        assert self.free_pct == FULL_SHARE - sum(t.share_pct for t in running) >= 0, "shares within the device"
        assert self.queued_ns == sum(t.expected_ns for t in queued), "sum of what is queued"
        assert self._queued_pct_ns == sum(t.expected_ns * t.share_pct for t in queued), "area of what is queued"
        assert self.running_ns == sum(t.expected_ns for t in running), "sum of what runs"
        assert not self._rules.fetch_blocks or len(running) <= 1, "one batch at a time"
        wants = Counter(t.weights for t in queued if t.nbytes)
        pins = Counter(t.weights for t in running if t.nbytes)
        self._cache.validate(wants, pins)


def _by_key(ticket: Ticket) -> tuple[int, int]:
    return ticket.key


def _by_time(ticket: Ticket) -> tuple[int, tuple[int, int]]:
    return ticket.earliest_ns, ticket.key
