"""What a stage can be run in, with the time and the price of each: the planner's raw material.

Rules of this file
- An option is a configuration with two figures: how long one batch runs, and what one *item* of that batch costs. A
  path through a workflow adds both up, so a planner needs nothing else.
- Whoever calls decides where times come from: a profile, a curve, a prediction.
- Order is part of the contract: the same options give the same front, on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..state import Config
from ..state.worker import FULL_SHARE

__all__ = ["Option", "Prices", "item_cost_usd", "pareto"]

_NS_PER_HOUR = 3600e9


class Option(msgspec.Struct, frozen=True):
    """One configuration of one stage."""

    config: Config
    #: Mean run time of a full batch.
    mean_ns: int
    #: Standard deviation over mean of that time.
    spread: float
    #: What one item of a full batch costs.
    cost_usd: float


class Prices(msgspec.Struct, frozen=True):
    """What an hour of a whole device and of one processor core costs."""

    device_usd_per_hour: float
    core_usd_per_hour: float = 0.0


def item_cost_usd(config: Config, mean_ns: int, prices: Prices) -> float:
    """Cost of one item of a full batch: time × (share × device + cores × core) / batch.

    The form is ours [I]: the only one in which the costs of a path's stages add up to the cost of a request. ESG's
    own formula is not known to us.
    """
    per_hour = config.share_pct / FULL_SHARE * prices.device_usd_per_hour + config.cpus * prices.core_usd_per_hour
    return mean_ns * per_hour / _NS_PER_HOUR / config.batch


def pareto(options: Iterable[Option]) -> list[Option]:
    """The options that no other beats in both time and cost, fastest first.

    Times ascend and costs descend strictly. Of options equal in both, the steadiest stays, then the one that
    takes least (share, cores, batch).
    """
    front: list[Option] = []
    for option in sorted(options, key=_preference):
        if not front or option.cost_usd < front[-1].cost_usd:
            front.append(option)
    return front


def _preference(option: Option) -> tuple[float, ...]:
    config = option.config
    return (option.mean_ns, option.cost_usd, option.spread, config.share_pct, config.cpus, config.batch)
