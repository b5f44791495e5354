"""Random workflows, declared as users declare them, with the answers of every stage fixed in advance.

A recipe is traced by the real tracer, so only graphs that a user could write come out: calls, maps over inputs,
results and other maps, conditions with and without an `otherwise`, several outputs, stages that are used twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from dovetail import tensor
from dovetail.workflow.graph import WHOLE, Graph, StageSpec
from dovetail.workflow.handles import Handle
from dovetail.workflow.local import run_graph
from dovetail.workflow.runners import StageFailed
from dovetail.workflow.stage import Stage
from dovetail.workflow.trace import Workflow

LIST = tensor("int32", -1)
MAX_LENGTH = 3
MAX_STEPS = 7

#: Node, output -> length of the list that it gives.
Lengths = dict[tuple[int, int], int]


@st.composite
def graphs(draw: st.DrawFn, name: str = "workflow") -> Graph:
    """A graph of up to seven nodes."""
    stages: list[Stage] = []

    def a_stage(outputs: int) -> Stage:
        known = [s for s in stages if len(s.spec.outputs) == outputs]
        if known and draw(st.booleans()):
            return draw(st.sampled_from(known))
        batch = draw(st.sampled_from([(1,), (1, 2), (4,)]))
        names = tuple(f"out{i}" for i in range(outputs))
        # A stage is shared by all workflows of a test only if it is the same: so its name says what it is.
        spec = StageSpec(f"{name}-{len(stages)}-{batch[-1]}", "model", batch, names, weights_bytes=10)
        stages.append(Stage(spec, arity=(1, None)))
        return stages[-1]

    def body(inputs: Sequence[Handle]) -> dict[str, Handle]:
        values, maps = list(inputs), []
        for _ in range(draw(st.integers(1, MAX_STEPS))):
            anything = [*values, *maps]
            args = [draw(st.sampled_from(anything)) for _ in range(draw(st.integers(1, 2)))]
            kind = draw(st.sampled_from(["call", "call", "map", "map", "when"]))
            if kind == "map":
                # A fresh look: maps of maps are what goes wrong most easily.
                args[0] = draw(st.sampled_from([*maps, *values]))
                maps.append(a_stage(0).map(*args))
                continue
            stage = a_stage(draw(st.sampled_from([0, 0, 2])))
            if kind == "when":
                condition = draw(st.sampled_from(values))
                alike = [h for h in anything if not stage.spec.outputs or h._outputs == stage.spec.outputs]
                otherwise = draw(st.none() | st.sampled_from(alike)) if alike else None
                result = stage.when(condition, otherwise)(*args)
            else:
                result = stage(*args)
            values.append(result)
            values += [result[output] for output in stage.spec.outputs]
        made = [*values[len(inputs) :], *maps]
        return {f"result{i}": handle for i, handle in enumerate(made)}  # all, so that no node is left out

    def one(a: LIST):  # type: ignore[no-untyped-def, valid-type]
        return body([a])

    def two(a: LIST, b: LIST):  # type: ignore[no-untyped-def, valid-type]
        return body([a, b])

    function = draw(st.sampled_from([one, two]))
    slo = draw(st.sampled_from(["1s", "200ms", "50ms"]))
    return Workflow(function, slo=slo, priority=draw(st.integers(1, 3)), name=name).graph


@st.composite
def lengths(draw: st.DrawFn, graph: Graph) -> Lengths:
    """How long the lists of one request are: inputs (negative nodes) and outputs. Often equal, often empty."""
    usual = draw(st.integers(0, MAX_LENGTH))
    length = st.just(usual) | st.integers(0, MAX_LENGTH)
    places = [(-1 - k, WHOLE) for k in range(len(graph.inputs))]
    for node in range(len(graph.nodes)):
        outputs = graph.stage_of(node).outputs
        places += [(node, o) for o in range(len(outputs))] or [(node, WHOLE)]
    return {place: draw(length) for place in places}


def counts_of(graph: Graph, node: int, given: Lengths) -> tuple[int, ...]:
    """What a worker reports of one item of a node."""
    outputs = graph.stage_of(node).outputs
    return tuple(
        # The whole of several outputs is a tuple of them, and that is as long as there are outputs.
        len(outputs) if output == WHOLE and outputs else given[node, output]
        for output in graph.counted(node)
    )


def input_counts(graph: Graph, given: Lengths) -> tuple[int, ...]:
    """What the front reports of a request's inputs."""
    return tuple(given[-1 - k, WHOLE] for k in graph.counted_inputs())


def plainly(graph: Graph, given: Lengths) -> dict[int, int] | None:
    """Node -> how many items it runs, by the plainest meaning of a graph; None if the request must fail."""
    ran: dict[int, int] = {}
    now = -1

    def observe(node: int, columns: list[list[Any]]) -> None:
        nonlocal now
        now = node
        ran[node] = len(columns[0])

    class Fake:
        """Gives lists of the lengths that were fixed."""

        def run(self, columns: list[list[Any]]) -> list[Any]:
            outputs = graph.stage_of(now).outputs
            if outputs:
                value: Any = tuple([None] * given[now, o] for o in range(len(outputs)))
            else:
                value = [None] * given[now, WHOLE]
            return [value] * len(columns[0])

    inputs = [[None] * given[-1 - k, WHOLE] for k in range(len(graph.inputs))]
    runners: Any = {spec.name: Fake() for spec in graph.stages}
    try:
        run_graph(graph, runners, inputs, observe)
    except StageFailed:
        return None
    return ran
