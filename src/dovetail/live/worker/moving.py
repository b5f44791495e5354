"""Clients that move between workers, with what they owe and are behind with at this one.

Rules of this file: a client leaves when its last batch here has ended, so that nothing of its use is left out. What
it brings is added to what it has here by then (`device.tokens`). Called under the lock of the executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...device import Device, TokenAccount
from ...device.events import DeviceAction, QuotaChanged
from ..links.wire import FromWorker, Standing

__all__ = ["Moving"]


class Moving:
    """What one worker tells of clients that leave it, and is told of those that come."""

    def __init__(self, account: TokenAccount, machine: Device, answer: Callable[[FromWorker], None]) -> None:
        self._account = account
        self._machine = machine
        self._answer = answer

    def told(self, message: Standing, now_ns: int) -> Iterable[DeviceAction]:
        """A client is to leave, or has come."""
        if not message.request_pct:
            self._account.leaves(message.client, message.to)
            self.look(now_ns)
            return ()
        pcts = (message.request_pct, message.limit_pct)
        come = QuotaChanged(message.client, *pcts, True, message.saved_ns, message.behind_ns, True)
        return self._machine.step(come, now_ns)

    def look(self, now_ns: int) -> None:
        """Tell of those that have left."""
        if self._account.moving:
            for to, left in self._account.gone(now_ns):
                pcts = (left.request_pct, left.limit_pct)
                self._answer(Standing(left.client, to, *pcts, left.saved_ns, left.behind_ns))
