"""Dovetail's own planner: the least cost that still meets the objective, decided again before every batch.

For each workflow the whole trade of time against cost is kept as frontiers, one per suffix of its graph (`frontier`),
so that a decision is a look-up of the budget that is left. Beyond ESG:
- the budget is that of the whole rest of the workflow, not of a group of stages;
- it is a percentile of the rest's time, and what later queues are known to take is set aside first;
- stages that several workflows share are batched together;
- starting now is weighed against waiting for a larger batch;
- a request that is late already is run as cheaply as can be, so that it costs the others least.

Rules of this file: integers in the decision, ties broken by order, nothing read but the cluster and the profile.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..profile.table import ProfileTable
from ..state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request, WorkerSpec
from ..state.worker import FULL_SHARE
from ..units import MS
from ..workflow.graph import Graph, Node, StageSpec
from .frontier import Frontiers, build
from .learned import MILLION, Mean, Rate
from .options import Option, Prices, item_cost_usd
from .protocol import Hold, Refusal
from .space import Space, configs_for

__all__ = ["DovetailPlanner", "Settings"]

#: Orders of classes must not overlap: later than any objective.
_CLASS_STEP = 1 << 62
#: A hold ends this much before the last moment at which the plan would still be in time: timers are not exact.
_HOLD_MARGIN_NS = 1 * MS


class Settings(msgspec.Struct, frozen=True):
    """How the planner plans; the defaults are the product, the rest are ablations."""

    space: Space = Space()
    #: Part of requests whose time should be within the plan; 0.5 plans with means.
    percentile: float = 0.95
    #: Wait for a larger batch when that is cheaper and in time.
    wait: bool = True
    #: Decide again before every stage; otherwise the plan made on arrival stands.
    replan: bool = True
    #: Refuse at once what cannot be in time.
    admission: bool = True
    max_open: int = 10_000
    #: Budgets are rounded to this part of the objective when frontiers are built.
    resolution: int = 4096


class _Plan:
    """One workflow's frontiers, and what was learned about it."""

    __slots__ = ("fixed", "frontiers", "options", "sizes", "successors", "waits_behind")

    def __init__(self, graph: Graph) -> None:
        self.frontiers: Frontiers | None = None
        self.options: list[list[Option]] = []
        #: Mapped node -> items per request, in millionths.
        self.sizes = {i: Mean() for i, n in enumerate(graph.nodes) if n.mapped}
        #: Node -> wait that is expected in the queues behind it.
        self.waits_behind: list[int] = [0] * len(graph.nodes)


class DovetailPlanner:
    """Answers how."""

    def __init__(self, table: ProfileTable, settings: Settings | None = None) -> None:
        self._table = table
        self._settings = settings or Settings()
        self._cluster: Cluster | None = None
        self._plans: dict[str, _Plan] = {}
        self._rates: dict[str, Rate] = {}
        self._waits: dict[str, Mean] = {}
