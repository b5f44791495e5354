"""Where something should go: a model ahead of need (`Hint`), or an item as soon as it is ready (`Route`)."""

from __future__ import annotations

import msgspec

__all__ = ["Hint", "Route"]


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
    #: When it should start there, and what its model takes to be fetched.
    start_ns: int = 0
    fetch_ns: int = 0
