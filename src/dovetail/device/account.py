"""Who may start a kernel at all: quotas of time, kept by client.

An arbiter asks the account before it starts a kernel and tells it what ran. A client that may not is, for the
arbiter, as good as not there: others do not wait for it, and it fills no gap. So filler runs inside its own quota.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..state.run_batch import FULL_QUOTA, NEVER_NS

__all__ = ["Account", "WindowQuota"]


class Account(Protocol):
    """Time of the device that clients may use. It is pure: time comes in with each call, and never goes back."""

    #: Whether quotas count at all; while they do not, nobody need ask.
    active: bool

    def entered(self, client: str, now_ns: int) -> None:
        """A task of this client is here."""
        ...

    def left(self, client: str, now_ns: int) -> None:
        """A task of this client is gone."""
        ...

    def rank(self, client: str, now_ns: int) -> tuple[bool, int]:
        """Who goes first: whether it has had what it asked for, then its place among those of its class."""
        ...

    def may_start(self, client: str, share_pct: int, now_ns: int) -> bool:
        """Whether a kernel of this client may start now."""
        ...

    def next_ns(self, client: str, now_ns: int) -> int | None:
        """When a client that may not start should be asked for again; None: after the next event."""
        ...

    def until_ns(self, client: str, share_pct: int, now_ns: int) -> int:
        """Until when its kernels may begin, one after the other, without asking again."""
        ...

    def started(self, client: str, share_pct: int, now_ns: int) -> None:
        """A kernel of this client was started."""
        ...

    def finished(self, client: str, share_pct: int, begin_ns: int, now_ns: int) -> None:
        """It has ended, or its task is gone."""
        ...


class WindowQuota:
    """Windows of fixed length, and for each client a part of every window; what was used too much comes off the next.

    The simplest account that keeps the law "no client above its quota, overuse carried over". It orders nobody.
    `tokens` has the one that devices use.
    """

    active = True

    def __init__(self, quota_pct: Mapping[str, int], window_ns: int) -> None:
        """Clients that are not named may use everything."""
        for client, pct in quota_pct.items():
            if not 0 < pct <= FULL_QUOTA:
                raise ValueError(f"client {client!r} cannot have a quota of {pct} %")
        if window_ns <= 0:
            raise ValueError(f"a window of {window_ns} ns is none")
        self.window_ns = window_ns
        self._quota_ns = {client: window_ns * pct // FULL_QUOTA for client, pct in quota_pct.items()}
        #: Client -> number of its window, and time used in it: more than nought at its beginning if overused before.
        self._used: dict[str, tuple[int, int]] = {}

    def entered(self, client: str, now_ns: int) -> None:
        """It makes no difference."""

    def left(self, client: str, now_ns: int) -> None:
        """Nor does that."""

    def rank(self, client: str, now_ns: int) -> tuple[bool, int]:
        """All are equal."""
        return False, 0

    def used_ns(self, client: str, now_ns: int) -> int:
        """What counts against the client in the window of this moment."""
        number, (window, used_ns) = now_ns // self.window_ns, self._used.get(client, (0, 0))
        if number > window:
            used_ns = max(0, used_ns - (number - window) * self._quota_ns[client])
            self._used[client] = (number, used_ns)
        return used_ns

    def may_start(self, client: str, share_pct: int, now_ns: int) -> bool:
        """While something of its quota is left."""
        quota_ns = self._quota_ns.get(client)
        return quota_ns is None or self.used_ns(client, now_ns) < quota_ns

    def next_ns(self, client: str, now_ns: int) -> int | None:
        """The first window at whose beginning something is left."""
        quota_ns = self._quota_ns.get(client)
        if quota_ns is None:
            return None
        windows = max(1, self.used_ns(client, now_ns) // quota_ns)
        return (now_ns // self.window_ns + windows) * self.window_ns

    def until_ns(self, client: str, share_pct: int, now_ns: int) -> int:
        """Until its quota is used up, or the window ends and a new one has to be opened."""
        quota_ns = self._quota_ns.get(client)
        if quota_ns is None:
            return NEVER_NS
        left_ns = quota_ns - self.used_ns(client, now_ns)
        return min(now_ns + max(0, left_ns), (now_ns // self.window_ns + 1) * self.window_ns)

    def started(self, client: str, share_pct: int, now_ns: int) -> None:
        """Charged when it has ended."""

    def finished(self, client: str, share_pct: int, begin_ns: int, now_ns: int) -> None:
        """Charge what it took, to the window in which it began; what is too much goes on into the next."""
        if client not in self._quota_ns:
            return
        used_ns = self.used_ns(client, begin_ns) + max(0, now_ns - begin_ns)
        window, _ = self._used.get(client, (begin_ns // self.window_ns, 0))
        self._used[client] = (window, used_ns)
