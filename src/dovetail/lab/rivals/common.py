"""What the rivals of ESG have in common, so that each file holds its own rules and nothing else.

Rules of this file
- A function is a stage of a workflow: every (workflow, stage) pair has its own queue, as ESG's queues are said to be.
  Work is taken first come, first served, everything is admitted, nothing is learned unless a rival says so.
- A rival plans for one kind of worker, from the profile's mean times and their spread (`Market`). What a simulated
  device draws from that spread it never sees.
- INFless and FaST-GShare know single functions only. What they are told of a workflow's objective is `slo_shares`:
  an adaptation of ours, since how ESG's authors did it could not be found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from ...control import Policy
from ...errors import ProfileError
from ...place import BestFitPlacer, Placer
from ...plan import Hold, Planner, Refusal
from ...plan.space import Space, configs_for
from ...predict import Predictor
from ...schedule.first_come import LoadEverything
from ...state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request, WorkerSpec
from ...state.worker import FULL_SHARE
from ...workflow.graph import Graph, Node, StageSpec

__all__ = [
    "BestFitPlacer",
    "Market",
    "Rival",
    "StaticPlanner",
    "longest_path",
    "queue_key",
    "rival_policy",
    "slo_shares",
]


class Market(msgspec.Struct, frozen=True):
    """What may be chosen, how long it takes and what it costs on the kind of worker that a rival plans for."""

    predictor: Predictor
    worker: WorkerSpec
    space: Space

    def configs(self, stage: StageSpec) -> list[Config]:
        """All configurations of the stage."""
        return configs_for(stage, self.worker, self.space)

    def least(self, stage: StageSpec) -> Config:
        """The minimum configuration: smallest batch, then smallest share, then fewest cores."""
        return min(self.configs(stage), key=lambda c: (c.batch, c.share_pct, c.cpus))

    def time_ns(self, stage: StageSpec, config: Config) -> int:
        """Mean time of a full batch."""
        estimate = self.predictor.run(stage, self.worker.kind, config.batch, config)
        if estimate.source != "profile":
            raise ProfileError(
                f"stage {stage.name!r} has no profile on {self.worker.kind!r}, and the rivals plan from profiles: "
                f"profile it first"
            )
        return estimate.mean_ns

    def spread(self, stage: StageSpec) -> float:
        """Standard deviation over mean of a single run."""
        estimate = self.predictor.run(stage, self.worker.kind, stage.batch[0], self.least(stage))
        return estimate.spread if estimate.source == "profile" else 0.0

    def usd_per_ns(self, config: Config) -> float:
        """What a nanosecond in this configuration costs."""
        device = self.worker.usd_per_hour * config.share_pct / FULL_SHARE
        return (device + self.worker.usd_per_core_hour * config.cpus) / 3600e9


def queue_key(graph: Graph, stage: str) -> str:
    """Name of the queue of a function."""
    return f"{graph.name}/{stage}"


def longest_path(graph: Graph, times: Sequence[float]) -> float:
    """When the last node ends if every node starts as soon as its sources have ended."""
    ends: list[float] = []
    for node, time in zip(graph.nodes, times, strict=True):
        ends.append(time + max((ends[s.node] for s in node.sources() if s.node >= 0), default=0.0))
    return max(ends)


def slo_shares(graph: Graph, market: Market) -> dict[str, int]:
    """Each stage's part of the workflow's objective, in proportion to its time in minimum configuration.

    In proportion to the longest path, so that the parts along no path add up to more than the objective.
    """
    stages = [graph.stage_of(i) for i in range(len(graph.nodes))]
    times = [market.time_ns(s, market.least(s)) for s in stages]
    total = longest_path(graph, times)
    return {s.name: round(graph.slo_ns * t / total) for s, t in zip(stages, times, strict=True)}


class Rival(ABC):
    """Answers that all rivals give alike. Subclasses say what to prepare for a workflow, and choose."""

    #: They are asked as their authors' schedulers ask: when work comes and when a batch ends.
    restless = False

    def __init__(self, market: Market) -> None:
        self.market = market
        self.graphs: dict[str, Graph] = {}

    def queue_key(self, graph: Graph, node: Node) -> str:
        """One queue per workflow and stage."""
        self.graphs[graph.name] = graph
        return queue_key(graph, node.stage)

    def bind(self, cluster: Cluster) -> None:
        """All workflows are known by now: whatever can be worked out before the run is worked out here."""
        self.cluster = cluster
        for graph in self.graphs.values():
            self.prepare(graph)

    @abstractmethod
    def prepare(self, graph: Graph) -> None:
        """Work out what does not depend on the load."""

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """None of the originals refuses work."""
        return None

    def order(self, request: Request, node: int) -> int:
        """First come, first served."""
        return request.id

    @abstractmethod
    def choose(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """The rival's own answer."""

    def note(self, item: Item, now_ns: int) -> None:  # noqa: B027 - the default, not a gap
        """Nothing is learned."""

    def started(self, batch: Batch) -> None:  # noqa: B027 - the default, not a gap
        """Nothing is learned."""

    def finished(self, batch: Batch) -> None:  # noqa: B027 - the default, not a gap
        """Nothing is learned."""

    def closed(self, request: Request) -> None:  # noqa: B027 - the default, not a gap
        """Nothing is kept."""


class StaticPlanner(Rival):
    """One configuration per function, fixed before the first request; a batch is whatever waits, up to its size."""

    def __init__(self, market: Market) -> None:
        super().__init__(market)
        self.placer: Placer = BestFitPlacer()
        #: Queue -> the one configuration it runs in.
        self.planned: dict[str, tuple[Config]] = {}

    def prepare(self, graph: Graph) -> None:
        """Plan the whole workflow."""
        for stage, config in self.plan(graph).items():
            self.planned[queue_key(graph, stage)] = (config,)

    @abstractmethod
    def plan(self, graph: Graph) -> Mapping[str, Config]:
        """Stage -> configuration."""

    def choose(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """As planned, at once: the originals do not wait for a batch to fill."""
        return self.planned[queue.key]


class _Placing(Planner, Protocol):
    market: Market

    @property
    def placer(self) -> Placer: ...


def rival_policy(planner: _Placing) -> Policy:
    """The policy of a rival: its planner and placer, every model resident everywhere, the profile's times."""
    return Policy(planner, planner.placer, LoadEverything(), planner.market.predictor)
