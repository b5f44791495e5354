"""How the default policy plans."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..plan import Space

__all__ = ["Goal", "PlannerSettings"]

Goal = Literal["cost", "time"]


class PlannerSettings(msgspec.Struct, frozen=True):
    """How the planner plans; the defaults are the product, everything else is an ablation."""

    space: Space = Space()
    #: "cost": the least that is in time, for devices that are paid by use. "time": devices that are there anyway are
    #: used to be early, as long as nothing waits for them.
    goal: Goal = "cost"
    #: Part of requests that should be in time where that is not too dear; 0.5 and below plan with means.
    percentile: float = 0.99
    #: Part by which being in time more surely may raise the expected cost of a request above that of the cheapest
    #: plan that is in time on average; in graphs by more (`plan.price`). None: the percentile is met at any price.
    premium: float | None = 0.0025
    #: Wait for a larger batch when that is cheaper and in time.
    wait: bool = True
    #: Decide again before every stage; otherwise the plan made on arrival stands.
    replan: bool = True
    #: Refuse at once what cannot be in time.
    admission: bool = True
    #: A declared quota is also a limit.
    limits: bool = False
    max_open: int = 10_000
