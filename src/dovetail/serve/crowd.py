"""Who is connected: how many at once, how many of one client, and who has to go when there is no room.

Rules of this file
- Who rests is sent away first, the longest resting before all others: it has asked for nothing, or has taken its time
  to say what. A connection whose request is being received or handled is never closed to make room.
- Beyond the limit a few are let in all the same, for questions after the server's health and nothing else.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, Protocol

__all__ = ["MAX_BEYOND", "Crowd", "Guest", "Standing"]

#: Connections beyond the limit that may ask for the server's health [our choice].
MAX_BEYOND = 128

Standing = Literal["welcome", "beyond", "refused"]


class Guest(Protocol):
    """A connection."""

    client: str

    def give_way(self) -> None:
        """Close at once: another one needs the place."""


class Crowd:
    """All connections, those that rest in the order in which they began to."""

    def __init__(self, most: int, most_of_client: int) -> None:
        self._most, self._most_of_client = most, most_of_client
        self._all: set[Guest] = set()
        self._resting: dict[Guest, None] = {}
        self._of_client: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def admit(self, guest: Guest) -> Standing:
        """Let one in, or say why not."""
        client = guest.client
        if self._of_client[client] >= self._most_of_client:
            mine = next((g for g in self._resting if g.client == client), None)
            if mine is None:
                return "refused"
            self._send_away(mine)
        if len(self._all) >= self._most:
            self.make_room()
        standing: Standing = "welcome" if len(self._all) < self._most else "beyond"
        if len(self._all) >= self._most + MAX_BEYOND:
            return "refused"
        self._all.add(guest)
        self._of_client[client] += 1
        return standing

    def make_room(self) -> bool:
        """Send the one away that has rested longest; False if nobody rests."""
        guest = next(iter(self._resting), None)
        if guest is None:
            return False
        self._send_away(guest)
        return True

    def _send_away(self, guest: Guest) -> None:
        self.forget(guest)
        guest.give_way()

    def rests(self, guest: Guest) -> None:
        """It has no request, or none that has come in full."""
        if guest in self._all:
            self._resting[guest] = None

    def works(self, guest: Guest) -> None:
        """Its request is being received or handled."""
        self._resting.pop(guest, None)

    def forget(self, guest: Guest) -> None:
        """It is closed."""
        if guest in self._all:
            self._all.remove(guest)
            self._resting.pop(guest, None)
            self._of_client[guest.client] -= 1
            if not self._of_client[guest.client]:
                del self._of_client[guest.client]
