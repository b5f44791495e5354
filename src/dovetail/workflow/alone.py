"""Stages as workflows of one step, so that clients can call them by their own names.

Only models can be served alone: their files say which tensors they take. What a Python function takes is not known.
"""

from __future__ import annotations

from .app import App
from .graph import WHOLE, Graph, Node, Port, Source
from .stage import Stage

__all__ = ["stage_graphs"]


def stage_graphs(app: App) -> tuple[Graph, ...]:
    """A graph for each model of the application whose name no workflow has.

    Its objective is the longest, and its class the lowest, of the workflows that use it.
    """
    found = []
    for spec in app.specs:
        stage = app.stages[spec.name]
        users = [graph for graph in app.graphs if any(s.name == spec.name for s in graph.stages)]
        inputs, outputs = _ports(stage)
        if not inputs or spec.name in app.workflows:
            continue
        several = len(outputs) > 1
        found.append(
            Graph(
                name=spec.name,
                slo_ns=max(graph.slo_ns for graph in users),
                priority=max(graph.priority for graph in users),
                stages=(spec,),
                nodes=(Node(spec.name, spec.name, tuple(Source(-1 - k) for k in range(len(inputs)))),),
                inputs=inputs,
                outputs=outputs,
                results=tuple(Source(0, k if several else WHOLE) for k in range(len(outputs))),
            )
        )
    return tuple(found)


def _ports(stage: Stage) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Inputs and outputs of a model, without the batch axis; none if they are not known."""
    if stage.file is None:
        return (), ()
    inputs = tuple(Port(name, spec.datatype, spec.shape[1:]) for name, spec in stage.file.inputs.items())
    outputs = tuple(Port(name, spec.datatype, spec.shape[1:]) for name, spec in stage.file.outputs.items())
    return inputs, outputs
