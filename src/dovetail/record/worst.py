"""The requests of a log that went furthest past their objective: where to begin reading stories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest

import msgspec

from ..control.actions import Reject, Reply
from ..control.events import RequestArrived, RequestRefused
from ..workflow.graph import Graph
from .log import Step

__all__ = ["Ending", "worst"]


class Ending(msgspec.Struct, frozen=True):
    """How one request ended; `over_ns` is the time past its objective, negative before it."""

    request: int
    client_id: str
    workflow: str
    priority: int
    outcome: str
    arrived_ns: int
    spent_ns: int
    over_ns: int
    reason: str


def worst(steps: Iterable[Step], graphs: Sequence[Graph], count: int, outcome: str = "") -> list[Ending]:
    """The `count` requests furthest past their objective: of one outcome, or of all outcomes but ok."""
    wanted = (e for e in _endings(steps, graphs) if (e.outcome == outcome if outcome else e.outcome != "ok"))
    return nsmallest(count, wanted, key=lambda ending: (-ending.over_ns, ending.request))


def _endings(steps: Iterable[Step], graphs: Sequence[Graph]) -> Iterator[Ending]:
    #: Request -> when it came, when it should be answered (0: by its workflow), the client's own id.
    arrivals: dict[int, tuple[int, int, str]] = {}
    for step in steps:
        event = step.event
        if isinstance(event, RequestArrived):
            arrivals[event.request] = (event.at_ns, event.objective_ns, step.note)
        elif isinstance(event, RequestRefused):
            arrivals[event.request] = (event.at_ns, 0, step.note)
        for action in step.actions:
            if not isinstance(action, Reply | Reject):
                continue
            arrived_ns, objective_ns, client_id = arrivals.pop(action.request)
            graph = graphs[action.graph]
            yield Ending(
                request=action.request,
                client_id=client_id,
                workflow=graph.name,
                priority=action.priority,
                outcome=action.outcome,
                arrived_ns=arrived_ns,
                spent_ns=event.at_ns - arrived_ns,
                over_ns=event.at_ns - (objective_ns or arrived_ns + graph.slo_ns),
                reason=action.reason if isinstance(action, Reject) else "",
            )
