"""How many? Which models each worker should hold, in how many instances. Pure; see `plan` for the rules."""

from .protocol import Adjustment, Scaler

__all__ = ["Adjustment", "Scaler"]
