"""The default policy whole: what `dovetail` would run (`DovetailPlanner`), where (`place`), as offers.

The planner names configurations for the queue's head, the best first. The first that some worker is ready for, with
room and model, is taken. If there is none, the view of the workers says where the best one would start first, with
fetches and evictions counted.

Rules of this file
- An ingress that has its workers to itself binds late; one that shares them binds as soon as work is ready, and
  workers keep the queues (`Where.bind_ns`). Nothing else is different.
- Beside others who slow it down a batch may take longer than planned: then the next configuration is tried, or it is
  kept apart from them (`apart`).
- A fetch that nobody can avoid is time that is gone: plans are made for what is left after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from ..place import Hint, Spot
from ..predict import Predictor
from ..state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request, Worker, WorkerRow
from ..workflow.graph import StageSpec
from .apart import Apart, Verdict
from .dovetail import DovetailPlanner
from .protocol import Hold, Offer, Refusal
from .settings import PlannerSettings

__all__ = ["Considered", "Dovetail", "Where"]

#: Configurations that are tried for one that is in time beside those who run.
_TRIES: Final = 4


class Where(Protocol):
    """A view of the workers: `place.OwnWorkers` or `place.SharedWorkers`."""

    bind_ns: int

    def bind(self, cluster: Cluster) -> None: ...

    def ready(self, stage: StageSpec, config: Config, now_ns: int) -> Spot | None: ...

    def spot(self, queue: Queue, head: Item, config: Config, now_ns: int) -> Spot | None: ...

    def closed_to(self, stage: StageSpec, priority: int) -> bool: ...

    def full(self, on_host: bool) -> bool: ...

    def fetch_ns(self, stage: StageSpec) -> int: ...

    def wait_ns(self, stage: StageSpec, now_ns: int) -> int: ...

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]: ...

    def started(self, batch: Batch, now_ns: int) -> None: ...

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None: ...

    def closed(self, request: Request) -> None: ...

    def joined(self, worker: Worker) -> None: ...

    def lost(self, worker: Worker) -> None: ...

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None: ...

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None: ...


class Considered(msgspec.Struct, frozen=True):
    """What was weighed for a queue's next batch: every offer, the one that was taken first; or why it is held."""

    queue: str
    at_ns: int
    #: Items that waited there.
    waiting: int = 0
    offers: tuple[Offer, ...] = ()
    hold: str = ""


class Dovetail(DovetailPlanner):
    """The scheduler that users get."""

    def __init__(self, predictor: Predictor, where: Where, settings: PlannerSettings | None = None) -> None:
        super().__init__(predictor, settings)
        self._where = where
        self._apart = Apart(predictor, self.latest_ns)
        self.bind_ns = where.bind_ns
        #: Told of everything that is considered, for `dovetail explain`; it costs time and changes nothing.
        self.watcher: Callable[[Considered], None] | None = None

    def bind(self, cluster: Cluster) -> None:
        """Remember the cluster."""
        super().bind(cluster)
        self._where.bind(cluster)

    def full(self, on_host: bool) -> bool:
        """As the view of the workers says."""
        return self._where.full(on_host)

    def offers(self, queue: Queue, now_ns: int) -> Sequence[Offer] | Hold:
        """The best configuration that some worker is ready for; or the best one where it would start first."""
        head = queue.head()
        assert head is not None, "the controller asks for queues with work"
        if self._where.closed_to(queue.stage, head.request.priority):
            return ()
        choice = self.choose(queue, now_ns)
        if isinstance(choice, Hold):
            if self.watcher is not None:
                self.watcher(Considered(queue.key, now_ns, queue.size, hold=choice.reason))
            return choice
        if self.watcher is not None:
            return self._watched(queue, head, list(choice), now_ns)
        return self._taken(queue, head, choice, now_ns)

    def _taken(self, queue: Queue, head: Item, choice: Iterable[Config], now_ns: int) -> tuple[Offer, ...] | Hold:
        """The first configuration that a worker is ready for and that is in time beside those who run there."""
        where = self._where
        first: Config | None = None
        late: list[tuple[Config, Spot]] = []
        for config in choice:
            spot = where.ready(queue.stage, config, now_ns)
            if spot is not None:
                verdict = self._beside(queue, head, config, spot.worker, now_ns)
                if isinstance(verdict, Hold):
                    return verdict
                if verdict:
                    return (self._offer(queue, config, spot),)
                late.append((config, spot))
                if len(late) == _TRIES:
                    break
            first = first or config
        if late:
            return (self._offer(queue, *late[0]),)
        if first is None:
            return ()
        spot = where.spot(queue, head, first, now_ns)
        return () if spot is None else (self._offer(queue, first, spot),)

    def _beside(self, queue: Queue, head: Item, config: Config, worker: Worker, now_ns: int) -> Verdict:
        """Whether a batch should begin beside those who run on a worker."""
        if not worker.running or not self._predictor.felt(worker.spec.kind):
            return True
        end_by_ns = self.end_by_ns(head)
        return self._apart.judge(queue, config, worker, end_by_ns, head.request.priority, now_ns)

    def _watched(self, queue: Queue, head: Item, configs: Sequence[Config], now_ns: int) -> tuple[Offer, ...] | Hold:
        """The same with every offer worked out, for whoever watches."""
        assert self.watcher is not None
        taken = self._taken(queue, head, configs, now_ns)
        if isinstance(taken, Hold):
            self.watcher(Considered(queue.key, now_ns, queue.size, hold=taken.reason))
            return taken
        ready: list[Offer] = []
        other: list[Offer] = []
        for config in configs:
            spot = self._where.ready(queue.stage, config, now_ns)
            if spot is not None:
                ready.append(self._offer(queue, config, spot))
                continue
            spot = self._where.spot(queue, head, config, now_ns)
            if spot is not None:
                other.append(self._offer(queue, config, spot))
        found = [offer for offer in (*ready, *other) if offer not in taken]
        if taken:
            self.watcher(Considered(queue.key, now_ns, queue.size, (*taken, *found)))
        return taken

    def end_by_ns(self, item: Item) -> int:
        """When the batch of an item has to end for its request to be in time."""
        plan = self._plans.get(item.request.graph.name)
        return item.request.objective_ns - (0 if plan is None else plan.after_ns[item.node])

    def latest_ns(self, batch: Batch) -> int:
        """The same for all requests of a batch."""
        return min([self.end_by_ns(item) for item in batch.items])

    def _offer(self, queue: Queue, config: Config, spot: Spot) -> Offer:
        run_ns = 0
        if self.watcher is not None:
            kind = spot.worker.spec.kind
            run_ns = self._predictor.run(queue.stage, kind, min(config.batch, queue.size), config).mean_ns
        return Offer(
            spot.worker,
            config,
            spot.start_ns,
            spot.reason,
            spot.order,
            spot.accept_ns,
            run_ns,
            spot.fetch_ns,
            spot.beside,
        )

    def fetch_ns(self, stage: StageSpec) -> int:
        """What its model takes to be fetched, if nobody has it."""
        return self._where.fetch_ns(stage)

    # -- what the view of the workers has to know -----------------------------------------------------------------

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """Models that should be fetched for it."""
        return self._where.hints(request, now_ns)

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """As the planner says; what nobody can avoid is counted: fetches, and queues at workers."""
        where = self._where
        fetch_ns = sum([where.fetch_ns(node.stage) for node in graph.nodes])
        queue_ns = max([where.wait_ns(node.stage, now_ns) for node in graph.entries], default=0)
        return self.judge(graph, priority, objective_ns, now_ns, fetch_ns, queue_ns)

    def started(self, batch: Batch, now_ns: int) -> None:
        """A batch is on its way."""
        self._where.started(batch, now_ns)
        self.began(batch)

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """A batch has ended."""
        self._where.ended(batch, now_ns, done)
        if done:
            self.finished(batch)

    def closed(self, request: Request) -> None:
        """A request has ended."""
        self._where.closed(request)
        super().closed(request)

    def joined(self, worker: Worker) -> None:
        """A worker is there."""
        self._where.joined(worker)

    def lost(self, worker: Worker) -> None:
        """A worker is gone."""
        self._where.lost(worker)

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:
        """A model has come or gone."""
        self._where.holds(worker, weights, here, now_ns)

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """The state table has news."""
        self._where.heard(rows, now_ns)
