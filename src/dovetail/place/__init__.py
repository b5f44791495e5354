"""Where? Which worker runs a batch, and which models stay in its memory. Pure; see `plan` for the rules."""

from .best_fit import BestFitPlacer
from .protocol import Placer

__all__ = ["BestFitPlacer", "Placer"]
