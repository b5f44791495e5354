"""How long, together: what those who share a device cost each other, learned while running.

`model.py` is the predictor; `features`, `effects`, `weights` and `crowd` are its parts; `margin` and `drift` say how
sure it is; `forward.py` runs the work integral for all who are there and all who are known to come. Pure.
"""

from .forward import Piece, Work, ends_ns
from .load import Beside, Load, fetch, quarter_octaves
from .model import Interference
from .records import Forecast
from .state import InterferenceState

__all__ = [
    "Beside", "Forecast", "Interference", "InterferenceState", "Load", "Piece", "Work", "ends_ns", "fetch",
    "quarter_octaves",
]  # fmt: skip
