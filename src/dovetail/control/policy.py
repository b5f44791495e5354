"""A policy: one implementation of each question that the controller asks."""

from __future__ import annotations

import msgspec

from ..place import Placer, Router
from ..plan import Dropper, Planner
from ..predict import Predictor
from ..scale import Scaler

__all__ = ["Policy"]


class Policy(msgspec.Struct, frozen=True):
    """One implementation of each question that the controller asks."""

    planner: Planner
    placer: Placer
    scaler: Scaler
    predictor: Predictor
    #: Sends models' work ahead to workers that keep queues; None: it waits here until a worker is free.
    router: Router | None = None
    #: Gives up admitted requests that cannot be in time; None: all are run, however late.
    dropper: Dropper | None = None
    #: How long before a batch's expected end the next may be sent to its worker; 0: not before it has ended.
    lead_ns: int = 0
