"""The scheduler's policies: ours (`dovetail`), and the simplest honest one, first come first served."""

from .dovetail import DovetailPlanner
from .first_come import FirstCome
from .offers import Dovetail
from .protocol import Hint, Hold, Offer, Refusal, Scheduler
from .settings import Goal, PlannerSettings

__all__ = [
    "Dovetail",
    "DovetailPlanner",
    "FirstCome",
    "Goal",
    "Hint",
    "Hold",
    "Offer",
    "PlannerSettings",
    "Refusal",
    "Scheduler",
]
