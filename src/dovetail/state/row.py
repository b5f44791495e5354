"""What a worker tells everybody about itself: its row of the shared state table."""

from __future__ import annotations

import msgspec

__all__ = ["WorkerRow"]


class WorkerRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One worker at one moment. By the time somebody reads it, it may be old: `at_ns` says how old."""

    worker: int
    at_ns: int
    #: Expected run times of everything it has taken and not finished, the one that runs counted whole.
    wait_ns: int
    #: When it expects to be done with all of that, loads included; `at_ns` if it is idle.
    free_at_ns: int
    #: Models that it holds or is loading, by `StageSpec.weights`.
    resident: tuple[str, ...]
    #: Memory for models that is not taken; what could be evicted is not counted.
    free_bytes: int
