"""How many? Which models each worker should hold, in how many instances. Pure; see `plan` for the rules."""

from .protocol import Adjustment, Scaler, SliceWish
from .static import FetchOnDemand, LoadEverything

__all__ = ["Adjustment", "FetchOnDemand", "LoadEverything", "Scaler", "SliceWish"]
