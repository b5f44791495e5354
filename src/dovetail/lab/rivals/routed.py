"""What Compass and its rivals have in common: they place a whole request when it arrives, and may move items later.

Rules of this file
- A request's plan is one worker per node. Items of a mapped node all follow their node's plan.
- Members are kept in order of joining; that is the order in which a tie is broken, as the originals' member list is.
- A planned worker that is gone is replaced for that node alone, when an item of it comes up. The originals do not say
  what they do then.
- What the state table says is all they know: what they have sent themselves since does not count, nor does what a
  worker tells one controller alone. That is how the originals are written, and what makes them herd when it is old.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ...place import Hint, Route
from ...state import Batch, Item, Request, Worker, WorkerRow
from ...workflow.graph import StageSpec

__all__ = ["PlannedRouter"]


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

    def holds(self, worker: int, weights: str, here: bool, now_ns: int) -> None:  # noqa: B027
        """Not listened to: the state table is all they know."""

    def plan(self, request: Request, now_ns: int) -> Sequence[Hint]:
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

    def sent(self, batch: Batch, now_ns: int) -> None:  # noqa: B027
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
