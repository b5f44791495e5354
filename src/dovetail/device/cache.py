"""A worker's memory for models, counted in bytes.

Rules of this file: it counts and refuses, and it chooses victims; when to load is the business of `loading`, and how
long that takes is nobody's here. A model is in one place at a time:

    absent -> loading -> resident -> host (if it fits there) or absent
    host -> loading

The room of a model that is `leaving` belongs to a newcomer that is loading; it can no longer be used, and is gone
when the newcomer is there (`Rules.fetch_blocks` only, where the cached set changes when a fetch ends).
Models are kept by `StageSpec.weights`. Those of no bytes need no room, so they are always there and never listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from ..units import format_bytes
from ..workflow.graph import StageSpec
from .eviction import Candidate, Victim, choose, short

__all__ = ["ModelCache", "Tier", "names_of"]

Tier = Literal["absent", "host", "loading", "resident", "leaving"]


class _Entry(msgspec.Struct, eq=False):
    weights: str
    nbytes: int
    tier: Tier = "absent"
    #: Batches that run on it.
    pins: int = 0
    #: Batches that are queued for it.
    wants: int = 0
    hinted: bool = False
    #: The ingress ordered it to be here: it goes when that says so, and for nobody else.
    kept: bool = False
    used_ns: int = -1
    loaded: int = 0
    #: Where it is being loaded from.
    source: Tier = "absent"


class ModelCache:
    """Models in a device's memory, and behind it those in host memory."""

    def __init__(
        self,
        budget_bytes: int,
        *,
        reserve_bytes: int = 0,
        host_bytes: int | None = None,
        eviction: Literal["look-ahead", "fifo"] = "look-ahead",
        names: Mapping[str, str] | None = None,
    ) -> None:
        """`reserve_bytes` of the budget are never used; `host_bytes` bounds host memory, None leaves it open.

        `names` is what people call models in reasons, where the key of their weights is a hash.
        """
        if not 0 <= reserve_bytes <= budget_bytes:
            raise ValueError(f"a reserve of {reserve_bytes} bytes does not fit into {budget_bytes} bytes")
        self.usable_bytes = budget_bytes - reserve_bytes
        #: Bytes of models that are resident or loading.
        self.used_bytes = 0
        self.host_bytes = host_bytes
        self.host_used_bytes = 0
        #: Models that batches are queued for and that are neither here nor loading.
        self.lacking: dict[str, None] = {}
        #: Models that are loading.
        self.loading: dict[str, None] = {}
        #: Models that were hinted at and that nothing is queued for.
        self.hints: dict[str, None] = {}
        self._eviction = eviction
        #: What it takes to load a model again, from where.
        self.load_ns: Callable[[str, str], int] = _unknown
        self._names = names or {}
        self._entries: dict[str, _Entry] = {}
        #: What is in host memory, least recently put there first.
        self._host: dict[str, _Entry] = {}
        self._loads = 0

    @property
    def free_bytes(self) -> int:
        """Room that nothing takes."""
        return self.usable_bytes - self.used_bytes

    def tier(self, weights: str) -> Tier:
        """Where a model is."""
        entry = self._entries.get(weights)
        return "absent" if entry is None else entry.tier

    def nbytes(self, weights: str) -> int:
        """Size of a model that was heard of."""
        return self._entries[weights].nbytes

    def in_use(self, weights: str) -> bool:
        """A batch runs on it or is queued for it, or it is on its way."""
        entry = self._entries.get(weights)
        return entry is not None and bool(entry.pins or entry.wants or entry.tier in ("loading", "leaving"))

    def listed(self, *tiers: Tier) -> tuple[str, ...]:
        """Models in any of these places, in the order in which they were first heard of."""
        return tuple(e.weights for e in self._entries.values() if e.tier in tiers)

    def too_large(self, weights: str, nbytes: int) -> str:
        """Why it can never be held, or nothing."""
        if nbytes <= self.usable_bytes:
            return ""
        name = short(self._names.get(weights, weights))
        return (
            f"{name} needs {format_bytes(nbytes)}, more than the {format_bytes(self.usable_bytes)} "
            f"that this worker has for models"
        )

    # -- who needs what ---------------------------------------------------------------------------------------

    def want(self, weights: str, nbytes: int) -> None:
        """A batch is queued for it."""
        entry = self._entry(weights, nbytes)
        entry.wants += 1
        entry.hinted = False
        self.hints.pop(weights, None)
        if entry.wants == 1 and entry.tier in ("absent", "host", "leaving"):
            self.lacking[weights] = None

    def unwant(self, weights: str) -> None:
        """A batch is no longer queued for it."""
        entry = self._entries[weights]
        entry.wants -= 1
        if not entry.wants:
            self.lacking.pop(weights, None)

    def pin(self, weights: str, now_ns: int) -> None:
        """A batch runs on it."""
        entry = self._entries[weights]
        entry.pins += 1
        entry.used_ns = now_ns

    def use(self, weights: str, now_ns: int) -> None:
        """A batch ran on it until now."""
        self._entries[weights].used_ns = now_ns

    def unpin(self, weights: str, now_ns: int) -> None:
        """A batch has ended that ran on it."""
        entry = self._entries[weights]
        entry.pins -= 1
        entry.used_ns = now_ns

    def hint(self, weights: str, nbytes: int) -> None:
        """Somebody expects that it will be needed."""
        entry = self._entry(weights, nbytes)
        if not entry.wants:
            entry.hinted = True
            self.hints[weights] = None

    def keep(self, weights: str, nbytes: int) -> None:
        """It is to be here until `let_go`."""
        self._entry(weights, nbytes).kept = True

    def let_go(self, weights: str) -> None:
        """It need not be here any more."""
        entry = self._entries.get(weights)
        if entry is not None:
            entry.kept = False

    def unhint(self, weights: str) -> None:
        """The hint has lapsed."""
        if self.hints.pop(weights, "") is None:
            self._entries[weights].hinted = False

    def _entry(self, weights: str, nbytes: int) -> _Entry:
        entry = self._entries.get(weights)
        if entry is None:
            entry = self._entries[weights] = _Entry(weights, nbytes)
        elif entry.tier == "absent":
            entry.nbytes = nbytes
        return entry

    # -- room -------------------------------------------------------------------------------------------------

    def room_for(
        self,
        weights: str,
        needs: Mapping[str, int],
        now_ns: int,
        *,
        evict: Literal["nothing", "idle", "later"] = "later",
    ) -> Sequence[Victim] | None:
        """What has to go for it: nothing, some models, or None if there is no way now.

        `needs` gives the position of the first batch in the queue that needs a model. Never goes what is in use,
        loading, or needed as early as `weights`; `evict` narrows it to what no batch needs, or to free room. A model
        that was merely hinted at makes nothing go that a batch needs, and nothing else that was hinted at.
        """
        entry = self._entries[weights]
        missing_bytes = entry.nbytes - self.free_bytes
        if missing_bytes <= 0:
            return ()
        if evict == "nothing":
            return None
        position = needs.get(weights)
        later = evict == "later" and position is not None
        candidates = [
            Candidate(e.weights, e.nbytes, e.used_ns, e.loaded, e.hinted, self.load_ns(e.weights, "host"))
            for e in self._entries.values()
            if e.tier == "resident"
            and not e.pins
            and not e.kept
            and ((needed := needs.get(e.weights)) is None or (later and needed > (position or 0)))
            and not (e.hinted and position is None)
        ]
        name = self._names.get(weights, weights)
        return choose(candidates, missing_bytes, needs, name, entry.nbytes, now_ns, self._eviction)

    # -- what happens to a model ------------------------------------------------------------------------------

    def load(self, weights: str) -> Tier:
        """It is being loaded; its room is taken from now on. Returns where it comes from."""
        entry = self._entries[weights]
        assert entry.tier in ("absent", "host") and entry.nbytes <= self.free_bytes
        entry.source, entry.tier = entry.tier, "loading"
        self.used_bytes += entry.nbytes
        self.loading[weights] = None
        self.lacking.pop(weights, None)
        return entry.source

    def loaded(self, weights: str) -> None:
        """It is here."""
        entry = self._entries[weights]
        assert entry.tier == "loading"
        del self.loading[weights]
        self._loads += 1
        entry.tier, entry.loaded, entry.used_ns = "resident", self._loads, -1
        self._leave_host(entry)

    def failed(self, weights: str) -> None:
        """It could not be loaded; it stays where it was."""
        entry = self._entries[weights]
        assert entry.tier == "loading"
        del self.loading[weights]
        self.used_bytes -= entry.nbytes
        entry.tier = "host" if weights in self._host else "absent"
        if entry.wants:
            self.lacking[weights] = None

    def leave(self, weights: str) -> None:
        """Its room is given away, and it will be gone when the newcomer is there."""
        entry = self._entries[weights]
        assert entry.tier == "resident" and not entry.pins
        entry.tier = "leaving"
        self.used_bytes -= entry.nbytes
        if entry.wants:
            self.lacking[weights] = None

    def stay(self, weights: str) -> bool:
        """The newcomer does not come after all: it stays if its room is still free; whether it is."""
        entry = self._entries[weights]
        assert entry.tier == "leaving"
        if entry.nbytes > self.free_bytes:
            return False
        entry.tier = "resident"
        self.used_bytes += entry.nbytes
        self.lacking.pop(weights, None)
        return True

    def evict(self, weights: str) -> bool:
        """It goes, into host memory if it fits there; whether it did."""
        entry = self._entries[weights]
        if entry.tier == "resident":
            self.leave(weights)
        assert entry.tier == "leaving"
        self.unhint(weights)
        entry.tier = "absent"
        return self.put_on_host(weights, entry.nbytes)

    def put_on_host(self, weights: str, nbytes: int) -> bool:
        """Keep a copy in host memory, where those that were put there first make room; whether it fits."""
        entry = self._entry(weights, nbytes)
        if entry.tier != "absent":
            return entry.tier == "host"
        if self.host_bytes is not None:
            for other in list(self._host.values()):
                if self.host_used_bytes + entry.nbytes <= self.host_bytes or entry.nbytes > self.host_bytes:
                    break
                if other.tier == "host":
                    self._leave_host(other)
                    other.tier = "absent"
            if self.host_used_bytes + entry.nbytes > self.host_bytes:
                return False
        entry.tier = "host"
        self._host[weights] = entry
        self.host_used_bytes += entry.nbytes
        return True

    def _leave_host(self, entry: _Entry) -> None:
        if self._host.pop(entry.weights, None) is not None:
            self.host_used_bytes -= entry.nbytes

    def validate(self, wants: Mapping[str, int], pins: Mapping[str, int]) -> None:
        """Check every invariant against what is said to be queued and running, by model."""
        entries = self._entries.values()
        here = [e for e in entries if e.tier in ("resident", "loading")]
        assert self.used_bytes == sum(e.nbytes for e in here) <= self.usable_bytes, "bytes within the budget"
        assert self.host_used_bytes == sum(e.nbytes for e in self._host.values()), "bytes in host memory"
        assert self.host_bytes is None or self.host_used_bytes <= self.host_bytes, "host memory within its budget"
        for e in entries:
            assert e.wants == wants.get(e.weights, 0), f"reference count of {e.weights}"
            assert e.pins == pins.get(e.weights, 0), f"pins of {e.weights}"
            assert not e.pins or e.tier in ("resident", "loading"), f"{e.weights} is in use and not here"
            assert e.tier != "host" or e.weights in self._host, f"{e.weights} is said to be in host memory"
            assert (e.weights in self.loading) == (e.tier == "loading"), f"{e.weights} is said to be loading"
            lacking = bool(e.wants) and e.tier in ("absent", "host", "leaving")
            assert (e.weights in self.lacking) == lacking, f"{e.weights} is said to be lacking"
            assert (e.weights in self.hints) == e.hinted, f"hint at {e.weights}"


def _unknown(weights: str, source: str) -> int:
    """Nothing is known of loads."""
    return 0


def names_of(stages: Iterable[StageSpec]) -> dict[str, str]:
    """What to call each model in a sentence: by the first stage that runs it, if it is a file."""
    names: dict[str, str] = {}
    for stage in stages:
        names.setdefault(stage.weights, stage.name if stage.path else stage.weights)
    return names
