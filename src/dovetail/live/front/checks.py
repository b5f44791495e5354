"""Whether what a worker answered may be used: lists that are mapped over, and values that clients will read.

Rules of this file
- It is looked at when a batch ends, so that a request that fails for it is booked as failed, and its items run again
  alone as after any other error: only the request at fault fails.
- A value that clients read is as it was declared, in datatype and shape. A Python number may stand for any that can
  hold it; nothing else is converted.
- Everything it looks at is small: counts, references, how heavy a value says it is, and trees that are light enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...state import CompiledGraph
from ...workflow.graph import WHOLE, Port
from ...workflow.tensor import NUMPY_OF, OIP_OF
from ..links.wire import Done
from ..tensors.arena import Arena
from ..tensors.codec import decode, weight_of
from ..tensors.ref import Ref
from ..tensors.values import LiveRequest, part

__all__ = ["MAX_RESULT_WEIGHT", "Asked", "ResultChecks", "fan_out_refused"]

#: Values in all outputs of a request, arrays counted by number and not by size (`codec.weight_of`). The front reads
#: so many in 10 to 20 ms (bench/front_stall.py), and nobody else is answered meanwhile.
MAX_RESULT_WEIGHT = 256 << 10
#: Types and shapes of results that are remembered to be right.
MAX_ACCEPTED = 1024


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
    #: Nodes whose values clients may read -> (output, what was declared of it, whether the node gives its elements).
    shown: dict[int, list[tuple[int, Port, bool]]]


class ResultChecks:
    """Looks at answers; `arenas` are those of all workers."""

    def __init__(self, arenas: Mapping[int, Arena], max_fan_out: int) -> None:
        self._arenas = arenas
        self._max_fan_out = max_fan_out
        self._graphs: dict[int, _Known] = {}
        #: (graph, node, dtype, shape) of lone tensors that were found to be as declared.
        self._accepted: set[tuple[int, int, str, tuple[int, ...]]] = set()

    def why_not(self, items: list[Asked], message: Done) -> str:
        """Why these results must not be used; empty if they may."""
        counts = iter(message.counts)
        heavier: dict[LiveRequest, int] = {}
        for (request, graph, node), ref in zip(items, message.results, strict=True):
            known = self._graphs.get(graph.index)
            if known is None:
                known = self._graphs[graph.index] = _look_at(graph)
            compiled = graph.nodes[node]
            if ref.dtype and not compiled.counted:
                seen = (graph.index, node, ref.dtype, ref.shape)
                if seen in self._accepted:
                    continue
            for output in compiled.counted:
                count = next(counts)
                if count > self._max_fan_out and (node, output) in known.lists:
                    return fan_out_refused(f"stage {compiled.stage.name!r} gave", count, self._max_fan_out)
            if node not in known.shown:
                continue
            stage = compiled.stage.name
            if not ref.dtype:
                heavier[request] = heavier.get(request, 0) + weight_of(ref, self._arenas)
                if request.weight + heavier[request] > MAX_RESULT_WEIGHT:
                    return (
                        f"stage {stage!r} gave too many values: an answer may have {MAX_RESULT_WEIGHT} in lists and "
                        "dicts; return arrays"
                    )
            for output, port, element in known.shown[node]:
                if why := self._unlike(port, element, output, ref):
                    return f"stage {stage!r} gave {why}"
            if ref.dtype and not compiled.counted:
                if len(self._accepted) >= MAX_ACCEPTED:
                    self._accepted.clear()
                self._accepted.add((graph.index, node, ref.dtype, ref.shape))
        for request, weight in heavier.items():
            request.weight += weight
        return ""

    def _unlike(self, port: Port, element: bool, output: int, ref: Ref) -> str:
        """What a value is that was declared otherwise; empty if it is as declared."""
        if port.datatype == "BYTES":
            return ""  # also what is said of outputs that nobody declared
        datatype, shape = OIP_OF.get(ref.dtype, ""), ref.shape
        if not ref.dtype:
            try:
                value = part(decode(ref, self._arenas), () if output == WHOLE else (output,))
            except Exception as error:
                return f"what cannot be read: {error}"
            if isinstance(value, np.ndarray | np.generic):
                datatype, shape = OIP_OF.get(value.dtype.name, str(value.dtype)), value.shape
            elif isinstance(value, bool | int | float) and _holds(port.datatype, value):
                datatype, shape = port.datatype, ()
            else:
                datatype = f"a Python {type(value).__name__}"
        wanted = (port.shape[1:] if element else port.shape) or (1,)
        shape = shape or (1,)
        fits = len(shape) == len(wanted) and all(w in (-1, n) for w, n in zip(wanted, shape, strict=True))
        if datatype == port.datatype and fits:
            return ""
        each = " for each element" if element else ""
        given = datatype if datatype.startswith("a ") else f"{datatype} {list(shape)}"
        return f"{given} as output {port.name!r}, which is declared as {port.datatype} {list(wanted)}{each}"


def _holds(datatype: str, value: bool | int | float) -> bool:
    """Whether a Python number may stand for one of a datatype."""
    if isinstance(value, bool) or datatype == "BOOL":
        return datatype == "BOOL" and isinstance(value, bool)
    if datatype.startswith("FP"):
        return True
    if isinstance(value, float):
        return False
    bounds = np.iinfo(NUMPY_OF[datatype])
    return bool(bounds.min <= value <= bounds.max)


def _look_at(graph: CompiledGraph) -> _Known:
    shown: dict[int, list[tuple[int, Port, bool]]] = {}
    todo = list(zip(graph.graph.results, graph.graph.outputs, strict=True))
    while todo:
        source, port = todo.pop()
        if source.node >= 0:
            node = graph.nodes[source.node].node
            shown.setdefault(source.node, []).append((source.output, port, node.mapped))
            if (instead := node.instead(source.output)) is not None:
                todo.append((instead, port))
    return _Known(graph.graph.lists(), shown)
