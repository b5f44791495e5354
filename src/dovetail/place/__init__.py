"""Where? Which worker runs a batch, and which models stay in its memory. Pure; see `plan` for the rules.

Two views of workers answer the same questions: those that an ingress has to itself (`own`), and those that several
share (`shared`), whose half of the answer is the Device machine (`device`). docs/place.md tells the whole.
"""

from .own import OwnWorkers, Spot
from .route import Hint, Route
from .settings import LOCAL_OWN, OwnSettings, RouterSettings
from .shared import SharedWorkers

__all__ = [
    "LOCAL_OWN",
    "Hint",
    "OwnSettings",
    "OwnWorkers",
    "Route",
    "RouterSettings",
    "SharedWorkers",
    "Spot",
]
