"""How? Which configuration a stage runs in, in which order work is taken, and what is admitted at all.

Pure: this package reads state and answers; it has no clock, no randomness and no effects. Implementations that are
not ours live in `baselines`; `wiring` chooses.
"""

from .protocol import Hold, Planner, Refusal

__all__ = ["Hold", "Planner", "Refusal"]
