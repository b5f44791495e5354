"""What Compass and its rivals have in common: they send each item to a worker as soon as it is ready.

A router says which worker an item goes to (`Router`); `RoutedScheduler` makes offers of that: one item on a whole
device, bound at once. Most of them place a whole request when it arrives, and may move items later (`PlannedRouter`).

Rules of this file
- Stages on the host wait for a host process, first come first served.
- A request's plan is one worker per node. Items of a mapped node all follow their node's plan.
- Members are kept in order of joining; that is the order in which a tie is broken, as the originals' member list is.
- A planned worker that is gone is replaced for that node alone, when an item of it comes up. The originals do not say
  what they do then.
- What the state table says is all they know: what they have sent themselves since does not count, nor does what a
  worker tells one controller alone. That is how the originals are written, and what makes them herd when it is old.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from ...control import Policy
from ...place import Hint, Route, SharedWorkers
from ...predict import Predictor
from ...scale import FetchOnDemand
from ...schedule import FirstCome, Hold, Offer
from ...state import NEVER_NS, Batch, Cluster, Config, Item, Queue, Request, Worker, WorkerRow
from ...state.worker import FULL_SHARE
from ...wiring import PolicySpec
from ...workflow.graph import StageSpec

__all__ = ["PlannedRouter", "RoutedScheduler", "Router", "policy_of", "routed_policy"]


class Router(Protocol):
    """Says where each item goes, before that worker is free."""

    def joined(self, worker: Worker) -> None:
        """A worker is there; so far it is idle and holds nothing."""
        ...

    def lost(self, worker: Worker) -> None:
        """A worker is gone."""
        ...

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """The state table said this of these workers; of others nothing new is known."""
        ...

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:
        """A worker told this controller itself that a model has come or gone."""
        ...

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """A request was admitted: decide ahead what can be, and say which models should be fetched for it."""
        ...

    def route(self, item: Item, now_ns: int) -> Route | None:
        """An item's inputs are there. None if there is no worker that could run it: it waits until one joins."""
        ...

    def started(self, batch: Batch, now_ns: int) -> None:
        """An item is on its way."""
        ...

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """A batch of this controller has ended, or was refused or lost (`done` is false)."""
        ...

    def closed(self, request: Request) -> None:
        """A request has ended; forget it."""
        ...


class RoutedScheduler:
    """Offers each item, alone on a whole device, to the worker that a router names."""

    restless = False
    bind_ns = NEVER_NS

    def __init__(self, router: Router, *, max_open: int = 10_000, batch: dict[str, int] | None = None) -> None:
        self.router = router
        #: For everything that is not about devices.
        self._plain = FirstCome(max_open=max_open, batch=batch)
        self.queue_key = self._plain.queue_key
        self.admit = self._plain.admit
        self.order = self._plain.order
        self.hopeless = self._plain.hopeless
        self.note = self._plain.note
        self.full = self._plain.full
        self.idle = self._plain.idle
        self.sleeps, self.closed_to = self._plain.sleeps, self._plain.closed_to
        self.woken = self._plain.woken

    def bind(self, cluster: Cluster) -> None:
        """Routers name workers by number."""
        self._plain.bind(cluster)
        self._workers = cluster.workers
        self._cluster = cluster

    def offers(self, queue: Queue, now_ns: int) -> Sequence[Offer] | Hold:
        """Where the router sends the first item; a stage with slices runs in these."""
        if queue.stage.on_host or queue.stage.name in self._cluster.sliced:
            return self._plain.offers(queue, now_ns)
        head = queue.head()
        assert head is not None, "the controller asks for queues with work"
        route = self.router.route(head, now_ns)
        if route is None:
            return ()
        worker = self._workers[route.worker]
        config = Config(1, worker.spec.cores or 1, FULL_SHARE)
        return (Offer(worker, config, now_ns, route.reason, route.order, route.latest_ns),)

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """As the router says."""
        return self.router.hints(request, now_ns)

    def started(self, batch: Batch, now_ns: int) -> None:
        """The router may count it."""
        if not batch.worker.spec.on_host:
            self.router.started(batch, now_ns)

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """The router may count it."""
        if not batch.worker.spec.on_host:
            self.router.ended(batch, now_ns, done)

    def closed(self, request: Request) -> None:
        """The router forgets it."""
        self.router.closed(request)

    def joined(self, worker: Worker) -> None:
        """Host processes are not routed to."""
        if not worker.spec.on_host:
            self.router.joined(worker)

    def lost(self, worker: Worker) -> None:
        """The same."""
        if not worker.spec.on_host:
            self.router.lost(worker)

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:
        """The router may listen."""
        if not worker.spec.on_host:
            self.router.holds(worker, weights, here, now_ns)

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """The state table is the router's."""
        self.router.heard(rows, now_ns)


def policy_of(router: Router, predictor: Predictor) -> Policy:
    """The policy of a router that knows the state table."""
    return Policy(RoutedScheduler(router), FetchOnDemand(), predictor)


def routed_policy(
    spec: PolicySpec, predictor: Predictor, cores: int, home: int, make: Callable[[Predictor], Router]
) -> Policy:
    """The policy of a router; one that knows only what a table says is given one where there is no other ingress."""
    from .single_ingress import SingleIngress  # it wraps a router, and so imports this file

    router = make(predictor)
    told = home or isinstance(router, SharedWorkers)
    scheduler = RoutedScheduler(
        router if told else SingleIngress(router), max_open=spec.max_open, batch=dict(spec.batch)
    )
    return Policy(scheduler, FetchOnDemand(), predictor)


class PlannedRouter(ABC):
    """Answers that all of them give alike. Subclasses plan, replace, and may move."""

    def __init__(self) -> None:
        #: Workers that are here, in order of joining.
        self.members: dict[int, Worker] = {}
        #: What the state table last said of each; nothing means idle and empty.
        self.rows: dict[int, WorkerRow] = {}
        #: Request -> node -> worker.
        self.plans: dict[int, dict[int, int]] = {}

    @abstractmethod
    def decide(self, request: Request, now_ns: int) -> dict[int, int]:
        """A worker for each node that any member could run."""

    @abstractmethod
    def replace(self, item: Item, now_ns: int) -> int | None:
        """Another worker for an item whose planned one is gone; None if no member could run it."""

    def move(self, item: Item, planned: int, now_ns: int) -> int:
        """The worker that an item goes to in the end: as planned, unless a subclass adjusts."""
        return planned

    def able(self, stage: StageSpec) -> list[Worker]:
        """Members that could run the stage: of the right kind, and with memory for its weights."""
        return [w for w in self.members.values() if can_run(w, stage)]

    def joined(self, worker: Worker) -> None:
        """It goes to the end of the list."""
        self.members[worker.id] = worker

    def lost(self, worker: Worker) -> None:
        """Plans that name it are mended when their items come up."""
        self.members.pop(worker.id, None)
        self.rows.pop(worker.id, None)

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """The newest word counts."""
        for row in rows:
            if row.worker in self.members:
                self.rows[row.worker] = row

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:  # noqa: B027
        """Not listened to: the state table is all they know."""

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """The whole request at once. Nothing is fetched ahead on the planner's word."""
        self.plans[request.id] = self.decide(request, now_ns)
        return ()

    def route(self, item: Item, now_ns: int) -> Route | None:
        """As planned, or adjusted; an item whose worker is gone is planned again by itself."""
        plan = self.plans.setdefault(item.request.id, {})
        planned = plan.get(item.node)
        if planned not in self.members:
            planned = self.replace(item, now_ns)
            if planned is None:
                return None
            plan[item.node] = planned
            return Route(planned, reason="planned again")
        worker = self.move(item, planned, now_ns)
        return Route(worker, reason="as planned" if worker == planned else f"moved from worker {planned}")

    def started(self, batch: Batch, now_ns: int) -> None:  # noqa: B027
        """Not counted: the worker's row will say so."""

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:  # noqa: B027
        """Not counted: the worker's row will say so."""

    def closed(self, request: Request) -> None:
        """Forget its plan."""
        self.plans.pop(request.id, None)


def can_run(worker: Worker, stage: StageSpec) -> bool:
    """Whether a worker could ever run a stage."""
    spec = worker.spec
    return stage.kind in spec.runs and (not spec.memory_bytes or stage.weights_bytes <= spec.memory_bytes)
