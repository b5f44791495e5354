"""What the controller asks a scheduler: who is let in, who goes first, and what is offered to a queue.

A policy is one `Scheduler` with a scaler and a predictor (`control.Policy`). Ours is `dovetail`; the plain ones and
all rivals answer the same questions. Whether work waits at the ingress or at a worker is one number, `bind_ns`: how
long before its start an offer is taken. 0 waits until there is room; `NEVER_NS` sends everything at once, and workers
keep the queues.

Rules of this file: a scheduler reads the cluster and never changes it. Asked twice in the same state it says the
same, and what it says later does not depend on being asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

import msgspec

from ..place import Hint
from ..state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request, Slice, Worker, WorkerRow
from ..workflow.graph import Graph, Node

__all__ = ["Hint", "Hold", "Offer", "Refusal", "Scheduler"]


@final
class Hold(msgspec.Struct, frozen=True, gc=False):
    """Start nothing from this queue before `until_ns` unless it changes; the reason is declared and logged."""

    until_ns: int
    reason: str


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A request that is better refused now, and when it could be tried again (0: never)."""

    reason: str
    retry_after_ns: int = 0
    #: Also requests that may be late are refused: there is no room at all.
    firm: bool = False


class Offer(msgspec.Struct, frozen=True, gc=False):
    """One way to run the next batch of a queue: in which configuration, on which worker, from when on."""

    worker: Worker
    config: Config
    #: When the worker should have room for it.
    start_ns: int
    #: Why there, in a few words; it goes into the log.
    reason: str = ""
    #: Place among those of its class in the worker's queue: smaller starts first.
    order: int = 0
    #: The worker refuses at once if it does not expect to start it by then; 0: it takes it.
    accept_ns: int = 0
    #: What it should take, model and inputs there; 0: not worked out.
    run_ns: int = 0
    #: What bringing its model takes, before it can start; and whether others run there meanwhile.
    fetch_ns: int = 0
    beside: bool = False
    #: What it was compared by with the other offers of its queue: the least is taken (`ranked`).
    score: float = 0.0
    #: The slice that it would run in; None: it is not the scaler's to set.
    slice: Slice | None = None


class Scheduler(Protocol):
    """Answers who, in what order, how and where."""

    #: How long before it can start a batch is sent to its worker.
    bind_ns: int
    #: Whether what is offered to a queue changes by itself: with time, or with what starts elsewhere. Then queues
    #: that found no room are asked in every step, not only when they or the room have changed.
    restless: bool

    def queue_key(self, graph: Graph, node: Node) -> str:
        """Nodes of one stage with the same key share a queue, and so batches."""
        ...

    def bind(self, cluster: Cluster) -> None:
        """Called once, before anything else: what the scheduler may look at from then on."""
        ...

    # -- requests ---------------------------------------------------------------------------------------------

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """None admits the request."""
        ...

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """A request was admitted: which models should be fetched for it, and where."""
        ...

    def hopeless(self, now_ns: int) -> Sequence[tuple[Request, Refusal]]:
        """Requests that wait, cannot be in time any more and are in the way of others that can."""
        ...

    def closed(self, request: Request) -> None:
        """An admitted request has ended, in whatever way."""
        ...

    def idle(self, now_ns: int) -> None:
        """The end of a step in which nothing was started: time for what no decision should wait for."""
        ...

    # -- batches ----------------------------------------------------------------------------------------------

    def order(self, request: Request, node: int) -> int:
        """Smaller is served first; ties are first come, first served."""
        ...

    def note(self, item: Item, now_ns: int) -> None:
        """An item has joined its queue (arrival rates are learned here)."""
        ...

    def full(self, on_host: bool) -> bool:
        """Whether no device (or host process) has room for anything: then no queue is asked. False if in doubt."""
        ...

    def sleeps(self, queue: Queue) -> bool:
        """Whether a queue need not be asked until `woken` names its stage: nobody has room for that."""
        ...

    def closed_to(self, queue: Queue) -> bool:
        """Whether a queue that sleeps would be offered nothing, and sleep on, if it were asked."""
        ...

    def woken(self) -> Sequence[str]:
        """Stages for which somebody may have room again, since this was last asked."""
        ...

    def offers(self, queue: Queue, now_ns: int) -> Sequence[Offer] | Hold:
        """Ways to run the queue's next batch, the best first; nothing if there is none now."""
        ...

    def started(self, batch: Batch, now_ns: int) -> None:
        """What was offered is on its way."""
        ...

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """A batch was run; or it was refused, failed or lost (`done` is false), and its items wait again."""
        ...

    # -- workers ----------------------------------------------------------------------------------------------

    def joined(self, worker: Worker) -> None:
        """A worker is there, idle and empty."""
        ...

    def lost(self, worker: Worker) -> None:
        """A worker is gone."""
        ...

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:
        """A model has come to a worker's memory, or gone."""
        ...

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """The state table said this of these workers; of others nothing new is known."""
        ...
