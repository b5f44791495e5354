"""Where? Which worker runs a batch, and which models stay in its memory. Pure; see `plan` for the rules."""

from .best_fit import BestFitPlacer
from .protocol import Placer
from .router import Hint, Route, Router

__all__ = ["BestFitPlacer", "Hint", "Placer", "Route", "Router"]
