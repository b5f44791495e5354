"""What a stage can be run in, with the time and the price of each: the planner's raw material.

Rules of this file
- An option is a configuration with two figures: how long one batch runs, and what one *item* of that batch costs. A
  path through a workflow adds both up, so a planner needs nothing else.
- Whoever calls decides where times come from (a profile, a curve, a prediction); here they are a function.
- Order is part of the contract: the same inputs give the same list, on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from ..errors import DeclarationError
from ..state import Config
from ..state.worker import FULL_SHARE

__all__ = ["Option", "Prices", "item_cost_usd", "options_for", "pareto"]

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


def options_for(
    latency_ns: Callable[[int, int, int], int],
    prices: Prices,
    *,
    batches: Iterable[int],
    cpus: Iterable[int] = (1,),
    shares_pct: Iterable[int] = (FULL_SHARE,),
    spread: float = 0.0,
) -> list[Option]:
    """An option for each batch size, number of cores and share, in that order of nesting.

    `latency_ns(batch, cpus, share_pct)` is the mean time of a batch of that size.
    """
    if spread < 0:
        raise DeclarationError(f"spread {spread} is a standard deviation over a mean and cannot be negative")
    core_counts, shares = list(cpus), list(shares_pct)
    options: list[Option] = []
    for batch in batches:
        for cores in core_counts:
            for share_pct in shares:
                if batch < 1 or cores < 0 or not 1 <= share_pct <= FULL_SHARE:
                    raise DeclarationError(
                        f"batch {batch} on {cores} cores and {share_pct} % of a device is no configuration; "
                        f"batches start at 1, cores at 0, shares are 1 to {FULL_SHARE}"
                    )
                config = Config(batch, cores, share_pct)
                mean_ns = latency_ns(batch, cores, share_pct)
                options.append(Option(config, mean_ns, spread, item_cost_usd(config, mean_ns, prices)))
    return options


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
