"""Where? Which worker runs a batch, and which models stay in its memory. Pure; see `plan` for the rules.

A placer answers when a worker is free; a router sends ahead to workers, whose half of the answer is the Device
machine (`device`). docs/place.md tells the whole.
"""

from .best_fit import BestFitPlacer
from .dovetail import DovetailRouter
from .protocol import Placer
from .router import Hint, Route, Router
from .settings import RouterSettings
from .single_ingress import SingleIngress

__all__ = [
    "BestFitPlacer",
    "DovetailRouter",
    "Hint",
    "Placer",
    "Route",
    "Router",
    "RouterSettings",
    "SingleIngress",
]
