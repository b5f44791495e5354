"""How many? Which models each worker should hold, in how many instances. Pure; see `plan` for the rules."""

from .load_scaler import LoadScaler
from .protocol import Adjustment, Scaler, SliceWish
from .settings import ScaleSettings
from .static import FetchOnDemand, LoadEverything

__all__ = ["Adjustment", "FetchOnDemand", "LoadEverything", "LoadScaler", "ScaleSettings", "Scaler", "SliceWish"]
