"""Where? Which worker runs a batch, and which models stay in its memory. Pure; see `plan` for the rules.

A placer answers when a worker is free; a router sends ahead to workers that keep a queue and their own memory, whose
half of the answer is the desk. docs/place.md tells the whole.
"""

from .best_fit import BestFitPlacer
from .cache import ModelCache
from .desk import Desk
from .dovetail import DovetailRouter
from .protocol import Placer
from .router import Hint, Route, Router
from .settings import RouterSettings
from .single_ingress import Sole
from .tickets import AUTHORS_SIMULATOR, COMPASS, Rules

__all__ = [
    "AUTHORS_SIMULATOR",
    "COMPASS",
    "BestFitPlacer",
    "Desk",
    "DovetailRouter",
    "Hint",
    "ModelCache",
    "Placer",
    "Route",
    "Router",
    "RouterSettings",
    "Rules",
    "Sole",
]
