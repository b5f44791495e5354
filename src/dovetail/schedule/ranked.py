"""What offers are compared by: one number, and the least wins.

    goal "cost"   dollars: what the batch costs, and what everything that is still to come of the request is expected
                  to cost from the time that is left when the batch ends, being late included (`plan.chance`). A start
                  that is not now takes its wait and its fetch off that time. An eviction is charged to the offer at
                  the price of the device, for as long as others will need to fetch the model again.
    goal "time"   nanoseconds per item, in steps of 5 %: within a step the smaller batch goes first.

Rules of this file: numbers of one queue at one moment are compared with each other, and with no others.
"""

from __future__ import annotations

import msgspec

from ..state import Config

__all__ = ["Ranked"]


class Ranked(msgspec.Struct, frozen=True, gc=False):
    """A configuration for a queue's next batch, and its score if it starts now."""

    config: Config
    score: float
