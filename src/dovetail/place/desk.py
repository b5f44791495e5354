"""The desk of one worker: its queue, its memory for models and its share account.

It is pure, and simulated and live workers have the same one: whoever keeps it tells it what happened, with the time,
and carries out what it answers. Rules of this file:

- Batches start in the order (order, arrival). One that waits for its model lets others start before it, but at most
  `Rules.overtakes` of them while there is no room for the model; one that waits for nothing but share lets none.
- A model is loaded once however many batches want it. Loads run beside execution and beside each other.
- Room is made in the order of need (`eviction`), and nobody takes room that an earlier batch is waiting for.
- A batch ends once: it is refused, or it is started and then ended by whoever runs it.

With `Rules.fetch_blocks` it is the worker of Compass instead: a batch takes the whole device when it comes up, its
model is fetched then, the cached set changes when the fetch ends, and copying out what was evicted comes after that.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice

from ..state import WorkerRow
from ..state.worker import FULL_SHARE
from ..units import SECOND, format_ns
from .cache import ModelCache
from .eviction import MAX_REASON_CHARS, Victim
from .forecast import forecast
from .tickets import NOBODY, DeskAction, Evict, Load, Refuse, Rules, Start, Ticket, Wake

__all__ = ["Desk"]

#: How long a hint counts. Plans look less far ahead than that; unmeasured.
HINT_NS = 10 * SECOND
#: Batches that `free_at_ns` looks at one by one; those behind them are taken to fill the device without gaps.
FORECAST_BATCHES = 32


def _no_time(weights: str) -> int:
    """Letting go of a model takes no time: its weights are only read, so nothing needs to be copied."""
    return 0


class Desk:
    """Says what a worker does next."""

    def __init__(
        self,
        worker: int,
        cache: ModelCache,
        load_ns: Callable[[str, str], int],
        rules: Rules | None = None,
        *,
        unload_ns: Callable[[str], int] = _no_time,
    ) -> None:
        """`load_ns(weights, tier)` is how long a load from there is expected to take."""
        self.worker = worker
        self.cache = cache
        self.rules = rules or Rules()
        self.free_pct = FULL_SHARE
        self._load_ns = load_ns
        self._unload_ns = unload_ns
        self._tickets: dict[int, Ticket] = {}
        #: What may start, by key; what may not start yet, by time.
        self._queue: list[Ticket] = []
        self._early: list[Ticket] = []
        self._running: dict[int, Ticket] = {}
        self._arrivals = 0
        #: Sum of the expected times of what is queued, and the same weighed by share.
        self._queued_ns = 0
        self._queued_pct_ns = 0
        self._running_ns = 0
        #: When each load is expected to end.
        self._load_ends: dict[str, int] = {}
        #: Models that are being loaded for batches that have not come up yet.
        self._ahead: dict[str, None] = {}
        self._hinted_until: dict[str, int] = {}
        #: Models that go when another one has come, and the batch which that one is for.
        self._leaving: dict[str, tuple[int, Sequence[Victim]]] = {}
        #: The batch whose fetch occupies the device.
        self._fetching: Ticket | None = None
        self._free_at_ns: int | None = None

    # -- what happens -----------------------------------------------------------------------------------------

    def take(
        self,
        batch: int,
        weights: str,
        nbytes: int,
        share_pct: int,
        order: int,
        expected_ns: int,
        earliest_ns: int,
        latest_ns: int,
        now_ns: int,
    ) -> list[DeskAction]:
        """A batch has come. `latest_ns` is 0 if it may start at any time."""
        if batch in self._tickets:
            raise ValueError(f"batch {batch} was taken before")
        if not 0 < share_pct <= FULL_SHARE:
            return [Refuse(batch, "no_share", f"a share of {share_pct} % is not to be had on one device")]
        if problem := self.cache.too_large(weights, nbytes):
            return [Refuse(batch, "no_memory", problem)]
        self._arrivals += 1
        ticket = Ticket(
            batch, weights, nbytes, share_pct, (order, self._arrivals), expected_ns, earliest_ns, latest_ns
        )
        if latest_ns:
            start_ns = self._expected_start_ns(ticket, now_ns)
            if start_ns > latest_ns:
                late = format_ns(start_ns - latest_ns)
                return [Refuse(batch, "too_late", f"with the work before it, it would start {late} too late")]
        self._tickets[batch] = ticket
        self._queued_ns += expected_ns
        self._queued_pct_ns += expected_ns * share_pct
        if nbytes:
            self.cache.want(weights, nbytes)
        if earliest_ns > now_ns:
            insort(self._early, ticket, key=_by_time)
            return [Wake(earliest_ns), *self._go(now_ns)]
        insort(self._queue, ticket, key=_by_key)
        return self._go(now_ns)

    def tick(self, now_ns: int) -> list[DeskAction]:
        """A time has come that a `Wake` asked for."""
        return self._go(now_ns)

    def hint(self, weights: str, nbytes: int, now_ns: int) -> list[DeskAction]:
        """The model is going to be needed. Nothing is done if it is too large or there is no room for it."""
        if not nbytes or self.cache.too_large(weights, nbytes):
            return []
        self.cache.hint(weights, nbytes)
        self._hinted_until[weights] = now_ns + HINT_NS
        return self._go(now_ns)

    def loaded(self, weights: str, now_ns: int) -> list[DeskAction]:
        """A load has ended."""
        self.cache.loaded(weights)
        actions, wait_ns = self._load_ended(weights)
        ticket = self._fetching
        if ticket is not None and ticket.weights == weights:
            self._fetching = None
            if ticket.latest_ns and now_ns > ticket.latest_ns:
                self._release(ticket, now_ns)
                actions.append(_too_late(ticket, now_ns))
            else:
                ticket.begin_ns = now_ns + wait_ns
                actions.append(Start(ticket.batch, False, wait_ns))
        return actions + self._go(now_ns)

    def load_failed(self, weights: str, detail: str, now_ns: int) -> list[DeskAction]:
        """A load has failed, and so has what waited for it; whoever asks next tries again."""
        self.cache.failed(weights)
        self.cache.unhint(weights)
        actions, _ = self._load_ended(weights)
        for ticket in [t for t in self._tickets.values() if t.weights == weights and t.nbytes]:
            if ticket.batch in self._running:
                self._fetching = None
                self._release(ticket, now_ns)
            else:
                self._unqueue(ticket)
            actions.append(Refuse(ticket.batch, "not_loaded", detail[:MAX_REASON_CHARS]))
        return actions + self._go(now_ns)

    def ended(self, batch: int, now_ns: int) -> list[DeskAction]:
        """A batch that was started has ended, well or not."""
        self._release(self._running[batch], now_ns)
        return self._go(now_ns)

    def forget(self, batch: int, now_ns: int) -> list[DeskAction]:
        """Nobody wants the batch any more. If it runs, whoever runs it has stopped it."""
        ticket = self._tickets.get(batch)
        if ticket is None:
            return []
        if batch in self._running:
            if ticket is self._fetching:
                self._fetching = None
            self._release(ticket, now_ns)
        else:
            self._unqueue(ticket)
        return self._go(now_ns)

    def drop(self, weights: str, reason: str, now_ns: int) -> list[DeskAction]:
        """Somebody else wants the model gone: it goes if no batch runs on it or waits for it."""
        if self.cache.tier(weights) != "resident" or self.cache.in_use(weights):
            return []
        return [*self._evict([Victim(weights, self.cache.nbytes(weights), reason)], NOBODY), *self._go(now_ns)]

    # -- what is asked ----------------------------------------------------------------------------------------

    def row(self, now_ns: int) -> WorkerRow:
        """What this worker tells everybody about itself."""
        cache = self.cache
        if self.rules.fetch_blocks:
            resident = cache.listed("resident", "leaving")
            free_bytes = max(0, cache.usable_bytes - sum(map(cache.nbytes, resident)))
        else:
            resident, free_bytes = cache.listed("resident", "loading"), cache.free_bytes
        wait_ns = self._queued_ns + (self._running_ns if self.rules.counts_running else 0)
        return WorkerRow(self.worker, now_ns, wait_ns, self._free_at(now_ns), resident, free_bytes)

    def _free_at(self, now_ns: int) -> int:
        if not self._tickets:
            return now_ns
        if self._free_at_ns is None:
            first = list(islice(chain(self._queue, self._early), FORECAST_BATCHES))
            _, done_ns = forecast(
                self._running.values(), first, self.free_pct, self._fetch_ns(now_ns), self.rules, now_ns
            )
            rest = self._queued_pct_ns - sum(t.expected_ns * t.share_pct for t in first)
            self._free_at_ns = done_ns + rest // FULL_SHARE
        return max(now_ns, self._free_at_ns)

    def _expected_start_ns(self, ticket: Ticket, now_ns: int) -> int:
        before = [t for t in chain(self._queue, self._early) if t.key < ticket.key and t.earliest_ns <= now_ns]
        starts, _ = forecast(
            self._running.values(), [*before, ticket], self.free_pct, self._fetch_ns(now_ns), self.rules, now_ns
        )
        return starts[ticket.batch]

    def _fetch_ns(self, now_ns: int) -> Callable[[str], int]:
        def fetch_ns(weights: str) -> int:
            tier = self.cache.tier(weights)
            if tier == "resident":
                return 0
            if tier == "loading":
                return max(0, self._load_ends[weights] - now_ns)
            return self._load_ns(weights, "host" if tier == "leaving" else tier)

        return fetch_ns

    # -- what is decided --------------------------------------------------------------------------------------

    def _go(self, now_ns: int) -> list[DeskAction]:
        self._free_at_ns = None
        actions: list[DeskAction] = []
        while self._early and self._early[0].earliest_ns <= now_ns:
            insort(self._queue, self._early.pop(0), key=_by_key)
        if self.rules.fetch_blocks:
            self._come_up(now_ns, actions)
        else:
            self._start(now_ns, actions)
        if self.cache.lacking:
            self._load_for_batches(now_ns, actions)
        if self.cache.hints:
            self._load_for_hints(now_ns, actions)
        return actions

    def _start(self, now_ns: int, actions: list[DeskAction]) -> None:
        """Start whatever can be."""
        queue, rules, tier = self._queue, self.rules, self.cache.tier
        waiting: list[Ticket] = []
        at = 0
        while at < len(queue) and self.free_pct:
            ticket = queue[at]
            place = tier(ticket.weights) if ticket.nbytes else "resident"
            if ticket.latest_ns and now_ns > ticket.latest_ns:
                self._unqueue(ticket, at)
                actions.append(_too_late(ticket, now_ns))
            elif place != "resident":
                ticket.missed = ticket.missed or ticket.share_pct <= self.free_pct
                if rules.in_order or (place != "loading" and ticket.overtaken >= rules.overtakes):
                    break
                if place != "loading":
                    waiting.append(ticket)
                at += 1
            elif ticket.share_pct > self.free_pct:
                break
            else:
                self._occupy(ticket, at, now_ns)
                ticket.begin_ns = now_ns
                actions.append(Start(ticket.batch, not ticket.missed))
                for earlier in waiting:
                    earlier.overtaken += 1

    def _come_up(self, now_ns: int, actions: list[DeskAction]) -> None:
        """`Rules.fetch_blocks`: give the device to the first batch, and fetch its model."""
        cache = self.cache
        while self._queue and not self._running:
            ticket = self._queue[0]
            fetch_ns = self._fetch_ns(now_ns)(ticket.weights) if ticket.nbytes else 0
            if ticket.latest_ns and now_ns + fetch_ns > ticket.latest_ns:
                self._unqueue(ticket, 0)
                actions.append(_too_late(ticket, now_ns))
                continue
            if not ticket.nbytes or cache.tier(ticket.weights) == "resident":
                self._occupy(ticket, 0, now_ns)
                ticket.begin_ns = now_ns
                actions.append(Start(ticket.batch, not ticket.missed))
                return
            ticket.missed = True
            if cache.tier(ticket.weights) != "loading":
                victims = None
                if cache.tier(ticket.weights) != "leaving":
                    victims = cache.room_for(ticket.weights, self._needs(), now_ns)
                if victims is None:
                    return  # something is loading ahead, and there is room once it has come
                for victim in victims:
                    cache.leave(victim.weights)
                self._leaving[ticket.weights] = (ticket.batch, victims)
                self._load(ticket.weights, ticket.batch, now_ns, actions)
            self._occupy(ticket, 0, now_ns)
            self._fetching = ticket

    def _load_for_batches(self, now_ns: int, actions: list[DeskAction]) -> None:
        """Load what batches lack: for those that have come up, then ahead of time."""
        cache, rules = self.cache, self.rules
        needs: dict[str, int] | None = None
        for position, ticket in enumerate(chain(self._queue, self._early)):
            if not cache.lacking or len(cache.loading) >= rules.loads:
                return
            weights = ticket.weights
            if weights not in cache.lacking or cache.tier(weights) == "leaving":
                continue
            ahead = not ticket.missed
            if ahead and (position >= rules.look_ahead or len(self._ahead) >= rules.prefetch):
                continue
            needs = self._needs() if needs is None else needs
            victims = cache.room_for(weights, needs, now_ns, evict=not ahead or rules.prefetch_evicts)
            if victims is None:
                return  # nobody behind it takes the room that it waits for
            actions += self._evict(victims, ticket.batch)
            self._load(weights, ticket.batch, now_ns, actions)
            if ahead:
                self._ahead[weights] = None

    def _load_for_hints(self, now_ns: int, actions: list[DeskAction]) -> None:
        cache = self.cache
        for weights in list(cache.hints):
            if now_ns > self._hinted_until[weights]:
                cache.unhint(weights)
            elif (
                cache.tier(weights) in ("absent", "host")
                and not cache.lacking
                and len(cache.loading) < self.rules.loads
            ):
                victims = cache.room_for(weights, self._needs(), now_ns, evict=self.rules.hints_evict)
                if victims is not None:
                    actions += self._evict(victims, NOBODY)
                    self._load(weights, NOBODY, now_ns, actions)

    def _needs(self) -> dict[str, int]:
        """The position of the first batch that needs it, for each model that is needed."""
        needs: dict[str, int] = {}
        for position, ticket in enumerate(chain(self._queue, self._early)):
            if ticket.nbytes and ticket.weights not in needs:
                needs[ticket.weights] = position
        return needs

    # -- bookkeeping ------------------------------------------------------------------------------------------

    def _load(self, weights: str, batch: int, now_ns: int, actions: list[DeskAction]) -> None:
        tier = self.cache.load(weights)
        self._load_ends[weights] = now_ns + self._load_ns(weights, tier)
        actions.append(Load(weights, tier, batch))

    def _load_ended(self, weights: str) -> tuple[list[DeskAction], int]:
        """What goes now that a load has ended, and how long that takes."""
        del self._load_ends[weights]
        self._ahead.pop(weights, None)
        batch, victims = self._leaving.pop(weights, (NOBODY, ()))
        return self._evict(victims, batch), sum(self._unload_ns(v.weights) for v in victims)

    def _evict(self, victims: Iterable[Victim], batch: int) -> list[DeskAction]:
        return [Evict(v.weights, v.nbytes, v.reason, batch, self.cache.evict(v.weights)) for v in victims]

    def _occupy(self, ticket: Ticket, at: int, now_ns: int) -> None:
        """From the queue to what runs."""
        del self._queue[at]
        self._leave_queue(ticket)
        self._running[ticket.batch] = ticket
        self._running_ns += ticket.expected_ns
        self.free_pct -= ticket.share_pct
        if ticket.nbytes:
            self.cache.pin(ticket.weights, now_ns)

    def _release(self, ticket: Ticket, now_ns: int) -> None:
        """From what runs to nowhere."""
        del self._running[ticket.batch], self._tickets[ticket.batch]
        self._running_ns -= ticket.expected_ns
        self.free_pct += ticket.share_pct
        if ticket.nbytes:
            self.cache.unpin(ticket.weights, now_ns)

    def _unqueue(self, ticket: Ticket, at: int = -1) -> None:
        """From the queue to nowhere."""
        if at >= 0:
            del self._queue[at]
        elif ticket in self._early:
            self._early.remove(ticket)
        else:
            del self._queue[bisect_left(self._queue, ticket.key, key=_by_key)]
        del self._tickets[ticket.batch]
        self._leave_queue(ticket)

    def _leave_queue(self, ticket: Ticket) -> None:
        self._queued_ns -= ticket.expected_ns
        self._queued_pct_ns -= ticket.expected_ns * ticket.share_pct
        if ticket.nbytes:
            self.cache.unwant(ticket.weights)

    def validate(self) -> None:
        """Check every invariant; for tests."""
        queued = [*self._queue, *self._early]
        running = list(self._running.values())
        assert self._queue == sorted(self._queue, key=_by_key), "the queue is in order"
        assert {t.batch for t in [*queued, *running]} == set(self._tickets), "every batch is in one place"
        assert len(queued) + len(running) == len(self._tickets), "every batch is in one place only"
        assert self.free_pct == FULL_SHARE - sum(t.share_pct for t in running) >= 0, "shares within the device"
        assert self._queued_ns == sum(t.expected_ns for t in queued)
        assert self._queued_pct_ns == sum(t.expected_ns * t.share_pct for t in queued)
        assert self._running_ns == sum(t.expected_ns for t in running)
        assert set(self._load_ends) == set(self.cache.loading) >= set(self._ahead)
        assert not self.rules.fetch_blocks or len(running) <= 1, "one batch at a time"
        for t in running:
            here = "loading" if t is self._fetching else "resident"
            assert not t.nbytes or self.cache.tier(t.weights) == here, f"batch {t.batch} runs without its model"
        wants = Counter(t.weights for t in queued if t.nbytes)
        pins = Counter(t.weights for t in running if t.nbytes)
        self.cache.validate(wants, pins)


def _too_late(ticket: Ticket, now_ns: int) -> Refuse:
    late_ns = max(0, now_ns - ticket.latest_ns)
    return Refuse(ticket.batch, "too_late", f"it could not start in time; it is {format_ns(late_ns)} late")


def _by_key(ticket: Ticket) -> tuple[int, int]:
    return ticket.key


def _by_time(ticket: Ticket) -> tuple[int, tuple[int, int]]:
    return ticket.earliest_ns, ticket.key
