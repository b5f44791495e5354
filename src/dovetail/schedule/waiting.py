"""Items that wait, by when they have to begin: how long a queue may be held, and who has no chance any more.

Rules of this file
- A hold ends before the first of all that wait in the queue has to begin, whatever its class.
- Who cannot be in time any more is given up only if something waits that can: otherwise nobody is in anybody's way.
- An item is forgotten when it has begun or its request has ended; memory is that of what waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from ..state import Item, Queue, Request
from ..units import MS, format_ns
from .protocol import Hold, Refusal

__all__ = ["HOLD_MARGIN_NS", "LastChances", "Urgent"]

#: A hold ends this much before the last moment at which its plan is in time: timers are not exact.
HOLD_MARGIN_NS = 1 * MS
#: No hold goes on when less is left than this part of the mean time of the fastest way, in per cent. [our choice]
SAFE_PCT = 125
#: A request has no chance any more when less is left than this part of the mean time of the fastest way, in per cent.
HOPELESS_PCT = 90

#: (when, number, item): numbers keep items from being compared.
_Entry = tuple[int, int, Item]


class Urgent:
    """Queue by queue, who has to begin first."""

    def __init__(self) -> None:
        self._queues: dict[str, list[_Entry]] = {}
        self._noted = 0

    def note(self, key: str, item: Item, rest_ns: int) -> None:
        """An item has joined a queue; the rest of its request takes so long at best."""
        self._noted = noted = self._noted + 1
        entries = self._queues.get(key)
        if entries is None:
            entries = self._queues[key] = []
        elif entries:
            _forget(entries)
        heappush(entries, (item.request.objective_ns - rest_ns * SAFE_PCT // 100, noted, item))

    def first(self, key: str) -> Item | None:
        """Who has to begin first of all that wait in a queue, whatever its class."""
        entries = self._queues.get(key)
        if not entries:
            return None
        _forget(entries)
        return entries[0][2] if entries else None

    def hold(self, queue: Queue, longest_ns: int, reason: str, now_ns: int) -> Hold | None:
        """A hold of this length, or of as much of it as everybody has; None if somebody has to begin."""
        until_ns = now_ns + max(HOLD_MARGIN_NS, longest_ns)
        first = self.first(queue.key)
        if first is not None:
            until_ns = min(until_ns, self._queues[queue.key][0][0] - HOLD_MARGIN_NS)
        return Hold(until_ns, reason) if until_ns > now_ns else None


def _forget(entries: list[_Entry]) -> None:
    while entries:
        item = entries[0][2]
        if item.waits and not item.request.outcome:
            return
        heappop(entries)


class LastChances:
    """When the last chance of each item goes that waits."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        #: Request -> those of its items that wait and have no chance; and how many they are in all.
        self._hopeless: dict[int, list[Item]] = {}
        self._count = 0
        self._noted = 0

    def note(self, item: Item, rest_ns: int) -> None:
        """An item has joined a queue; the rest of its request takes so long at best."""
        self._noted += 1
        last_ns = item.request.objective_ns - rest_ns * HOPELESS_PCT // 100
        heappush(self._entries, (last_ns, self._noted, item))

    def began(self, items: Iterable[Item]) -> None:
        """These items do not wait any more."""
        if not self._hopeless:
            return
        for item in items:
            known = self._hopeless.get(item.request.id)
            if known is not None and item in known:
                known.remove(item)
                self._count -= 1
                if not known:
                    del self._hopeless[item.request.id]

    def closed(self, request: int) -> None:
        """A request has ended."""
        if self._hopeless:
            self._count -= len(self._hopeless.pop(request, ()))

    def gone(self, waiting: int, now_ns: int) -> Sequence[tuple[Request, Refusal]]:
        """Requests that cannot be in time any more, if something waits that can: so many items wait in all."""
        entries, hopeless = self._entries, self._hopeless
        while entries and entries[0][0] < now_ns:
            item = heappop(entries)[2]
            if item.waits and not item.request.outcome:
                hopeless.setdefault(item.request.id, []).append(item)
                self._count += 1
        if not hopeless or waiting <= self._count:
            return ()
        requests = [items[0].request for items in hopeless.values()]
        hopeless.clear()
        self._count = 0
        found = []
        for request in requests:
            left = format_ns(max(0, request.objective_ns - now_ns))
            reason = f"it waits with {left} left, cannot be in time any more, and is in the way of others who can"
            found.append((request, Refusal(reason)))
        return found
