"""How many? Which models each worker should hold, in how many instances. Pure; see `plan` for the rules."""

from .protocol import Scaler

__all__ = ["Scaler"]
