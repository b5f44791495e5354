"""The frontiers of all workflows, kept up to date beside the decisions that read them.

Making frontiers takes milliseconds, and a decision must not wait for that. They are first made when a workflow can
run, which is before its first request. When arrivals, fan-outs, scatter or learned times have changed by a quarter
(`plan.tables`), their successors are made in short steps, in steps of the controller that start nothing. Until they
are whole, the old ones stand.

Rules of this file
- How much is made follows from the events alone, so a replay makes the same frontiers at the same events.
- Times without a profile are learned from nothing: the first few times their frontiers are made again at once.
- One plan is looked at after the other: no event looks at all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ..plan.stepwise import Steps
from ..plan.tables import WorkflowPlan
from ..predict import Predictor
from ..predict.running import Mean
from ..state import Cluster
from ..units import MS
from ..workflow.graph import Graph
from .settings import PlannerSettings

__all__ = ["Plans"]

#: Frontiers of learned times are made again at once, so many times at most.
_FIRST_BUILDS: Final = 16
#: Others are begun at most this often.
_BUILD_EVERY_NS: Final = 1000 * MS
#: Short steps that are made at a time: one, and one for each of these that nothing has happened, up to a number.
_QUIET_NS: Final = 1 * MS
_MOST_STEPS: Final = 16
#: Controller's steps after which one is made even if all of them have started something.
_PATIENCE: Final = 128
#: Batches between two looks at a plan, and times of its stages that are looked at then.
_LOOK_EVERY: Final = 4
_TIMES: Final = 8

#: What intervals between arrivals are, for the queues of these stages.
Intervals = Callable[[Iterable[str]], Mapping[str, int]]


class Plans:
    """Answers what the frontiers of a workflow are."""

    def __init__(self, predictor: Predictor, settings: PlannerSettings, intervals_ns: Intervals) -> None:
        self._predictor = predictor
        self._settings = settings
        self._intervals_ns = intervals_ns
        self._graphs: dict[str, Graph] = {}
        #: The frontiers of each workflow as they are.
        self.made: dict[str, WorkflowPlan] = {}
        #: Workflow -> how often its frontiers were made, and when they were last begun.
        self._built: dict[str, tuple[int, int]] = {}
        #: Workflows without frontiers; those whose frontiers are out of date; and what is being made.
        self._missing: dict[str, None] = {}
        self._stale: dict[str, None] = {}
        #: Those of the latter for which a decision waits.
        self._hasty: dict[str, None] = {}
        self._making: tuple[str, Steps[WorkflowPlan]] | None = None
        #: `Cluster.moves` when those without were last looked at.
        self._moves = -1
        self._now_ns = 0
        self._quiet_ns = 0
        self._busy = 0
        self._finished = 0
        #: Workflows in the order in which they are looked at, and who was last.
        self._turns: list[str] = []
        self._turn = 0

    def declare(self, graph: Graph) -> None:
        """There is such a workflow."""
        self._graphs[graph.name] = graph
        self._missing[graph.name] = None

    def bind(self, cluster: Cluster) -> None:
        """Frontiers are made for its workers."""
        self._cluster = cluster

    def of(self, name: str) -> WorkflowPlan | None:
        """The frontiers of a workflow, made anew if its devices have changed; None while it cannot run."""
        plan, moves = self.made.get(name), self._cluster.moves
        if plan is not None and plan.moves == moves and name not in self._hasty:
            return plan
        graph = self._graphs[name]
        holders = self._cluster.kinds
        if not all(holders[s.name] for s in graph.stages):
            return plan  # the last worker with some stage is gone: the old frontiers stand until another comes
        if plan is None:
            settings = self._settings
            plan = self.made[name] = WorkflowPlan(
                graph, self._predictor, settings.space, settings.percentile, settings.premium
            )
            self._missing.pop(name, None)
            self._turns.append(name)
        if name in self._hasty or not plan.made_for(holders):
            if self._making is not None and self._making[0] == name:
                self._making = None
            self._count(name)
            self._hasty.pop(name, None)
            plan.build(holders, self._intervals_ns(plan.stages))
        plan.moves = moves
        return plan

    def _at_once(self, name: str, plan: WorkflowPlan) -> bool:
        """Whether a decision waits for what has been learned."""
        return not plan.profiled and self._built.get(name, (0, 0))[0] < _FIRST_BUILDS

    def _count(self, name: str) -> None:
        self._built[name] = self._built.get(name, (0, 0))[0] + 1, self._now_ns
        self._stale.pop(name, None)

    # -- what has changed ---------------------------------------------------------------------------------------

    def finished(self, waits: Mapping[str, Mean]) -> None:
        """A batch was run: now and then look whether the next plan still fits waits, arrivals and times."""
        self._finished += 1
        finished = self._finished
        if finished & (finished - 1) == 0:  # the first batches teach most
            for name, plan in self.made.items():
                if not plan.profiled:
                    plan.saw_times()
                    self._note(name, plan)
        if finished % _LOOK_EVERY or not self._turns:
            return
        self._turn = (self._turn + 1) % len(self._turns)
        name = self._turns[self._turn]
        plan = self.made[name]
        plan.set_waits({s: waits[s].value for s in plan.stages if s in waits})
        plan.saw_times(_TIMES)
        plan.saw_intervals(self._intervals_ns(plan.stages))
        self._note(name, plan)

    def saw_size(self, name: str, node: int, size: int) -> None:
        """A fan-out of a workflow had this many items."""
        plan = self.made.get(name)
        if plan is not None:
            plan.saw_size(node, size)
            self._note(name, plan)

    def _note(self, name: str, plan: WorkflowPlan) -> None:
        if plan.stale:
            self._stale[name] = None
            if self._at_once(name, plan):
                self._hasty[name] = None

    # -- beside decisions ---------------------------------------------------------------------------------------

    def stepped(self, now_ns: int) -> None:
        """A step of the controller: if many in turn have started something, a bit is made all the same."""
        self._quiet_ns, self._now_ns = now_ns - self._now_ns, now_ns
        self._busy += 1
        if self._busy > _PATIENCE:
            self._busy = 0
            self._make(1)

    def idle(self) -> None:
        """A step that starts nothing: frontiers that are missing are made, and those that are out of date bit by bit.

        After a quiet time more of them is made: whoever is not busy has the time.
        """
        self._busy = 0
        if self._missing and self._moves != self._cluster.moves:
            self._moves = self._cluster.moves
            for name in list(self._missing):
                plan = self.of(name)
                if plan is not None and self._settings.goal == "cost":
                    plan.chances()
        if self._making is not None or self._stale:
            self._make(min(_MOST_STEPS, 1 + self._quiet_ns // _QUIET_NS))

    def _make(self, steps: int) -> None:
        for _ in range(steps):
            if self._making is None and not self._begin():
                return
            assert self._making is not None
            name, made = self._making
            try:
                next(made)
            except StopIteration as done:
                plan: WorkflowPlan = done.value
                plan.moves = self._cluster.moves if plan.made_for(self._cluster.kinds) else -1
                self.made[name] = plan
                self._making = None
                self._stale.pop(name, None)  # whatever was noted meanwhile was noted of its predecessor
                self._hasty.pop(name, None)

    def _begin(self) -> bool:
        """Begin with the first that is out of date, if it may be made again; else it is another's turn."""
        if not self._stale:
            return False
        name = next(iter(self._stale))
        plan, holders = self.made[name], self._cluster.kinds
        del self._stale[name]
        if self._now_ns - self._built[name][1] < _BUILD_EVERY_NS or not all(holders[s] for s in plan.stages):
            self._stale[name] = None
            return False
        self._count(name)
        self._making = name, plan.again(holders, self._intervals_ns(plan.stages))
        return True
