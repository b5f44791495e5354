"""Which models go when another needs room.

Rules of this file: it only ranks; who may be touched at all is the cache's business and the same for every policy
(nothing in use, nothing that is loading, nothing that is needed as early as the newcomer). The order "look-ahead" is
Compass' (policy 1 of its GPU memory manager): what no queued batch needs, then what is needed last. Among models
that nobody needs, hinted ones go after the others. Of the rest goes first what is worth the least for its room: a
model is taken to be needed again after as long as it has not been used, and then takes its load. Where loads take as
long as models are large, that is the least recently used. Where small models take nearly as long as large ones, small
ones stay. If some that were named turn out not to be needed, they stay as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import truediv

import msgspec

from ..units import format_bytes, format_ns

__all__ = ["MAX_REASON_CHARS", "Candidate", "Victim", "choose", "short"]

#: Length of a reason at most; logs hold one for each eviction.
MAX_REASON_CHARS = 160
#: Longest name in a reason; content hashes are longer and nobody reads them to the end.
MAX_NAME_CHARS = 40


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A model that could go."""

    weights: str
    nbytes: int
    #: Last time a batch ran on it; -1 if none has since it was loaded.
    used_ns: int
    #: Number of its load: smaller is older.
    loaded: int
    hinted: bool
    #: What it would take to load it again.
    load_ns: int = 0

    def waste(self, now_ns: int) -> float:
        """Room that it takes over what it saves, both per time."""
        # The product is larger than a float holds exactly: only the interpreter's own division rounds once.
        waste: float = truediv((now_ns - self.used_ns) * self.nbytes, self.load_ns or max(1, self.nbytes))
        return waste


class Victim(msgspec.Struct, frozen=True, gc=False):
    """A model that is to go, and why."""

    weights: str
    nbytes: int
    reason: str


def choose(
    candidates: Iterable[Candidate],
    missing_bytes: int,
    needs: Mapping[str, int],
    newcomer: str,
    newcomer_bytes: int,
    now_ns: int,
    policy: str,
) -> list[Victim] | None:
    """From the front of the policy's order what frees `missing_bytes`; None if all of them would not do.

    `needs` gives the position in the queue (from 0) of the first batch that needs a model.
    """
    if policy == "fifo":
        ranked = sorted(candidates, key=lambda c: c.loaded)
    else:
        ranked = sorted(
            candidates,
            key=lambda c: (-needs.get(c.weights, 1 << 60), c.hinted, -c.waste(now_ns), c.loaded, c.weights),
        )
    going: list[Candidate] = []
    for candidate in ranked:
        if missing_bytes <= 0:
            break
        going.append(candidate)
        missing_bytes -= candidate.nbytes
    if missing_bytes > 0:
        return None
    if policy != "fifo" and going[-1].weights not in needs:
        for candidate in [c for c in reversed(going) if c.hinted is going[-1].hinted]:
            if missing_bytes + candidate.nbytes <= 0:
                going.remove(candidate)
                missing_bytes += candidate.nbytes
    return [
        Victim(c.weights, c.nbytes, _reason(c, needs.get(c.weights), newcomer, newcomer_bytes, now_ns, policy))
        for c in going
    ]


def _reason(
    candidate: Candidate, position: int | None, newcomer: str, newcomer_bytes: int, now_ns: int, policy: str
) -> str:
    room = f"room for {short(newcomer)} ({format_bytes(newcomer_bytes)}): "
    if policy == "fifo":
        text = "of what may go it was loaded first"
    elif position is not None:
        text = f"next needed by the {_ordinal(position + 1)} batch in the queue"
    else:
        used = "not used yet" if candidate.used_ns < 0 else f"last used {format_ns(now_ns - candidate.used_ns)} ago"
        text = f"nothing queued needs it, {used}" + (", though it was hinted at" if candidate.hinted else "")
    return (room + text)[:MAX_REASON_CHARS]


def short(name: str) -> str:
    """A name that fits into a sentence."""
    return name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 1] + "…"


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
