"""How a device goes about its work: every switch by which a rival's worker differs from ours.

Rule of this file: data only. There is one Device machine and no fork of it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Rules"]


class Rules(msgspec.Struct, frozen=True):
    """How a device goes about its work. The defaults are ours."""

    #: Who goes first: what the queue needs last ("look-ahead"), or what was loaded first ("fifo").
    eviction: Literal["look-ahead", "fifo"] = "look-ahead"
    #: Loads at the same time. Two keep a copy engine busy while the next file is being read; unmeasured. Loads that
    #: the ingress ordered are not counted.
    loads: int = 2
    #: First come, first served: neither class nor objective counts, and nothing starts before what came before it.
    in_order: bool = False
    #: How many batches may start before one that waits for room for its model. Bounds starvation; unmeasured.
    overtakes: int = 8
    #: One batch at a time, and the fetch of its model occupies the device (Compass; see `machine`).
    fetch_blocks: bool = False
    #: Queued batches that are looked at for models to load before they have come up; 0 looks at none.
    look_ahead: int = 16
    #: Models that may be loading ahead in this way at a time; 0 switches loading ahead off.
    prefetch: int = 2
    #: What loading ahead may evict: nothing, what no batch needs, or also what is needed later. With Compass' models
    #: and batches sent at random, "later" was no faster and loaded up to 1.4 times as much; it pays with `in_order`.
    prefetch_evicts: Literal["nothing", "idle", "later"] = "idle"
    #: A hint may evict what is neither queued for nor hinted at; otherwise it takes free room only.
    hints_evict: bool = True
    #: `WorkerRow.wait_ns` counts the batch that runs, whole.
    counts_running: bool = True
    #: A grant of one kernel is revoked too when a higher class is ready: whoever carries grants out listens once more
    #: before a kernel begins.
    revokes_one: bool = False
