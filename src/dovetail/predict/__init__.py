"""How long? Run times, load times, kernels and turn-arounds, with their spread, learned while running.

Whoever wants to know asks a `Predictor`, and nobody else: scheduler, launcher, worker queue, arbiter. It is the
same object in the simulator and live. Pure; see `plan` for the rules.
"""

from .estimate import Estimate
from .estimator import Estimator
from .protocol import Predictor
from .state import EstimatorState

__all__ = ["Estimate", "Estimator", "EstimatorState", "Predictor"]
