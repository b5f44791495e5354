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

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from ..state import WorkerRow
from ..state.worker import FULL_SHARE
from ..units import SECOND, format_ns
from .book import Book
from .cache import ModelCache
from .eviction import MAX_REASON_CHARS, Victim
from .tickets import NOBODY, DeskAction, Evict, Load, Refuse, Rules, Start, Ticket, Wake

__all__ = ["Desk"]

#: How long a hint counts. Plans look less far ahead than that; unmeasured.
HINT_NS = 10 * SECOND


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
        self._load_ns = load_ns
        self._unload_ns = unload_ns
        self._book = Book(cache, self.rules, self._fetch_ns)
        #: Models that are being loaded for batches that have not come up yet.
        self._ahead: dict[str, None] = {}
        self._hinted_until: dict[str, int] = {}
        #: Models that go when another one has come, and the batch which that one is for.
        self._leaving: dict[str, tuple[int, Sequence[Victim]]] = {}
        #: The batch whose fetch occupies the device.
        self._fetching: Ticket | None = None
        #: When all will have ended, if that was asked since something changed.
        self._done_ns: int | None = None

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
        accept_ns: int = 0,
    ) -> list[DeskAction]:
        """A batch has come. `latest_ns` is 0 if it may start at any time.

        It is refused if it is not expected to start by `latest_ns`, or by `accept_ns`; whether it then does start by
        `accept_ns` is not looked at any more, since a batch that could start now is better run than sent on.
        """
        if batch in self._book.tickets:
            raise ValueError(f"batch {batch} was taken before")
        if not 0 < share_pct <= FULL_SHARE:
            return [Refuse(batch, "no_share", f"a share of {share_pct} % is not to be had on one device")]
        if problem := self.cache.too_large(weights, nbytes):
            return [Refuse(batch, "no_memory", problem)]
        key = (order, self._book.number())
        ticket = Ticket(batch, weights, nbytes, share_pct, key, expected_ns, earliest_ns, latest_ns)
        limit_ns = min(latest_ns or accept_ns, accept_ns or latest_ns)
        if limit_ns:
            start_ns = self._book.expected_start_ns(ticket, now_ns)
            if start_ns > limit_ns:
                late = format_ns(start_ns - limit_ns)
                return [Refuse(batch, "too_late", f"with the work before it, it would start {late} too late")]
        self._book.add(ticket, now_ns)
        if earliest_ns > now_ns:
            return [Wake(earliest_ns), *self._go(now_ns)]
        return self._go(now_ns)

    def tick(self, now_ns: int) -> list[DeskAction]:
        """A time has come that a `Wake` asked for."""
        return self._go(now_ns)

    def hint(self, weights: str, nbytes: int, now_ns: int) -> list[DeskAction]:
        """The model is going to be needed. It waits for room, and lapses; with prefetching off it is ignored."""
        if not nbytes or not self.rules.prefetch or self.cache.too_large(weights, nbytes):
            return []
        self.cache.hint(weights, nbytes)
        self._hinted_until[weights] = now_ns + HINT_NS
        return self._go(now_ns)

    def loaded(self, weights: str, now_ns: int) -> list[DeskAction]:
        """A load has ended."""
        self.cache.loaded(weights)
        batch, victims = self._load_ended(weights)
        actions = self._evict(victims, batch, weights)
        ticket = self._fetching
        if ticket is not None and ticket.weights == weights:
            self._fetching = None
            if ticket.latest_ns and now_ns > ticket.latest_ns:
                self._book.release(ticket, now_ns)
                actions.append(_too_late(ticket, now_ns))
            else:
                wait_ns = sum(self._unload_ns(victim.weights) for victim in victims)
                ticket.begin_ns = now_ns + wait_ns
                actions.append(Start(ticket.batch, False, wait_ns))
        return actions + self._go(now_ns)

    def load_failed(self, weights: str, detail: str, now_ns: int) -> list[DeskAction]:
        """A load has failed, and so has what waited for it; whoever asks next tries again."""
        self.cache.failed(weights)
        self.cache.unhint(weights)
        batch, victims = self._load_ended(weights)
        gone = [victim for victim in victims if not self.cache.stay(victim.weights)]
        actions = self._evict(gone, batch, weights)
        for ticket in [t for t in self._book.tickets.values() if t.weights == weights and t.nbytes]:
            if ticket.batch in self._book.running:
                self._fetching = None
                self._book.release(ticket, now_ns)
            else:
                self._book.remove(ticket)
            actions.append(Refuse(ticket.batch, "not_loaded", detail[:MAX_REASON_CHARS]))
        return actions + self._go(now_ns)

    def ended(self, batch: int, now_ns: int) -> list[DeskAction]:
        """A batch that was started has ended, well or not."""
        self._book.release(self._book.running[batch], now_ns)
        return self._go(now_ns)

    def forget(self, batch: int, now_ns: int) -> list[DeskAction]:
        """Nobody wants the batch any more. If it runs, whoever runs it has stopped it."""
        ticket = self._book.tickets.get(batch)
        if ticket is None:
            return []
        if batch in self._book.running:
            if ticket is self._fetching:
                self._fetching = None
            self._book.release(ticket, now_ns)
        else:
            self._book.remove(ticket)
        return self._go(now_ns)

    def drop(self, weights: str, reason: str, now_ns: int) -> list[DeskAction]:
        """Somebody else wants the model gone: it goes if no batch runs on it or waits for it."""
        if self.cache.tier(weights) != "resident" or self.cache.in_use(weights):
            return []
        victim = Victim(weights, self.cache.nbytes(weights), reason[:MAX_REASON_CHARS])
        return [*self._evict([victim], NOBODY, ""), *self._go(now_ns)]

    # -- what is asked ----------------------------------------------------------------------------------------

    def row(self, now_ns: int) -> WorkerRow:
        """What this worker tells everybody about itself."""
        cache = self.cache
        if self.rules.fetch_blocks:
            resident = cache.listed("resident", "leaving")
            free_bytes = max(0, cache.usable_bytes - sum(map(cache.nbytes, resident)))
        else:
            resident, free_bytes = cache.listed("resident", "loading"), cache.free_bytes
        book = self._book
        if self._done_ns is None:
            self._done_ns = book.done_ns(now_ns) if book.tickets else 0
        wait_ns = book.queued_ns + (book.running_ns if self.rules.counts_running else 0)
        return WorkerRow(self.worker, now_ns, wait_ns, max(now_ns, self._done_ns), resident, free_bytes)

    def _fetch_ns(self, weights: str, now_ns: int) -> int:
        """How long until the model could be here."""
        tier = self.cache.tier(weights)
        if tier == "resident":
            return 0
        if tier == "loading":
            return max(0, self._book.load_ends[weights] - now_ns)
        return self._load_ns(weights, "host" if tier == "leaving" else tier)

    # -- what is decided --------------------------------------------------------------------------------------

    def _go(self, now_ns: int) -> list[DeskAction]:
        self._done_ns = None
        actions: list[DeskAction] = []
        self._book.admit(now_ns)
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
        book, rules, tier = self._book, self.rules, self.cache.tier
        queue = book.queue
        waiting: list[Ticket] = []
        at = 0
        while at < len(queue) and book.free_pct:
            ticket = queue[at]
            place = tier(ticket.weights) if ticket.nbytes else "resident"
            if ticket.latest_ns and now_ns > ticket.latest_ns:
                book.remove(ticket)
                actions.append(_too_late(ticket, now_ns))
            elif place != "resident":
                ticket.missed = ticket.missed or ticket.share_pct <= book.free_pct
                if rules.in_order or (place != "loading" and ticket.overtaken >= rules.overtakes):
                    break
                if place != "loading":
                    waiting.append(ticket)
                at += 1
            elif ticket.share_pct > book.free_pct:
                break
            else:
                book.occupy(at, now_ns)
                ticket.begin_ns = now_ns
                actions.append(Start(ticket.batch, not ticket.missed))
                for earlier in waiting:
                    earlier.overtaken += 1

    def _come_up(self, now_ns: int, actions: list[DeskAction]) -> None:
        """`Rules.fetch_blocks`: give the device to the first batch, and fetch its model."""
        book, cache = self._book, self.cache
        while book.queue and not book.running:
            ticket = book.queue[0]
            fetch_ns = self._fetch_ns(ticket.weights, now_ns) if ticket.nbytes else 0
            if ticket.latest_ns and now_ns + fetch_ns > ticket.latest_ns:
                book.remove(ticket)
                actions.append(_too_late(ticket, now_ns))
                continue
            if not ticket.nbytes or cache.tier(ticket.weights) == "resident":
                book.occupy(0, now_ns)
                ticket.begin_ns = now_ns
                actions.append(Start(ticket.batch, not ticket.missed))
                return
            ticket.missed = True
            if cache.tier(ticket.weights) != "loading":
                victims = None
                if cache.tier(ticket.weights) != "leaving":
                    victims = cache.room_for(ticket.weights, self._book.needs(), now_ns)
                if victims is None:
                    return  # something is loading ahead, and there is room once it has come
                for victim in victims:
                    cache.leave(victim.weights)
                self._leaving[ticket.weights] = (ticket.batch, victims)
                self._load(ticket.weights, ticket.batch, now_ns, actions)
            book.occupy(0, now_ns)
            self._fetching = ticket

    def _load_for_batches(self, now_ns: int, actions: list[DeskAction]) -> None:
        """Load what batches lack: for those that have come up, then ahead of time."""
        cache, rules = self.cache, self.rules
        needs: dict[str, int] | None = None
        for position, ticket in enumerate(self._book.waiting()):
            if not cache.lacking or len(cache.loading) >= rules.loads:
                return
            weights = ticket.weights
            if weights not in cache.lacking or cache.tier(weights) == "leaving":
                continue
            ahead = rules.fetch_blocks or not ticket.missed  # a fetch that blocks has begun in `_come_up`
            if ahead and (position >= rules.look_ahead or len(self._ahead) >= rules.prefetch):
                continue
            needs = self._book.needs() if needs is None else needs
            victims = cache.room_for(weights, needs, now_ns, evict=rules.prefetch_evicts if ahead else "later")
            if victims is None:
                return  # nobody behind it takes the room that it waits for
            actions += self._evict(victims, ticket.batch, weights)
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
                evict: Literal["nothing", "idle"] = "idle" if self.rules.hints_evict else "nothing"
                victims = cache.room_for(weights, self._book.needs(), now_ns, evict=evict)
                if victims is not None:
                    actions += self._evict(victims, NOBODY, weights)
                    self._load(weights, NOBODY, now_ns, actions)

    # -- bookkeeping ------------------------------------------------------------------------------------------

    def _load(self, weights: str, batch: int, now_ns: int, actions: list[DeskAction]) -> None:
        tier = self.cache.load(weights)
        self._book.load_ends[weights] = now_ns + self._load_ns(weights, tier)
        actions.append(Load(weights, tier, batch))

    def _load_ended(self, weights: str) -> tuple[int, Sequence[Victim]]:
        """The batch that it was for and the models that were to go for it, if they had not gone at once."""
        del self._book.load_ends[weights]
        self._ahead.pop(weights, None)
        return self._leaving.pop(weights, (NOBODY, ()))

    def _evict(self, victims: Iterable[Victim], batch: int, newcomer: str) -> list[DeskAction]:
        return [Evict(v.weights, v.nbytes, v.reason, batch, newcomer, self.cache.evict(v.weights)) for v in victims]

    def validate(self) -> None:
        """Check every invariant; for tests."""
        book = self._book
        book.validate()
        assert set(self._book.load_ends) == set(self.cache.loading) >= set(self._ahead), "loads and their ends"
        for ticket in book.running.values():
            here = "loading" if ticket is self._fetching else "resident"
            assert not ticket.nbytes or self.cache.tier(ticket.weights) == here, f"batch {ticket.batch} has no model"


def _too_late(ticket: Ticket, now_ns: int) -> Refuse:
    late_ns = max(0, now_ns - ticket.latest_ns)
    return Refuse(ticket.batch, "too_late", f"it could not start in time; it is {format_ns(late_ns)} late")
