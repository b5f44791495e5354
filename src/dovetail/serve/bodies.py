"""Bodies that clients have announced and not sent yet: how much may be outstanding, and who waits for whom.

Rules of this file
- Memory is reserved when bytes arrive, not when they are announced. What is reserved and has not arrived is bounded,
  for all clients together and for each; a lone body always may come.
- Who finds no room waits and is not read from. The more urgent go first, then the earlier.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

__all__ = ["RESERVE_FROM_BYTES", "Bodies", "Waiter"]

#: A body's memory is reserved once this much of it is here, or all of it [our choice: half of the head's buffer].
RESERVE_FROM_BYTES = 16 << 10


class Waiter(Protocol):
    """A connection whose body has no room yet."""

    client: str
    waiting: bool

    def room_found(self, nbytes: int) -> None:
        """So many bytes are reserved for it; it goes on in its own turn."""


class Bodies:
    """Counts bytes that are reserved and have not arrived."""

    def __init__(self, most_bytes: int, most_of_client_bytes: int) -> None:
        self.unreceived_bytes = 0
        self._most, self._most_of_client = most_bytes, most_of_client_bytes
        self._of_client: Counter[str] = Counter()
        self._waiting: list[tuple[int, int, Waiter, int]] = []
        self._numbers = count()

    def ask(self, who: Waiter, nbytes: int, urgency: int) -> bool:
        """Whether so many bytes may come now; else `who.room_found` is called when they may, if it still waits."""
        if self._fits(who.client, nbytes) and not (self._waiting and any(e[2].waiting for e in self._waiting)):
            self._reserve(who.client, nbytes)
            return True
        who.waiting = True
        heappush(self._waiting, (urgency, next(self._numbers), who, nbytes))
        return False

    def came(self, client: str, nbytes: int) -> None:
        """So many of the reserved bytes have arrived, or will never come."""
        if not nbytes:
            return
        self.unreceived_bytes -= nbytes
        self._of_client[client] -= nbytes
        if not self._of_client[client]:
            del self._of_client[client]
        self.look()

    def look(self) -> None:
        """Let in who may come now."""
        held_up: list[tuple[int, int, Waiter, int]] = []
        while self._waiting:
            entry = heappop(self._waiting)
            _, _, who, nbytes = entry
            if not who.waiting:
                continue
            if self.unreceived_bytes and self.unreceived_bytes + nbytes > self._most:
                held_up.append(entry)
                break
            if not self._fits(who.client, nbytes):  # it has enough for itself; others need not wait for that
                held_up.append(entry)
                continue
            who.waiting = False
            self._reserve(who.client, nbytes)
            who.room_found(nbytes)
        for entry in held_up:
            heappush(self._waiting, entry)

    def _fits(self, client: str, nbytes: int) -> bool:
        mine = self._of_client.get(client, 0)
        return (not self.unreceived_bytes or self.unreceived_bytes + nbytes <= self._most) and (
            not mine or mine + nbytes <= self._most_of_client
        )

    def _reserve(self, client: str, nbytes: int) -> None:
        if nbytes:
            self.unreceived_bytes += nbytes
            self._of_client[client] += nbytes
