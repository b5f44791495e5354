"""How long, together? Predictors of interference on public measurements, on a device that hides its contention and
on this machine; and what better predictions buy.

Read with care: what the paper calls coarse, partly dynamic and dynamic is reconstructed from its abstract and from
second-hand digests; its figures are from an L4 that nobody here has. The public measurements are of other devices
and of other software. Claims that need them are left out where they are absent.

The predictor was made while looking at seed 1 of the simulated device, at seeds 0 and 1 of Pitot's pairs, and at
seeds 0 to 2 of iGniter's. The seeds below are others. iGniter's folds by model do not depend on a seed, so those were
seen.
"""

from __future__ import annotations

from ..experiment import Lab
from .interference_live import live
from .interference_plots import draw_changes, draw_rivals
from .interference_public import public
from .interference_simulated import simulated
from .interference_worth import bought

SEEDS = (11, 12, 13, 14, 15)
QUICK_SEEDS = (11,)


def run(lab: Lab) -> None:
    """All parts."""
    public(lab)
    courses = simulated(lab)
    bought(lab)
    draw_rivals(lab, courses)
    draw_changes(lab, courses)
    live(lab)
