"""How long? Run time alone and beside others, learned while running. Pure; see `plan` for the rules."""

from .profiled import ProfiledPredictor
from .protocol import Predictor

__all__ = ["Predictor", "ProfiledPredictor"]
