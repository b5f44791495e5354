"""The unit that is batched."""

from __future__ import annotations

from .request import Request

__all__ = ["Item"]


class Item:
    """One element of one node of one request."""

    __slots__ = ("alone", "attempts", "index", "node", "origin", "queued_ns", "refused", "request", "waits")

    def __init__(
        self, request: Request, node: int, index: int, queued_ns: int, origin: int = 0, alone: bool = False
    ) -> None:
        self.request = request
        self.node = node
        self.index = index
        self.queued_ns = queued_ns
        #: Worker that made its last input: where its data is. 0 at the start.
        self.origin = origin
        #: Batches it was part of that failed.
        self.attempts = 0
        #: Must not share a batch, because a batch with it raised.
        self.alone = alone
        #: Workers that refused it because they could not start it in its window.
        self.refused = 0
        #: It is in a queue of the ingress.
        self.waits = False
