"""A policy like Ray Serve's: a fixed number of replicas per model, two picked at random, and the shorter queue wins.

Source of the rules: Ray's documentation (configure-serve-deployment, dyn-req-batch, ray.serve.batch) and
ray-project/ray#36501 (power of two choices), read 2026-11. docs/rivals.md says what was adapted.
- A request goes to the one of two random replicas that has fewer ongoing requests. A replica takes no more than
  `max_ongoing_requests`; if both are full, two others are tried, and if all are, the request waits at the router.
- A replica runs one batch at a time, of `max_batch_size` or of what has come when `batch_wait_timeout_s` is over.
- With `max_queued_requests` more than so many waiting at the router of a workflow's first model are refused.
- There are neither classes nor objectives. A replica has a fixed part of a device (`num_gpus`), here one that holds.

Which request goes to which replica is kept as numbers: a replica's batch takes the oldest requests of the model, so
that nobody overtakes. That is kinder than queues of their own. Chance is a hash, the same in every run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from ...control import Policy
from ...predict import Predictor
from ...schedule import Hold, Refusal
from ...state import Batch, CompiledGraph, Config, Item, Queue, Worker
from ...state.worker import FULL_SHARE
from ...units import MS, SECOND
from ...wiring import PolicySpec
from ...workflow.graph import Graph, Node, StageSpec
from .common import MAX_OPEN, Market, Rival, rival_policy
from .hashed import pick
from .replicas import Replicas

__all__ = ["RayServePlanner", "RayServeSettings", "make", "two_of"]


class RayServeSettings(msgspec.Struct, frozen=True):
    """What an operator would set; the defaults are what did best in `joint` (docs/rivals.md)."""

    #: `max_ongoing_requests`: those that a replica may have, waiting in it or running. [Ray's default is 5]
    max_ongoing: int = 3
    #: `batch_wait_timeout_s`. [Ray's default]
    wait_ns: int = 10 * MS
    #: Requests that may wait at a model's router, for each of its replicas; 0 refuses nobody. [Ray's default is -1]
    max_queued: float = 0.25
    #: `num_gpus` of a replica, in per cent.
    share_pct: int = 25


class _Deployment:
    """The replicas of one model: when the requests came that wait in each, and how many wait at the router."""

    def __init__(self, replicas: Sequence[int]) -> None:
        self.waiting: dict[int, deque[int]] = {worker: deque() for worker in replicas}
        #: When the requests at the router came.
        self.router: deque[int] = deque()


def two_of(seed: int, draw: int, count: int) -> tuple[int, int]:
    """Two different numbers below `count`, by hash; the same twice if there is but one."""
    first = pick(seed, draw, 0, count)
    return (first, first) if count == 1 else (first, (first + 1 + pick(seed, draw, 1, count - 1)) % count)


class RayServePlanner(Rival):
    """Routers and replicas of all models."""

    #: Requests go to replicas as soon as one takes them, whatever else happens.
    restless = True

    def __init__(
        self,
        market: Market,
        settings: RayServeSettings | None = None,
        *,
        demand: Mapping[str, float] | None = None,
        seed: int = 0,
        max_open: int = MAX_OPEN,
    ) -> None:
        super().__init__(market, max_open=max_open)
        self.settings = settings or RayServeSettings()
        self.replicas = Replicas(market, self.settings.share_pct, demand)
        self._seed = seed
        self._draws = 0
        self._deployments: dict[str, _Deployment] = {}

    def queue_key(self, graph: Graph, node: Node) -> str:
        """One deployment per model: requests of all workflows share it."""
        super().queue_key(graph, node)
        return node.stage

    def prepare(self, graph: Graph) -> None:
        """Replicas are placed when they are first asked for."""

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """Full routers refuse; the others take everything."""
        if self.settings.max_queued and self._prepared:
            for node in graph.entries:
                deployment = self._settled(node.queue)
                if len(deployment.router) >= self.settings.max_queued * len(deployment.waiting):
                    return Refusal(f"{len(deployment.router)} requests wait for {node.stage.name!r}", 1 * SECOND)
        return super().admit(graph, priority, objective_ns, now_ns)

    def decide(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """The batch of a replica that is idle and full or has waited for long enough; or a hold."""
        self._asked_ns = now_ns
        ready = self.ready(queue, now_ns)
        if ready is not None:
            return (self.config(queue.stage, ready[1]),)
        due_ns = [row[0] + self.settings.wait_ns for _, row in self._idle(queue) if row]
        return Hold(min(due_ns), "waits for a batch to fill") if due_ns else ()

    def place(self, queue: Queue, config: Config, holders: Mapping[int, Worker]) -> Worker | None:
        """The replica whose batch it is."""
        ready = self.ready(queue, self._asked_ns)
        return holders.get(ready[0]) if ready is not None else None

    def config(self, stage: StageSpec, batch: int) -> Config:
        """A batch on a replica; steps on the host take a process."""
        return Config(batch, 1, FULL_SHARE if stage.on_host else self.settings.share_pct)

    def ready(self, queue: Queue, now_ns: int) -> tuple[int, int] | None:
        """(worker, batch) of the replica that has waited longest of those that may run now."""
        largest = queue.stage.batch[-1]
        due = [
            (row[0], worker, min(len(row), largest))
            for worker, row in self._idle(queue)
            if row and (len(row) >= largest or now_ns - row[0] >= self.settings.wait_ns)
        ]
        return min(due)[1:] if due else None

    def _idle(self, queue: Queue) -> list[tuple[int, deque[int]]]:
        """Replicas that run nothing and have room, with what waits in them."""
        share = self.config(queue.stage, 1).share_pct
        found = []
        for worker, row in self._settled(queue).waiting.items():
            here = self.cluster.workers.get(worker)
            if here is not None and here.free_pct >= share and not self._running(here, queue):
                found.append((worker, row))
        return found

    def _running(self, worker: Worker, queue: Queue) -> int:
        """Requests of a model that run on a worker."""
        return sum(len(b.items) for b in worker.running.values() if b.queue is queue)

    def _deployment(self, queue: Queue) -> _Deployment:
        """The replicas of a model; what waits in those that are gone goes back to the router."""
        names = [w.id for w in self.replicas.of(queue.stage, self.cluster, self.graphs)]
        found = self._deployments.get(queue.key)
        if found is None or list(found.waiting) != names:
            before, found = found, _Deployment(names)
            if before is not None:
                found.router.extend(sorted([*before.router, *(at for row in before.waiting.values() for at in row)]))
            self._deployments[queue.key] = found
        return found

    def _settled(self, queue: Queue) -> _Deployment:
        """The same, once the numbers are those of the queue: requests may have been given up or come back."""
        found = self._deployment(queue)
        known = len(found.router) + sum(map(len, found.waiting.values()))
        if known < queue.size:
            head = queue.head()
            assert head is not None
            found.router.extend([head.queued_ns] * (queue.size - known))
        for row in (found.router, *found.waiting.values()):
            while known > queue.size and row:
                row.pop()
                known -= 1
        self._route(queue, found)
        return found

    def _route(self, queue: Queue, deployment: _Deployment) -> None:
        """Send from the router what replicas take, in order of arrival; who finds two full ones picks again."""
        if not deployment.router or not deployment.waiting:
            return
        names = list(deployment.waiting)
        ongoing = [self._ongoing(queue, deployment, name) for name in names]
        while deployment.router and min(ongoing) < self.settings.max_ongoing:
            self._draws += 1
            first, second = two_of(self._seed, self._draws, len(names))
            chosen = first if ongoing[first] <= ongoing[second] else second
            if ongoing[chosen] < self.settings.max_ongoing:
                ongoing[chosen] += 1
                deployment.waiting[names[chosen]].append(deployment.router.popleft())

    def _ongoing(self, queue: Queue, deployment: _Deployment, worker: int) -> int:
        here = self.cluster.workers.get(worker)
        return len(deployment.waiting[worker]) + (self._running(here, queue) if here is not None else 0)

    def count(self, item: Item, now_ns: int) -> None:
        """A request has come to a model's router."""
        queue = item.request.graph.nodes[item.node].queue
        self._deployment(queue).router.append(now_ns)

    def started(self, batch: Batch, now_ns: int) -> None:
        """What the replica runs waits no more."""
        deployment = self._deployments.get(batch.queue.key)
        row = deployment.waiting.get(batch.worker.id) if deployment is not None else None
        for _ in range(min(len(batch.items), len(row or ()))):
            assert row is not None
            row.popleft()


def make(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """The policy for the registry."""
    return rival_policy(RayServePlanner(Market(predictor, spec.space), seed=spec.seed, max_open=spec.max_open))
