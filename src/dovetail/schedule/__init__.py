"""The scheduler's policies: ours (`dovetail`), and the simplest honest one, first come first served."""

from .dovetail import DovetailPlanner, Goal, PlannerSettings
from .first_come import FirstComePlanner, FirstFitPlacer, LoadEverything

__all__ = ["DovetailPlanner", "FirstComePlanner", "FirstFitPlacer", "Goal", "LoadEverything", "PlannerSettings"]
