"""What the controller asks a router: which worker an item goes to, before that worker is free.

A placer (`protocol.Placer`) answers late: it picks among workers that could start a batch now, and work waits in the
controller. A router answers early: an item is sent to a worker as soon as its inputs are there, and waits in that
worker's own queue (`desk.Desk`). That is what several controllers need that share workers and know each other only
through the state table: none of them could say whether a worker is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ..state import Batch, Item, Request, Worker, WorkerRow

__all__ = ["Hint", "Route", "Router"]


class Hint(msgspec.Struct, frozen=True, gc=False):
    """Worker `worker` is going to need the model of `stage`: it may fetch it if it has room for it."""

    worker: int
    stage: str


class Route(msgspec.Struct, frozen=True, gc=False):
    """Where an item goes."""

    worker: int
    #: The worker refuses at once (`too_late`) if it sees that it cannot start the item by then; 0 never.
    latest_ns: int = 0
    #: Smaller starts first in the worker's queue, then first come.
    order: int = 0
    #: Why there, in a few words, for `dovetail explain`.
    reason: str = ""


class Router(Protocol):
    """Answers where, for controllers whose workers keep queues."""

    def joined(self, worker: Worker) -> None:
        """A worker is there; so far it is idle and holds nothing."""
        ...

    def lost(self, worker: Worker) -> None:
        """A worker is gone."""
        ...

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """The state table said this of these workers; of others nothing new is known."""
        ...

    def holds(self, worker: int, weights: str, here: bool, now_ns: int) -> None:
        """A worker told this controller itself that a model has come or gone."""
        ...

    def plan(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """A request was admitted: decide ahead what can be, and say which models should be fetched for it."""
        ...

    def route(self, item: Item, now_ns: int) -> Route | None:
        """An item's inputs are there. None if there is no worker that could run it: it waits until one joins."""
        ...

    def sent(self, batch: Batch, now_ns: int) -> None:
        """A routed item is on its way."""
        ...

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """A batch of this controller has ended, or was refused or lost (`done` is false)."""
        ...

    def closed(self, request: Request) -> None:
        """A request has ended; forget it."""
        ...
