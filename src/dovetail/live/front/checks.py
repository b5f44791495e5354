"""Whether what a worker answered may be used: lists that are mapped over, and values that clients will read.

Rules of this file
- It is looked at when a batch ends, so that a request that fails for it is booked as failed, and its items run again
  alone as after any other error: only the request at fault fails.
- Everything it looks at is small: counts, references, and how heavy a value says it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...state import CompiledGraph
from ..links.wire import Done
from ..tensors.arena import Arena
from ..tensors.codec import weight_of
from ..tensors.values import LiveRequest

__all__ = ["MAX_RESULT_WEIGHT", "Asked", "ResultChecks", "fan_out_refused"]

#: Values in all outputs of a request, arrays counted by number and not by size (`codec.weight_of`). The front reads
#: so many in 10 to 20 ms (bench/front_stall.py), and nobody else is answered meanwhile.
MAX_RESULT_WEIGHT = 256 << 10


def fan_out_refused(who: str, count: int, most: int) -> str:
    """What is said of a list that is too long."""
    return f"{who} a list of {count} to run a stage for each; a request may have {most} (--max-fan-out)"


class Asked(NamedTuple):
    """One item of a batch: whose it is, at which node, and how many counts come with it."""

    request: LiveRequest
    graph: CompiledGraph
    node: int


class _Known(NamedTuple):
    """What is to be looked at in a graph."""

    #: (node, output) of lists that are mapped over.
    lists: set[tuple[int, int]]
    #: Nodes whose values clients may read.
    shown: set[int]


class ResultChecks:
    """Looks at answers; `arenas` are those of all workers."""

    def __init__(self, arenas: Mapping[int, Arena], max_fan_out: int) -> None:
        self._arenas = arenas
        self._max_fan_out = max_fan_out
        self._graphs: dict[int, _Known] = {}

    def why_not(self, items: list[Asked], message: Done) -> str:
        """Why these results must not be used; empty if they may."""
        counts = iter(message.counts)
        heavier: dict[LiveRequest, int] = {}
        for (request, graph, node), ref in zip(items, message.results, strict=True):
            known = self._graphs.get(graph.index)
            if known is None:
                known = self._graphs[graph.index] = _look_at(graph)
            compiled = graph.nodes[node]
            for output in compiled.counted:
                count = next(counts)
                if count > self._max_fan_out and (node, output) in known.lists:
                    return fan_out_refused(f"stage {compiled.stage.name!r} gave", count, self._max_fan_out)
            if node in known.shown and not ref.dtype:
                heavier[request] = heavier.get(request, 0) + weight_of(ref, self._arenas)
                if request.weight + heavier[request] > MAX_RESULT_WEIGHT:
                    return (
                        f"stage {compiled.stage.name!r} gave too many values: an answer may have {MAX_RESULT_WEIGHT} "
                        "in lists and dicts; return arrays"
                    )
        for request, weight in heavier.items():
            request.weight += weight
        return ""


def _look_at(graph: CompiledGraph) -> _Known:
    shown: set[int] = set()
    todo = list(graph.graph.results)
    while todo:
        source = todo.pop()
        if source.node >= 0:
            shown.add(source.node)
            if (instead := graph.nodes[source.node].node.instead(source.output)) is not None:
                todo.append(instead)
    return _Known(graph.graph.lists(), shown)
