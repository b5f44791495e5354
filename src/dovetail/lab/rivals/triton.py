"""A policy like Triton's: each model has a queue, a dynamic batcher and a fixed number of instances on each device.

Source of the rules: Triton's user guide (batcher, rate limiter, model configuration; read 2026-11). docs/rivals.md
says what was adapted.
- When an instance is free, the largest preferred batch that can be formed is sent; if none can, the batch waits, at
  most `delay_ns` since its first request came, and then goes as large as it is, up to the largest size.
- An instance runs one batch at a time; by default there is one per model and device. Instances of different models
  run beside each other. How many of them is bounded by the rate limiter: `slots` per device.
- Priorities order the queue of one model (`priority_levels`); across models nobody goes first.
- A request may have a timeout, which is about its time in one model's queue: when it is over, it is rejected.

Not the original's: all devices share one queue per model, which is kinder than a balancer before separate servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

import msgspec

from ...control import Policy
from ...predict import Predictor
from ...schedule import Hold, Refusal
from ...state import Config, Item, Queue, Request, Worker
from ...state.worker import FULL_SHARE
from ...units import format_ns
from ...wiring import PolicySpec
from ...workflow.graph import Graph, Node, StageSpec
from .common import MAX_OPEN, Market, Rival, rival_policy
from .replicas import Replicas

__all__ = ["TritonPlanner", "TritonSettings", "batch_size", "make"]

#: Order keys of classes must not overlap: more requests than a run can have.
_CLASS_STEP = 1 << 48


class TritonSettings(msgspec.Struct, frozen=True):
    """What an operator would set; the defaults are what did best in `joint` (docs/rivals.md)."""

    #: Instances of a model on a device. [Triton's default]
    instances: int = 1
    #: Batches of all models that run on a device at a time, each on an equal share.
    slots: int = 4
    #: Preferred batch sizes as parts of the largest one: (1.0,) prefers the largest alone.
    preferred: tuple[float, ...] = (1.0,)
    #: `max_queue_delay_microseconds`. [Triton's default]
    delay_ns: int = 0
    #: `priority_levels`: whether the class orders a model's queue.
    priorities: bool = True
    #: `default_timeout_microseconds` over the workflow's objective; 0 rejects nothing.
    timeout: float = 0.3

    @property
    def share_pct(self) -> int:
        """Share of a device that an instance runs on."""
        return FULL_SHARE // self.slots


def batch_size(waiting: int, oldest_ns: int, sizes: Sequence[int], preferred: Sequence[int], delay_ns: int) -> int:
    """The batch that is sent to a free instance now: the largest preferred one, or 0 to wait for it.

    `oldest_ns`: how long the first request has waited; `sizes`: those that the model can run.
    """
    formed = [size for size in preferred if size <= waiting]
    if formed:
        return max(formed)
    return min(waiting, sizes[-1]) if oldest_ns >= delay_ns else 0


class TritonPlanner(Rival):
    """The batchers of all models."""

    #: Replicas are placed anew when a worker comes or goes, which changes what is offered to every queue.
    restless = True

    def __init__(
        self,
        market: Market,
        settings: TritonSettings | None = None,
        *,
        demand: Mapping[str, float] | None = None,
        max_open: int = MAX_OPEN,
    ) -> None:
        super().__init__(market, max_open=max_open)
        self.settings = settings or TritonSettings()
        self.replicas = Replicas(market, self.settings.share_pct, demand)
        #: (when its time in the queue is over, number, item)
        self._timeouts: list[tuple[int, int, Item]] = []
        self._noted = 0

    def queue_key(self, graph: Graph, node: Node) -> str:
        """One queue per model: requests of all workflows share it."""
        super().queue_key(graph, node)
        return node.stage

    def prepare(self, graph: Graph) -> None:
        """Replicas are placed when they are first asked for."""

    def order(self, request: Request, node: int) -> int:
        """First come, first served, inside a priority."""
        return request.id + (request.priority * _CLASS_STEP if self.settings.priorities else 0)

    def config(self, stage: StageSpec, batch: int) -> Config:
        """A batch on an instance; steps on the host take a process."""
        return Config(batch, 1, FULL_SHARE if stage.on_host else self.settings.share_pct)

    def decide(self, queue: Queue, now_ns: int) -> Sequence[Config] | Hold:
        """What the queue's batcher would send to a free instance."""
        stage, head = queue.stage, queue.head()
        assert head is not None, "the controller asks for queues with work"
        preferred = [max(1, round(stage.batch[-1] * part)) for part in self.settings.preferred]
        delay_ns = 0 if stage.on_host else self.settings.delay_ns
        batch = batch_size(queue.size, now_ns - head.queued_ns, stage.batch, preferred, delay_ns)
        if not batch:
            return Hold(head.queued_ns + delay_ns, "waits for a preferred batch")
        return (self.config(stage, batch),)

    def place(self, queue: Queue, config: Config, holders: Mapping[int, Worker]) -> Worker | None:
        """The device with most room among those that have a free instance of the model."""
        free = [
            worker
            for worker in self.replicas.of(queue.stage, self.cluster, self.graphs)
            if worker.id in holders
            and worker.fits(config)
            and sum(b.queue is queue for b in worker.running.values()) < self.settings.instances
        ]
        return max(free, key=lambda w: (w.free_pct, -w.id), default=None)

    def count(self, item: Item, now_ns: int) -> None:
        """Its time in this queue begins."""
        if self.settings.timeout:
            request = item.request
            limit_ns = round((request.objective_ns - request.arrived_ns) * self.settings.timeout)
            self._noted += 1
            heappush(self._timeouts, (now_ns + limit_ns, self._noted, item))

    def hopeless(self, now_ns: int) -> Sequence[tuple[Request, Refusal]]:
        """Requests whose time in a queue is over."""
        found: dict[int, tuple[Request, Refusal]] = {}
        while self._timeouts and self._timeouts[0][0] <= now_ns:
            item = heappop(self._timeouts)[2]
            if item.waits and not item.request.outcome:
                reason = f"it has been in a model's queue for {format_ns(now_ns - item.queued_ns)}"
                found[item.request.id] = (item.request, Refusal(reason))
        return list(found.values())


def make(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """The policy for the registry."""
    return rival_policy(TritonPlanner(Market(predictor, spec.space), max_open=spec.max_open))
