"""How? Which configuration a stage runs in, in which order work is taken, and what is admitted at all.

Pure: this package reads state and answers; it has no clock, no randomness and no effects. Implementations that are
not ours live in `lab.rivals`; `wiring` chooses.
"""

from .protocol import Dropper, Hold, Planner, Refusal
from .space import Space

__all__ = ["Dropper", "Hold", "Planner", "Refusal", "Space"]
