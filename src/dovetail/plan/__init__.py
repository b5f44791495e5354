"""How? Which configuration a stage runs in, in which order work is taken, and what is admitted at all.

Pure: this package reads state and answers; it has no clock, no randomness and no effects. Implementations that are
not ours live in `lab.rivals`; `wiring` chooses.
"""

from .planner import DovetailPlanner, PlannerSettings
from .protocol import Hold, Planner, Refusal
from .space import Space

__all__ = ["DovetailPlanner", "Hold", "Planner", "PlannerSettings", "Refusal", "Space"]
