"""Which models come and go: for batches that have come up, ahead of time, by hints and by order.

Rules of this file
- A model is loaded once however many batches want it. Loads run beside execution and beside each other.
- Room is made in the order of need (`eviction`), and nobody takes room that an earlier batch is waiting for.
- What the ingress ordered stays until the ingress drops it. A hint lapses.
- A model in use never goes; one that somebody wants gone goes when its last batch has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from ..units import SECOND
from .cache import ModelCache
from .events import NOBODY, DeviceAction, Evict, Load
from .eviction import MAX_REASON_CHARS, Victim
from .queue import WorkerQueue
from .rules import Rules
from .task import Task
from .times import DeviceTimes

__all__ = ["Loading"]

#: How long a hint counts. Plans look less far ahead than that; unmeasured.
HINT_NS = 10 * SECOND


class Loading:
    """Decides on loads and evictions of one device."""

    def __init__(self, cache: ModelCache, rules: Rules, times: DeviceTimes) -> None:
        self._cache = cache
        cache.load_ns = times.load_ns
        self._rules = rules
        self._times = times
        self._queue: WorkerQueue
        #: The batch whose fetch occupies the device.
        self.fetching: Task | None = None
        #: Models that are being loaded for batches that have not come up yet.
        self._ahead: dict[str, None] = {}
        self._hinted_until: dict[str, int] = {}
        #: Models that were ordered and are not here yet.
        self.orders: dict[str, None] = {}
        #: Models that go as soon as nobody uses them, and why.
        self.drops: dict[str, str] = {}
        #: Models that go when another one has come, and the batch which that one is for.
        self._leaving: dict[str, tuple[int, Sequence[Victim]]] = {}

    def attach(self, queue: WorkerQueue) -> None:
        """The queue whose batches need models."""
        self._queue = queue

    @property
    def busy(self) -> bool:
        """Whether `go` has anything to look at."""
        return bool(self._cache.lacking or self._cache.hints or self.orders or self.drops)

    # -- what is asked for --------------------------------------------------------------------------------------

    def hint(self, weights: str, nbytes: int, now_ns: int) -> None:
        """The model is going to be needed."""
        self._cache.hint(weights, nbytes)
        self._hinted_until[weights] = now_ns + HINT_NS

    def order(self, weights: str, nbytes: int) -> None:
        """The model is to be here."""
        self._cache.keep(weights, nbytes)
        self.drops.pop(weights, None)
        if self._cache.tier(weights) != "resident":
            self.orders[weights] = None

    def drop(self, weights: str, reason: str) -> list[DeviceAction]:
        """The model is to go: now, or when its last batch has ended."""
        cache = self._cache
        cache.let_go(weights)
        self.orders.pop(weights, None)
        if cache.in_use(weights):
            self.drops[weights] = reason
            return []
        if cache.tier(weights) != "resident":
            return []
        victim = Victim(weights, cache.nbytes(weights), reason[:MAX_REASON_CHARS])
        return self._evict([victim], NOBODY, "")

    def set_budget(self, usable_bytes: int, reason: str) -> list[DeviceAction]:
        """Models may take so much; what is beyond goes as far as it is idle."""
        cache = self._cache
        cache.usable_bytes = usable_bytes
        actions: list[DeviceAction] = []
        for weights in cache.listed("resident"):
            if cache.used_bytes > usable_bytes and not cache.in_use(weights):
                actions += self._evict([Victim(weights, cache.nbytes(weights), reason)], NOBODY, "")
        return actions

    # -- what is decided ----------------------------------------------------------------------------------------

    def go(self, now_ns: int, actions: list[DeviceAction]) -> None:
        """Load what batches lack, what was ordered and what was hinted at; let go what is to go."""
        cache = self._cache
        for weights in [w for w in self.drops if cache.tier(w) == "resident" and not cache.in_use(w)]:
            actions += self.drop(weights, self.drops.pop(weights))
        for weights in [w for w in self.orders if cache.tier(w) not in ("loading", "leaving")]:
            if cache.tier(weights) == "resident":
                del self.orders[weights]
                continue
            victims = cache.room_for(weights, self._queue.needs(), now_ns, evict="idle")
            if victims is not None:
                actions += self._evict(victims, NOBODY, weights)
                self._load(weights, NOBODY, now_ns, actions)
        if cache.lacking:
            self._load_for_batches(now_ns, actions)
        if cache.hints:
            self._load_for_hints(now_ns, actions)

    def fetch(self, task: Task, now_ns: int, actions: list[DeviceAction]) -> bool:
        """`Rules.fetch_blocks`: bring the model of the batch that has come up; False if there is no room yet."""
        cache, weights = self._cache, task.weights
        if cache.tier(weights) != "loading":
            victims: Sequence[Victim] | None = None
            if cache.tier(weights) != "leaving":
                victims = cache.room_for(weights, self._queue.needs(), now_ns)
            if victims is None:
                return False
            for victim in victims:
                cache.leave(victim.weights)
            self._leaving[weights] = (task.ident, victims)
            self._load(weights, task.ident, now_ns, actions)
        self.fetching = task
        return True

    def _load_for_batches(self, now_ns: int, actions: list[DeviceAction]) -> None:
        """Load what batches lack: for those that have come up, then ahead of time."""
        cache, rules, queue = self._cache, self._rules, self._queue
        needs: dict[str, int] | None = None
        for position, task in enumerate(queue.line()):
            if not cache.lacking or len(cache.loading) >= rules.loads:
                return
            weights = task.weights
            if weights not in cache.lacking or cache.tier(weights) == "leaving":
                continue
            ahead = rules.fetch_blocks or not task.missed  # a fetch that blocks begins with its batch
            if ahead and (position >= rules.look_ahead or len(self._ahead) >= rules.prefetch):
                continue
            needs = queue.needs() if needs is None else needs
            victims = cache.room_for(weights, needs, now_ns, evict=rules.prefetch_evicts if ahead else "later")
            if victims is None:
                return  # nobody behind it takes the room that it waits for
            actions += self._evict(victims, task.ident, weights)
            self._load(weights, task.ident, now_ns, actions)
            if ahead:
                self._ahead[weights] = None

    def _load_for_hints(self, now_ns: int, actions: list[DeviceAction]) -> None:
        cache = self._cache
        for weights in list(cache.hints):
            if now_ns > self._hinted_until[weights]:
                cache.unhint(weights)
            elif (
                cache.tier(weights) in ("absent", "host")
                and not cache.lacking
                and len(cache.loading) < self._rules.loads
            ):
                evict: Literal["nothing", "idle"] = "idle" if self._rules.hints_evict else "nothing"
                victims = cache.room_for(weights, self._queue.needs(), now_ns, evict=evict)
                if victims is not None:
                    actions += self._evict(victims, NOBODY, weights)
                    self._load(weights, NOBODY, now_ns, actions)

    # -- what has happened --------------------------------------------------------------------------------------

    def done(self, weights: str) -> tuple[list[DeviceAction], Sequence[Victim]]:
        """A load has ended; what goes now, if it had not gone at once."""
        self._cache.loaded(weights)
        task, victims = self._load_ended(weights)
        return self._evict(victims, task, weights), victims

    def broke(self, weights: str) -> list[DeviceAction]:
        """A load has failed: what was to make room stays, if its room is still free."""
        cache = self._cache
        cache.failed(weights)
        cache.unhint(weights)
        cache.let_go(weights)
        if self.fetching is not None and self.fetching.weights == weights:
            self.fetching = None
        task, victims = self._load_ended(weights)
        gone = [victim for victim in victims if not cache.stay(victim.weights)]
        return self._evict(gone, task, weights)

    def fetch_ns(self, weights: str, now_ns: int) -> int:
        """How long until the model could be here."""
        tier = self._cache.tier(weights)
        if tier == "resident":
            return 0
        if tier == "loading":
            return max(0, self._queue.load_ends[weights] - now_ns)
        return self._times.load_ns(weights, "host" if tier == "leaving" else tier)

    def _load(self, weights: str, task: int, now_ns: int, actions: list[DeviceAction]) -> None:
        tier = self._cache.load(weights)
        self._queue.load_ends[weights] = now_ns + self._times.load_ns(weights, tier)
        actions.append(Load(weights, tier, task))

    def _load_ended(self, weights: str) -> tuple[int, Sequence[Victim]]:
        """The batch that it was for and the models that were to go for it, if they had not gone at once."""
        del self._queue.load_ends[weights]
        self._ahead.pop(weights, None)
        self.orders.pop(weights, None)
        return self._leaving.pop(weights, (NOBODY, ()))

    def _evict(self, victims: Iterable[Victim], task: int, newcomer: str) -> list[DeviceAction]:
        actions: list[DeviceAction] = []
        for victim in victims:
            self._cache.evict(victim.weights)
            actions.append(Evict(victim.weights, victim.nbytes, victim.reason, task, newcomer))
        return actions

    def validate(self) -> None:
        """Check every invariant; for tests."""
        loads = set(self._queue.load_ends)
        assert loads == set(self._cache.loading) >= set(self._ahead), "loads and their ends"
