"""How many elements simulated lists have, and whether simulated conditions hold.

Rule of this file: a count is a function of seed, request and place in the graph, not of when it is asked for. So all
policies meet the same requests, and a batch that is run again after a failure gives the same counts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Literal
from zlib import crc32

import msgspec
from msgspec import Meta

from ..errors import DeclarationError
from ..workflow.graph import WHOLE, Graph, counted_sources

__all__ = ["Branches", "Draws", "FanOut", "plan_draws"]

#: What is left of a distribution's tail when it is cut off.
_TAIL = 1e-12


class FanOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long a list is: Poisson, always the same, or geometric from nought on; longer than `max` is cut off."""

    mean: Annotated[float, Meta(ge=0)]
    kind: Literal["poisson", "fixed", "geometric"] = "poisson"
    max: Annotated[int, Meta(ge=0)] | None = None

    def cumulative(self) -> tuple[float, ...]:
        """P(length <= k) for k = 0, 1, …; what is above the last is one longer."""
        if self.kind == "fixed":
            whole = (0.0,) * round(self.mean)
            return whole if self.max is None else whole[: self.max]
        odds = _poisson(self.mean) if self.kind == "poisson" else _geometric(self.mean)
        table: list[float] = []
        total = 0.0
        while (self.max is None or len(table) < self.max) and total < 1.0 - _TAIL:
            total += next(odds)
            table.append(total)
        return tuple(table)


def _poisson(mean: float) -> Iterator[float]:
    k = 0
    while True:
        yield math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) if mean else float(k == 0)
        k += 1


def _geometric(mean: float) -> Iterator[float]:
    stop = 1.0 / (1.0 + mean)
    odds = stop
    while True:
        yield odds
        odds *= 1.0 - stop


class Draw(msgspec.Struct, frozen=True):
    """One count. Draws of the same salt give the same count to the same request."""

    salt: int
    cumulative: tuple[float, ...]


class Draws(msgspec.Struct, frozen=True):
    """The counts of one graph."""

    #: Node -> one draw per counted output.
    nodes: dict[int, tuple[Draw, ...]]
    #: One draw per counted input.
    inputs: tuple[Draw, ...]

    def __bool__(self) -> bool:
        return bool(self.nodes or self.inputs)


def plan_draws(graph: Graph, fanout: Mapping[str, FanOut | str], condition: Mapping[str, float]) -> Draws:
    """Find the rule for each list and condition of a graph.

    A rule is named after a node or an input and holds for all its lists, which then have the same length, or after
    one output (``node.output``). A text in place of a fan-out names another rule with the same length.
    """
    listed = {(s.node, s.output) for n in graph.nodes if n.mapped for s in n.args if not s.each}
    used: set[str] = set()

    def draw(node: int, output: int) -> Draw:
        names = _names(graph, node, output)
        if node >= 0 and graph.nodes[node].mapped:
            return Draw(0, ())  # as long as its own list is; the controller does not ask
        if (node, output) in listed:
            name = next((n for n in names if n in fanout), None)
            if name is None:
                raise DeclarationError(
                    f"{names[-1]!r} gives a list that is mapped over, so say how long it is: "
                    f"fanout = {{ {_quoted(names[-1])} = {{ mean = 5.0 }} }}"
                )
            used.add(name)
            rule = fanout[name]
            if isinstance(rule, str):
                same = fanout.get(rule)
                if not isinstance(same, FanOut):
                    raise DeclarationError(
                        f"fanout of {name!r} is to be that of {rule!r}, which has no mean of its own"
                    )
                name, rule = rule, same
            return Draw(crc32(f"{graph.name} list {name}".encode()), rule.cumulative())
        name = next((n for n in names if n in condition), None)
        if name is None:
            raise DeclarationError(
                f"{names[-1]!r} decides whether a stage runs, so say how likely: "
                f"condition = {{ {_quoted(names[-1])} = 0.5 }}"
            )
        used.add(name)
        return Draw(crc32(f"{graph.name} condition {name}".encode()), (1.0 - condition[name],))

    nodes = {
        i: tuple(draw(i, output) for output in outputs)
        for i in range(len(graph.nodes))
        if (outputs := graph.counted(i))
    }
    inputs = tuple(draw(-1 - k, WHOLE) for k in graph.counted_inputs())
    idle = sorted({*fanout, *condition} - used)
    if idle:
        places = {_names(graph, s.node, s.output)[-1] for n in graph.nodes for s in counted_sources(n)}
        which = f"those that do are: {', '.join(sorted(places))}" if places else "nothing in this workflow does"
        raise DeclarationError(f"{idle[0]!r} gives no list that is mapped over and decides no condition; {which}")
    return Draws(nodes, inputs)


def _names(graph: Graph, node: int, output: int) -> list[str]:
    """Names that a rule for this source may have, the finest first."""
    if node < 0:
        return [graph.inputs[-1 - node].name]
    name = graph.nodes[node].name
    outputs = graph.stage_of(node).outputs
    return [f"{name}.{outputs[output]}", name] if output != WHOLE and outputs else [name]


def _quoted(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else f'"{name}"'


class Branches:
    """Counts of simulated results; implements `device.Branching`."""

    def __init__(self, seed: int, graphs: Sequence[Draws], graph_of: Callable[[int], int]) -> None:
        self._key = _mix(seed)
        self._graphs = graphs
        #: The graph of an open request.
        self._graph_of = graph_of

    def counts(self, items: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
        """For each item (request, node, index) in turn, the counts of the node's counted outputs."""
        found: list[int] = []
        for request, node, _ in items:
            draws = self._graphs[self._graph_of(request)].nodes.get(node, ())
            found.extend(self._count(request, draw) for draw in draws)
        return tuple(found)

    def input_counts(self, request: int, graph: int) -> tuple[int, ...]:
        """The counts of a request's inputs."""
        return tuple(self._count(request, draw) for draw in self._graphs[graph].inputs)

    def _count(self, request: int, draw: Draw) -> int:
        chance = _mix(self._key ^ _mix((request << 32) | draw.salt)) / 2**64
        return bisect_right(draw.cumulative, chance)


def _mix(value: int) -> int:
    """SplitMix64 (Steele, Lea and Flood 2014): every bit of the result depends on every bit of the value."""
    value = (value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)
