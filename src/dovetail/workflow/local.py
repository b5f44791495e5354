"""Run a workflow in this process, one step after the other: the plainest meaning of a graph.

Tests compare the live system with it, and the profiler takes the items it measures from it. It does not batch
across requests and does not schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .graph import WHOLE, Graph, Source
from .runners import Runner, StageFailed, make_runner

if TYPE_CHECKING:
    from .trace import Workflow

__all__ = ["count_of", "pick", "run_graph", "run_local"]

#: Called with node index and the columns it is about to run on.
Observer = Callable[[int, list[list[Any]]], None]


def count_of(value: Any) -> int:
    """How often a value makes a mapped node run, or whether a condition holds: a list's length, a bool as 0 or 1."""
    if isinstance(value, list | tuple):
        return len(value)
    shape = getattr(value, "shape", None)
    if shape:
        return int(shape[0])
    return int(bool(value))


def pick(value: Any, output: int) -> Any:
    """One output of a node's value, or the whole of it; None, the value of a skipped step, has only itself."""
    return value if output == WHOLE or value is None else value[output]


def run_graph(
    graph: Graph, runners: dict[str, Runner], inputs: list[Any], observe: Observer | None = None
) -> dict[str, Any]:
    """The outputs of `graph` by name for one request."""
    values: list[Any] = []

    def value_of(source: Source) -> Any:
        whole = inputs[-1 - source.node] if source.node < 0 else values[source.node]
        if source.node >= 0 and source.output != WHOLE and graph.nodes[source.node].mapped:
            return [pick(element, source.output) for element in whole]
        return pick(whole, source.output)

    for index, node in enumerate(graph.nodes):
        if node.when is not None and count_of(value_of(node.when)) == 0:
            values.append(None if node.otherwise is None else value_of(node.otherwise))
            continue
        arguments = [value_of(s) for s in node.args]
        columns = [[] if a is None else list(a) for a in arguments] if node.mapped else [[a] for a in arguments]
        if len({len(c) for c in columns}) > 1:
            lengths = ", ".join(str(len(c)) for c in columns)
            raise StageFailed(f"stage {node.stage!r} is mapped over lists of different lengths: {lengths}")
        if not columns[0]:
            values.append([])
            continue
        if observe is not None:
            observe(index, columns)
        results = runners[node.stage].run(columns)
        values.append(results if node.mapped else results[0])
    return {port.name: value_of(s) for port, s in zip(graph.outputs, graph.results, strict=True)}


def run_local(workflow: Workflow, inputs: list[Any]) -> dict[str, Any]:
    """Run a declared workflow once; models stay loaded on the workflow for the next call."""
    cached: dict[str, Runner] = workflow.__dict__.setdefault("_runners", {})
    for name, stage in workflow.stages.items():
        if name not in cached:
            cached[name] = make_runner(stage)
    return run_graph(workflow.graph, cached, inputs)
