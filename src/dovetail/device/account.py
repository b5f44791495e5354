"""Who may start a kernel at all: the room for quotas of time, kept by client.

An arbiter asks the account before it starts a kernel and tells it what ran. A client that may not is, for the
arbiter, as good as not there: others do not wait for it, and it fills no gap. So filler runs inside its own quota.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Account", "Unlimited"]


class Account(Protocol):
    """Time of the device that clients may use. It is pure: time comes in with each call, and never goes back."""

    def may_start(self, client: str, share_pct: int, now_ns: int) -> bool:
        """Whether a kernel of this client may start now."""
        ...

    def next_ns(self, client: str, now_ns: int) -> int | None:
        """When a client that may not start should be asked for again; None: after the next event."""
        ...

    def started(self, client: str, share_pct: int, now_ns: int) -> None:
        """A kernel of this client was started."""
        ...

    def finished(self, client: str, share_pct: int, begin_ns: int, now_ns: int) -> None:
        """It has ended, or its task is gone."""
        ...


class Unlimited:
    """Everybody may, always."""

    def may_start(self, client: str, share_pct: int, now_ns: int) -> bool:
        """Yes."""
        return True

    def next_ns(self, client: str, now_ns: int) -> int | None:
        """Never asked."""
        return None

    def started(self, client: str, share_pct: int, now_ns: int) -> None:
        """Not written down."""

    def finished(self, client: str, share_pct: int, begin_ns: int, now_ns: int) -> None:
        """Not written down."""
