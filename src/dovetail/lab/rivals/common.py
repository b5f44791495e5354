"""What the rivals of ESG have in common, so that each file holds its own rules and nothing else.

Rules of this file
- A function is a stage of a workflow: every (workflow, stage) pair has its own queue, as ESG's queues are said to be.
  Work is taken first come, first served, everything is admitted, nothing is learned unless a rival says so.
- A rival plans for one kind of worker, from the profile's mean times and their spread (`Market`): the first to join
  that can run the stage. Until there is one for every stage, stages run in their minimum configuration. What a
  simulated device draws from the spread a rival never sees.
- INFless and FaST-GShare know single functions only. What they are told of a workflow's objective is `slo_shares`:
  an adaptation of ours, since how ESG's authors did it could not be found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ...control import Policy
from ...errors import ProfileError
from ...place.fit import best_fit
from ...plan.space import Space, configs_for
from ...predict import Predictor
from ...scale import LoadEverything, Scaler
from ...schedule import Hint, Hold, Offer, Refusal
from ...schedule.in_slices import plain_slice_offers
from ...state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request, Worker, WorkerRow, WorkerSpec
from ...state.worker import FULL_SHARE
from ...units import SECOND
from ...workflow.graph import Graph, Node, StageSpec

__all__ = [
    "MAX_OPEN",
    "ConfigScheduler",
    "Market",
    "Rival",
    "StaticPlanner",
    "least_of",
    "longest_path",
    "queue_key",
    "rival_policy",
    "slo_shares",
]


#: Requests that may be open before new ones are shed.
MAX_OPEN: Final = 1_000_000


class Market:
    """What may be chosen, how long it takes and what it costs on the workers that a rival plans for."""

    def __init__(self, predictor: Predictor, space: Space, *workers: WorkerSpec) -> None:
        self.predictor = predictor
        self.space = space
        #: Kind of stage -> the worker that stages of this kind are planned for.
        self._workers: dict[str, WorkerSpec] = {}
        for worker in workers:
            self.meet(worker)

    def meet(self, worker: WorkerSpec) -> None:
        """A worker is there; stages that no other could run are planned for it."""
        for kind in worker.runs:
            self._workers.setdefault(kind, worker)

    def covers(self, stages: Iterable[StageSpec]) -> bool:
        """Whether there is a worker to plan for, for every one of these stages."""
        return all(stage.kind in self._workers for stage in stages)

    def worker(self, stage: StageSpec) -> WorkerSpec:
        """The worker that this stage is planned for."""
        return self._workers[stage.kind]

    def configs(self, stage: StageSpec) -> list[Config]:
        """All configurations of the stage."""
        return configs_for(stage, self.worker(stage), self.space)

    def least(self, stage: StageSpec) -> Config:
        """The minimum configuration: smallest batch, then smallest share, then fewest cores."""
        return least_of(self.configs(stage))

    def time_ns(self, stage: StageSpec, config: Config) -> int:
        """Mean time of a full batch."""
        kind = self.worker(stage).kind
        estimate = self.predictor.run(stage, kind, config.batch, config)
        if estimate.source != "profile":
            raise ProfileError(
                f"stage {stage.name!r} has no profile on {kind!r}, and the policy plans from profiles: measure it "
                f"with dovetail profile, or give its times in the scenario"
            )
        return estimate.mean_ns

    def spread(self, stage: StageSpec) -> float:
        """Standard deviation over mean of a single run."""
        estimate = self.predictor.run(stage, self.worker(stage).kind, stage.batch[0], self.least(stage))
        return estimate.spread if estimate.source == "profile" else 0.0

    def usd_per_ns(self, stage: StageSpec, config: Config) -> float:
        """What a nanosecond of the stage in this configuration costs."""
        worker = self.worker(stage)
        device = worker.usd_per_hour * config.share_pct / FULL_SHARE
        return (device + worker.usd_per_core_hour * config.cpus) / 3600e9


def least_of(configs: Iterable[Config]) -> Config:
    """The minimum configuration: smallest batch, then smallest share, then fewest cores."""
    return min(configs, key=lambda c: (c.batch, c.share_pct, c.cpus))


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


class ConfigScheduler(ABC):
    """Schedulers that name configurations; the first that finds a place is sent when there is room for it."""

    #: They are asked as their authors' schedulers ask: when work comes and when a batch ends.
    restless = False
    bind_ns = 0
    cluster: Cluster

    @abstractmethod
    def choose(self, queue: Queue, now_ns: int) -> Iterable[Config] | Hold:
        """Configurations for the queue's next batch in order of preference, or a hold."""

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """Nothing is fetched ahead."""
        return ()

    def hopeless(self, now_ns: int) -> Sequence[tuple[Request, Refusal]]:
        """Nobody is given up."""
        return ()

    def full(self, on_host: bool) -> bool:
        """Not known without a look at each worker."""
        return False

    def sleeps(self, queue: Queue) -> bool:
        """Every queue is asked."""
        return False

    def closed_to(self, queue: Queue) -> bool:
        """None sleeps."""
        return False

    def woken(self) -> Sequence[str]:
        """None was asleep."""
        return ()

    def offers(self, queue: Queue, now_ns: int) -> Sequence[Offer] | Hold:
        """The first of the rival's configurations that finds a place; or the slices that the stage has."""
        if queue.stage.name in self.cluster.sliced:
            return plain_slice_offers(self.cluster, queue, now_ns)
        holders = self.cluster.holders[queue.stage.name]
        if not any(worker.free_pct for worker in holders.values()):
            return ()
        choice = self.choose(queue, now_ns)
        if isinstance(choice, Hold):
            return choice
        for config in choice:
            worker = self.place(queue, config, holders)
            if worker is not None:
                return (Offer(worker, config, now_ns),)
        return ()

    def place(self, queue: Queue, config: Config, holders: Mapping[int, Worker]) -> Worker | None:
        """Where a configuration goes: the tightest fit, unless a rival says otherwise."""
        return best_fit(holders.values(), config)

    def started(self, batch: Batch, now_ns: int) -> None:  # noqa: B027 - the default, not a gap
        """Nothing is learned."""

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:  # noqa: B027 - the default, not a gap
        """Nothing is learned."""

    def joined(self, worker: Worker) -> None:  # noqa: B027 - the default, not a gap
        """The cluster knows."""

    def lost(self, worker: Worker) -> None:  # noqa: B027 - the default, not a gap
        """The cluster knows."""

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:  # noqa: B027
        """The cluster knows."""

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:  # noqa: B027
        """There is one ingress."""

    def closed(self, request: Request) -> None:  # noqa: B027 - the default, not a gap
        """Nothing is kept."""

    def idle(self, now_ns: int) -> None:  # noqa: B027 - the default, not a gap
        """Nothing is worked out ahead."""


class Rival(ConfigScheduler):
    """Answers that all rivals give alike. Subclasses say what to prepare for a workflow, and choose."""

    def __init__(self, market: Market, *, max_open: int = MAX_OPEN) -> None:
        self.market = market
        self.graphs: dict[str, Graph] = {}
        self._max_open = max_open
        self._prepared = False

    def queue_key(self, graph: Graph, node: Node) -> str:
        """One queue per workflow and stage."""
        self.graphs[graph.name] = graph
        return queue_key(graph, node.stage)

    def bind(self, cluster: Cluster) -> None:
        """All workflows are known by now; workers may come later."""
        self.cluster = cluster
        self._ready()

    def _ready(self) -> bool:
        """Whether all is prepared: that is done as soon as there is a worker for every stage."""
        if not self._prepared:
            for worker in self.cluster.workers.values():
                self.market.meet(worker.spec)
            if self.market.covers(s for g in self.graphs.values() for s in g.stages):
                self._prepared = True
                for graph in self.graphs.values():
                    self.prepare(graph)
        return self._prepared

    @abstractmethod
    def prepare(self, graph: Graph) -> None:
        """Work out what does not depend on the load."""

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """None of the originals refuses work; but what is open has to fit into memory."""
        open_requests = len(self.cluster.requests)
        if open_requests < self._max_open:
            return None
        return Refusal(f"{open_requests} requests are open already", retry_after_ns=1 * SECOND)

    def order(self, request: Request, node: int) -> int:
        """First come, first served."""
        return request.id

    def choose(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """The rival's own answer; the minimum while some stage has no worker to plan for."""
        if self._prepared or self._ready():
            return self.decide(queue, now_ns)
        worker = next(iter(self.cluster.holders[queue.stage.name].values()))
        return (least_of(configs_for(queue.stage, worker.spec, self.market.space)),)

    @abstractmethod
    def decide(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """The rival's own answer, once all is prepared."""

    def note(self, item: Item, now_ns: int) -> None:
        """What arrives before there is a worker for every stage is not counted."""
        if self._prepared or self._ready():
            self.count(item, now_ns)

    def count(self, item: Item, now_ns: int) -> None:
        """Nothing is learned."""


class StaticPlanner(Rival):
    """One configuration per function, fixed before the first request; a batch is whatever waits, up to its size."""

    def __init__(self, market: Market, *, max_open: int = MAX_OPEN) -> None:
        super().__init__(market, max_open=max_open)
        #: Queue -> the one configuration it runs in.
        self.planned: dict[str, tuple[Config]] = {}

    def prepare(self, graph: Graph) -> None:
        """Plan the whole workflow."""
        for stage, config in self.plan(graph).items():
            self.planned[queue_key(graph, stage)] = (config,)

    @abstractmethod
    def plan(self, graph: Graph) -> Mapping[str, Config]:
        """Stage -> configuration."""

    def decide(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """As planned, at once: the originals do not wait for a batch to fill."""
        return self.planned[queue.key]


def rival_policy(rival: Rival, scaler: Scaler | None = None) -> Policy:
    """The policy of a rival: every model resident everywhere unless a scaler says otherwise, the profile's times."""
    return Policy(rival, scaler or LoadEverything(), rival.market.predictor)
