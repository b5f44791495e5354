"""A policy: who answers the questions that the controller asks."""

from __future__ import annotations

import msgspec

from ..predict import Predictor
from ..scale import Scaler
from ..schedule.protocol import Scheduler

__all__ = ["Policy"]


class Policy(msgspec.Struct, frozen=True):
    """One scheduler, one scaler, and one that says how long things take."""

    scheduler: Scheduler
    scaler: Scaler
    predictor: Predictor
